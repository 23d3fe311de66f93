"""Hosts for the tests of tasks at a gateway: books and tasks are in memory, and no task goes on by itself."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from contract.hosts import Host
from contract.ids import home_of
from contract.keys import Key, key_id, new_secret
from contract.models import Shape
from contract.ring import Room
from contract.tickets import Access, Ticket, Verifier
from gateway import serving
from gateway.app import App
from gateway.config import Config
from gateway.logs import AccessLog
from gateway.registry import open_registry
from gateway.server import Server
from gateway.services import Services
from tests.unit.gateway.flow_servers import served

NOT_MINE = {"warren-not-mine": "1"}
FREE = Room(16, 16)
EVENTS = 4000  # of a stream: more bytes than all buffers on the way have room for


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def refused(status: int, code: str, headers: dict[str, str] | None = None) -> Response:
    return reply({"error": {"code": code, "message": code}}, status, headers)


@dataclass
class TaskHost:
    name: str
    pem: bytes
    clock: list[int]  # one for all: tasks are in one order
    record: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)  # bodies of creates
    book: dict[str, str] = field(default_factory=dict)  # reservations by their owner
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    heads: list[tuple[str, Ticket, dict[str, str]]] = field(default_factory=list)
    refuses: str | None = None  # with which code creates are
    is_old: bool = False  # it knows nothing of tasks
    is_unsettled: bool = False  # a lost host is being carried on
    sent: int = 0  # of a stream's chunks

    def app(self) -> Starlette:
        one = "/v1/tasks/{task}"
        return Starlette(
            routes=[
                Route("/v1/host", self.host),
                Route("/v1/sandboxes/states", self.states, methods=["POST"]),
                Route("/v1/sandboxes/{sandbox}", self.no_sandbox),
                Route("/v1/owners/{owner}/reservations", self.reserve, methods=["POST"]),
                Route("/v1/owners/{owner}/reservations/release", self.release, methods=["POST"]),
                Route("/v1/owners/{owner}/reservations/{what}", self.empty, methods=["POST"]),
                Route("/v1/tasks", self.create, methods=["POST"]),
                Route("/v1/tasks", self.listed),
                Route(one, self.get),
                Route(f"{one}/request", self.request),
                Route(f"{one}/stop", self.stop, methods=["POST"]),
                Route(f"{one}/events", self.events),
            ]
        )

    def _ticket(self, request: Request) -> Ticket:
        verifier = Verifier(self.name, [self.pem], now_ms=lambda: 1_000_000)
        ticket = verifier.verify(request.headers["warren-ticket"])
        self.heads.append((request.url.path, ticket, dict(request.headers)))
        return ticket

    async def host(self, _request: Request) -> Response:
        images = (Shape("python", 1, 512, 4096), Shape("agent", 2, 2048, 8192))
        sizes = {"vcpus": 8, "max_memory_mb": 8192, "max_disk_mb": 65_536}
        host = Host(self.name, "http://127.0.0.1:1", 1, FREE, FREE, images=images, default_image="python", **sizes)
        return reply(host.view() | {"memory_mb": {"all": 65_536, "free": 65_536}} | self.record)

    async def states(self, request: Request) -> Response:
        ids = orjson.loads(await request.body())["ids"]
        more = {"unsettled": True} if self.is_unsettled else {}
        return reply({"states": {each: self.tasks.get(each, {}).get("state") for each in ids}, **more})

    async def no_sandbox(self, _request: Request) -> Response:
        return refused(404, "not_found", NOT_MINE)

    async def reserve(self, request: Request) -> Response:
        asked = orjson.loads(await request.body())
        known = self.keys.get(asked.get("key"))
        if known is not None:
            same = known[1] == asked["asked"]
            return reply({"id": known[0], "repeated": True}) if same else refused(422, "key_reused")
        if "key" in asked:
            self.keys[asked["key"]] = (asked["id"], asked["asked"])
        self.book[asked["id"]] = request.path_params["owner"]
        return reply({"id": asked["id"], "repeated": False}, 201)

    async def release(self, request: Request) -> Response:
        asked = orjson.loads(await request.body())
        for each in asked["ids"]:
            self.book.pop(each, None)
        if asked.get("forget"):
            self.keys = {key: kept for key, kept in self.keys.items() if kept[0] not in asked["ids"]}
        return reply({"released": len(asked["ids"])})

    async def empty(self, _request: Request) -> Response:
        return reply({"rows": [], "repeats": []})

    async def create(self, request: Request) -> Response:
        ticket, body = self._ticket(request), orjson.loads(await request.body())
        task = ticket.sandbox or ""
        if task in self.tasks:
            return reply(self.tasks[task], 202, {"Idempotent-Replayed": "true"})
        if self.refuses is not None:
            return refused(503, self.refuses)
        self.clock[0] += 1
        self.asked[task] = body
        self.tasks[task] = {
            **{name: body.get(name) for name in ("agent", "repo", "branch", "model", "retry_of", "image")},
            "prompt": body["prompt"][:2000],
            "id": task,
            "state": "queued",
            "owner": ticket.owner,
            "created_ms": self.clock[0],
            **dict.fromkeys(("started_ms", "ended_ms", "reason", "result")),
        }
        return reply(self.tasks[task], 202)

    async def listed(self, request: Request) -> Response:
        if self.is_old:
            return refused(404, "no_such_route")
        ticket, limit = self._ticket(request), int(request.query_params["limit"])
        before = request.query_params.get("before", "9.z").split(".")
        is_admin = ticket.access is Access.ADMIN
        rows = [row for row in self.tasks.values() if is_admin or row["owner"] == ticket.owner]
        rows = [
            row for row in rows if before == ["9", "z"] or (row["created_ms"], row["id"]) < (int(before[0]), before[1])
        ]
        rows.sort(key=lambda row: (row["created_ms"], row["id"]), reverse=True)
        return reply({"tasks": rows[:limit], "next": "more" if len(rows) > limit else None})

    def _found(self, request: Request, access: Access = Access.READ) -> dict[str, Any] | Response:
        ticket, task = self._ticket(request), request.path_params["task"]
        assert ticket.sandbox == task
        assert ticket.access in {access, Access.WRITE}
        row = self.tasks.get(task)
        if row is None:
            return refused(404, "not_found", NOT_MINE)
        return row if row["owner"] == ticket.owner else refused(404, "not_found")

    async def get(self, request: Request) -> Response:
        row = self._found(request)
        return row if isinstance(row, Response) else reply(row)

    async def request(self, request: Request) -> Response:
        row = self._found(request, Access.WRITE)
        return row if isinstance(row, Response) else reply(self.asked[row["id"]])

    async def stop(self, request: Request) -> Response:
        row = self._found(request, Access.WRITE)
        if isinstance(row, Response):
            return row
        row["state"] = "stopped"
        return reply(row)

    async def events(self, request: Request) -> Response:
        row = self._found(request)
        if isinstance(row, Response):
            return row
        if request.headers.get("accept") != "text/event-stream":
            return reply({"events": []})
        after = int(request.headers.get("last-event-id") or request.query_params.get("after", "0"))
        return StreamingResponse(self._stream(after), media_type="text/event-stream")

    async def _stream(self, after: int) -> AsyncIterator[bytes]:
        """A long stream, each event with its number."""
        for number in range(after + 1, EVENTS + 1):
            yield f"id: {number}\nevent: agent.log\ndata: {'x' * 16_000}\n\n".encode()
            self.sent = number


@dataclass
class Place:
    """A gateway before hosts, and the keys of two owners."""

    client: httpx.AsyncClient
    services: Services
    hosts: dict[str, TaskHost]
    red: str
    blue: str
    port: int

    async def ask(self, method: str, path: str, body: object = None, key: str | None = None, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {key or self.red}", **more}
        content = body if isinstance(body, bytes) else None if body is None else orjson.dumps(body)
        return await self.client.request(
            method, f"http://127.0.0.1:{self.port}{path}", content=content, headers=headers
        )

    def host_of(self, task: str) -> TaskHost:
        return next(host for host in self.hosts.values() if task in host.tasks)

    @property
    def reserved(self) -> set[str]:
        return {each for host in self.hosts.values() for each in host.book}

    @property
    def made(self) -> set[str]:
        return {home_of(each) for host in self.hosts.values() for each in host.tasks}


@contextlib.asynccontextmanager
async def task_place(folder: Path, *, hosts: int = 2, red: Key | None = None, **settings: str) -> AsyncIterator[Place]:
    for name in ("registry/keys", "registry/hosts", "pki"):
        (folder / name).mkdir(parents=True)
    secrets_of = [new_secret(secrets.token_bytes) for _ in range(2)]
    for owner, secret in zip(("red", "blue"), secrets_of, strict=True):
        key = Key(key_id(secret), owner, rate=1000, scopes=Key("0" * 64, owner).scopes if red is None else red.scopes)
        (folder / "registry/keys" / f"{key.id}.json").write_bytes(key.encode())
    private = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "pki/tickets.key").write_bytes(private.private_bytes(*form))
    pem = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    clock = [0]
    known = {f"h{number}": TaskHost(f"h{number}", pem, clock) for number in range(hosts)}
    async with contextlib.AsyncExitStack() as stack:
        ports = {name: await stack.enter_async_context(served(host.app())) for name, host in known.items()}
        told = {
            "GATEWAY_REGISTRY": str(folder / "registry"),
            "GATEWAY_PKI": str(folder / "pki"),
            "GATEWAY_HOSTS": ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in ports.items()),
            **settings,
        }
        config = Config.from_environment(told, hostname="t")
        sources = serving.Sources(now_ms=lambda: 1_000_000, entropy=secrets.token_bytes)
        registry = await stack.enter_async_context(open_registry(config.registry))
        services = await stack.enter_async_context(serving._parts(config, sources, registry, None))
        app = App(services, AccessLog(lambda _: None))
        server = Server(app, app.refused, app.shortcut)
        port = await server.listen("127.0.0.1", 0)
        stack.push_async_callback(server.close, 1.0)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
        async with asyncio.timeout(30):
            yield Place(client, services, known, *secrets_of, port)

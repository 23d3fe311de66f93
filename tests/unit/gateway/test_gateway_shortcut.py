"""The short way to a host: to clients it looks like the long one, and so does what turns back on it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contract.hosts import Host
from contract.keys import Key, key_id, new_secret
from contract.ring import Room
from gateway import serving
from gateway.app import App
from gateway.config import Config
from gateway.heads import Asgi
from gateway.logs import AccessLog
from gateway.registry import open_registry
from gateway.server import Server
from gateway.services import CALL

RECORD = Host("h", "http://127.0.0.1:1", 1, Room(10, 10), Room(1024, 1024), version="t").encode()
BOX = "/v1/sandboxes/sb-abcdefghijklmn23"
HEAD = b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\nx-host: yes\r\nx-request-id: theirs\r\n%b\r\n"


class Box:
    """A host that does with each connection what the query of a request says."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._answer((await reader.readuntil(b"\r\n\r\n")).decode(), reader, writer):
                pass
        writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for path, told in ((" /v1/host ", RECORD), (" /v1/sandboxes/states ", b'{"states":{}}')):
            if path in head:
                writer.write(HEAD % (200, len(told), b"") + told)
                return True
        self.heads.append(head)
        case = head.split(" ")[1].partition("?")[2]
        match case:
            case "slow":
                await asyncio.sleep(0.2)
            case "never":
                assert await reader.read() == b""
                self.left.set()
                return False
            case "hangs-up-once":
                if sum("hangs-up-once" in each for each in self.heads) == 1:
                    return False
            case "bad-ticket" | "not-mine":
                is_bad = case == "bad-ticket"
                writer.write(HEAD % (401 if is_bad else 404, 2, b"" if is_bad else b"warren-not-mine: 1\r\n") + b"{}")
                return True
        writer.write(HEAD % (200, 5, b"") + b"he")
        if case == "in%20two%20pieces":
            await asyncio.sleep(0.02)
        if case == "cut":
            return False
        writer.write(b"llo")
        return True


class Gateway:
    def __init__(self, port: int, secret: str, box: Box, lines: list[bytes]) -> None:
        self.port = port
        self.secret = secret
        self.box = box
        self.lines = lines

    def asked(self, case: str) -> bytes:
        query = case.replace(" ", "%20")
        return f"GET {BOX}?{query} HTTP/1.1\r\nHost: gw\r\nX-API-Key: {self.secret}\r\n\r\n".encode()


def environment(folder: Path, host: int, secret: str) -> dict[str, str]:
    for name in ("registry/keys", "registry/hosts", "pki"):
        (folder / name).mkdir(parents=True)
    key = Key(key_id(secret), "red", rate=1000)
    (folder / "registry/keys" / f"{key.id}.json").write_bytes(key.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "pki/tickets.key").write_bytes(Ed25519PrivateKey.generate().private_bytes(*form))
    folders = {"GATEWAY_REGISTRY": str(folder / "registry"), "GATEWAY_PKI": str(folder / "pki")}
    return {**folders, "GATEWAY_HOSTS": f"h=http://127.0.0.1:{host}"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving_gateway(tmp_path, lambda app: app) as found:
        yield found


@contextlib.asynccontextmanager
async def serving_gateway(tmp_path: Path, between: Callable[[App], Asgi]) -> AsyncIterator[Gateway]:
    """A gateway with `between` its server and its application on the long way."""
    box, secret, lines = Box(), new_secret(secrets.token_bytes), list[bytes]()
    host = await asyncio.start_server(box, "127.0.0.1", 0)
    given = environment(tmp_path, host.sockets[0].getsockname()[1], secret)
    config = Config.from_environment(given, hostname="t")
    sources = serving.Sources(now_ms=lambda: 1_000_000, entropy=secrets.token_bytes)
    log = AccessLog(lines.append)
    async with (
        asyncio.timeout(20),
        open_registry(config.registry) as registry,
        serving._parts(config, sources, registry, None) as services,
    ):
        app = App(services, log)
        server = Server(between(app), app.refused, app.shortcut)
        port = await server.listen("127.0.0.1", 0)
        try:
            yield Gateway(port, secret, box, lines)
        finally:
            await server.close(1.0)
            log.flush()
            host.close()
        assert services.metrics.open_requests == 0


class Client:
    """One connection to the gateway, kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, asked: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(asked)
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


@contextlib.asynccontextmanager
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize("case", ["plain", "slow", "in two pieces", "hangs-up-once"])
async def test_the_second_answer_looks_like_the_first(gateway: Gateway, case: str) -> None:
    """The first request dials and goes the long way, those behind it need not."""
    async with client(gateway) as asking:
        told = [await asking.ask(gateway.asked(case)) for _ in range(3)]
    for status, headers, body in told:
        assert (status, headers["x-host"], body) == (200, "yes", b"hello")
        assert headers["x-request-id"].startswith("rq-")
        assert int(headers["ratelimit-limit"]) == 2000
    assert len({headers["x-request-id"] for _, headers, _ in told}) == 3
    assert all(int(headers["ratelimit-remaining"]) < 2000 for _, headers, _ in told)
    tickets = [line for head in gateway.box.heads for line in head.split("\r\n") if line.startswith("warren-ticket")]
    assert len(tickets) == len(gateway.box.heads) == (4 if case == "hangs-up-once" else 3)
    assert not any(gateway.secret in head for head in gateway.box.heads)


async def test_a_host_that_never_had_it_is_asked_again_and_then_it_is_not_found(gateway: Gateway) -> None:
    async with client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        status, _, body = await asking.ask(gateway.asked("not-mine"))
    assert status == 404
    assert b"no sandbox" in body


async def test_what_is_cut_on_the_short_way_is_cut(gateway: Gateway) -> None:
    async with client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        with pytest.raises(asyncio.IncompleteReadError) as cut:
            await asking.ask(gateway.asked("cut"))
    assert cut.value.partial in {b"he", b""}


async def test_a_client_that_leaves_on_the_short_way_ends_what_it_asked_for(gateway: Gateway) -> None:
    async with client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        asking.writer.write(gateway.asked("never"))
        await asking.writer.drain()
        await asyncio.sleep(0.01)
        asking.writer.transport.abort()
        await gateway.box.left.wait()


@pytest.mark.parametrize("wrong", ["wrn_" + "0" * 40, "nonsense"])
async def test_a_key_that_is_wrong_is_refused_on_either_way(gateway: Gateway, wrong: str) -> None:
    async with client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        asked = gateway.asked("plain").replace(gateway.secret.encode(), wrong.encode())
        told: list[Any] = [await asking.ask(asked) for _ in range(2)]
    assert [status for status, _, _ in told] == [401, 401]
    assert len(gateway.box.heads) == 1


async def test_a_client_may_send_requests_behind_each_other(gateway: Gateway) -> None:
    async with client(gateway) as asking:
        asking.writer.write(gateway.asked("plain") + gateway.asked("slow"))
        told = [await asking.ask(gateway.asked(case)) for case in ("plain", "in two pieces")]
        told += [await asking.ask(b""), await asking.ask(b"")]
    assert [body for _, _, body in told] == [b"hello"] * 4


def failing(app: App) -> Asgi:
    """Fails where the short way hands over, before anybody has taken the connection on which the host was asked."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if CALL in scope:
            raise RuntimeError("the long way ends at its beginning")
        await app(scope, receive, send)

    return answer


async def test_a_host_that_was_asked_for_nobody_is_hung_up_on(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, failing) as gateway, client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        assert (await asking.ask(gateway.asked("never")))[0] == 500
        await gateway.box.left.wait()


async def test_a_host_that_answered_nobody_is_asked_again_on_the_same_connection(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, failing) as gateway:
        for case in ("plain", "not-mine"):
            async with client(gateway) as asking:
                assert (await asking.ask(gateway.asked(case)))[0] == (200 if case == "plain" else 500)
        before = gateway.box.connections
        for _ in range(3):
            async with client(gateway) as asking:
                assert (await asking.ask(gateway.asked("plain")))[0] == 200
        assert gateway.box.connections == before


async def test_a_host_that_refuses_our_ticket_is_one_that_cannot_be_reached(gateway: Gateway) -> None:
    async with client(gateway) as asking:
        await asking.ask(gateway.asked("plain"))
        status, _, body = await asking.ask(gateway.asked("bad-ticket"))
    assert status == 503
    assert b"host_unreachable" in body

"""A whole poold on a loopback port: real ledger, pool, sandboxes and server, on a fake engine."""

import asyncio
import contextlib
import http.client
import os
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from websockets.asyncio.client import connect

from contract.ids import new_id
from contract.models import LOCAL_OWNER
from poold import reconcile
from poold.api.observe import measure
from poold.api.services import Facts, Services
from poold.api.tickets import Refusals, Tickets
from poold.config import Config, PoolSize
from poold.hibernate import Depot
from poold.images import HostImages, Images
from poold.lease.membership import Membership
from poold.ledger import Ledger, audit, sandboxes
from poold.ledger.covering import Replication
from poold.metrics import Metrics
from poold.pool import OVERHEAD_MB, Places, Pool
from poold.pressure import Thresholds
from poold.reconcile import Plan, Recovery
from poold.sandboxes import Defaults, Means, Sandboxes, Sources, notes_in
from poold.serving import serving
from poold.slots import PlainSlots, Slot
from poold.store import Store
from poold.store.folder import open_folder
from poold.strain import Watch
from poold.tasks import Tasks, Tools
from poold.tasks.host import Post
from poold.tasks.posting import Unreached
from poold.tasks.prices import Prices
from poold.tasks.urls import Url
from poold.workspaces import Shelf
from tests.ports import free_port
from tests.signing import Gateway
from tests.unit.poold.poold_fake_engine import FakeEngine

NAME = "here"
TICKETS = b"the gateway's own"
SLOTS = 8
MACHINE_MB = 256 + OVERHEAD_MB  # what a machine of the default shape takes
LIMIT_S = 15.0


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Of a stream of server-sent events, without its comments."""
        blocks = [block for block in self.body.decode().split("\n\n") if block and not block.startswith(":")]
        return [(kind, data) for _, kind, data in map(read_block, blocks)]


def read_block(block: str) -> tuple[int | None, str, Any]:
    """A server-sent event: its number, its kind and its data."""
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    return int(fields["id"]) if "id" in fields else None, fields["event"], orjson.loads(fields["data"])


class OperatorsConnection(http.client.HTTPConnection):
    """A connection to poold's unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(self._path))


@dataclass
class Host:
    """A running poold, as its clients and its tests see it."""

    port: int
    engine: FakeEngine
    pool: Pool
    sandboxes: Sandboxes
    slots: PlainSlots
    ledger_path: Path
    clock: "Clock"
    services: Services
    socket: Path
    gateway: Gateway

    def dial(self, target: str, *, owner: str = LOCAL_OWNER) -> connect:
        """A WebSocket, opened as a gateway does for `owner`."""
        return self.knock_at_socket(target, **self.gateway.headers("WS", target, owner))

    def knock_at_socket(self, target: str, **headers: str) -> connect:
        """A WebSocket, opened with these headers and no others."""
        url = f"ws://127.0.0.1:{self.port}{target}"
        return connect(url, proxy=None, max_size=None, additional_headers=headers)

    async def ask(
        self, method: str, path: str, body: object = None, *, owner: str = LOCAL_OWNER, **headers: str
    ) -> Reply:
        """Ask as a gateway does, for `owner`."""
        return await self.knock(method, path, body, **self.gateway.headers(method, path, owner), **headers)

    async def knock(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Ask at the port with these headers and no others."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        return await asyncio.to_thread(self._ask, connection, method, path, body, headers)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """A request's head, as a gateway sends it."""
        ticket = self.gateway.headers(method, path)
        told = [f"{name}: {value}" for name, value in ticket.items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: a", *told, *lines, "", ""]).encode()

    async def admin(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Ask as the operator, over the unix socket."""
        return await asyncio.to_thread(self._ask, OperatorsConnection(self.socket), method, path, body, headers)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object, headers: dict[str, str]
    ) -> Reply:
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            told = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, told, reply.read())

    @contextlib.asynccontextmanager
    async def follow(self, path: str, *, as_operator: bool = False, **headers: str) -> AsyncIterator["Stream"]:
        """A stream of server-sent events, read as it comes."""
        if as_operator:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        try:
            writer.write(self.head("GET", path, "Accept: text/event-stream", *lines))
            status = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in status, status
            yield Stream(reader)
        finally:
            writer.close()

    async def audit(self, **filters: str) -> list[audit.Entry]:
        """The rows of the audit, once everything that was submitted is written."""
        await self.services.ledger.write(lambda _: None, durable=False)
        return await self.services.ledger.read(lambda db: audit.listed(db, limit=10_000, **filters))

    async def create(self, *, owner: str = LOCAL_OWNER, **wanted: object) -> str:
        reply = await self.ask("POST", "/v1/sandboxes", wanted, owner=owner)
        assert reply.status == 201, reply.body
        sandbox_id: str = reply.json["id"]
        return sandbox_id

    async def exec(self, sandbox_id: str, cmd: str, **more: object) -> Reply:
        return await self.ask("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"cmd": cmd, **more})

    async def state(self, sandbox_id: str) -> str:
        state: str = (await self.ask("GET", f"/v1/sandboxes/{sandbox_id}")).json["state"]
        return state

    async def file(self, method: str, sandbox_id: str, path: str, body: object = None, **headers: str) -> Reply:
        asked = urllib.parse.urlencode({"path": path})
        return await self.ask(method, f"/v1/sandboxes/{sandbox_id}/files?{asked}", body, **headers)

    async def assert_nothing_is_used(self) -> None:
        """No slot, no memory and no machine but a warm one is in use: as many sandboxes as fit can be created again."""
        self.engine.broken.clear()
        self.engine.held.clear()
        self.engine.guests_say.clear()
        await self.until(
            lambda: len(self.engine.machines) <= 1 and len(self.engine.machines) + self.slots.free == SLOTS
        )
        made = 0
        while made < SLOTS:  # the last place may just be taken by a machine that becomes warm
            reply = await self.ask("POST", "/v1/sandboxes")
            assert reply.status in (201, 503), reply.body
            made += reply.status == 201
        assert (await self.ask("POST", "/v1/sandboxes")).status == 503
        assert len(self.engine.machines) == SLOTS

    async def later(self, seconds: float, *made: str) -> None:
        """So much time passes, and what is due for these sandboxes begins."""
        self.clock.advance(seconds)
        for sandbox_id in made:
            self.sandboxes.wait_for(await self.sandboxes.get(sandbox_id))

    async def until_state(self, sandbox_id: str, state: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.state(sandbox_id) != state:
                await asyncio.sleep(0.005)

    async def ready(self) -> None:
        """Every share of the pool has its floor."""
        await self.until(lambda: all(share["warm"] >= share["floor"] for share in self.pool.keeper.shares()))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                await asyncio.sleep(0.005)


class Stream:
    """What comes of a chunked stream of server-sent events."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._waiting = b""

    async def block(self) -> str | None:
        """The next event or comment as it was sent; None at the end of the stream."""
        while b"\n\n" not in self._waiting:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            self._waiting += (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                assert not self._waiting, "the stream ends in the middle of an event"
                return None
        block, _, self._waiting = self._waiting.partition(b"\n\n")
        return block.decode()

    async def next(self) -> tuple[int | None, str, Any] | None:
        """The next event; None at the end of the stream."""
        async with asyncio.timeout(LIMIT_S):
            while (block := await self.block()) is not None:
                if not block.startswith(":"):
                    return read_block(block)
        return None

    async def rest(self) -> list[tuple[int | None, str, Any]]:
        """All events until the stream ends."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


class Clock:
    """Milliseconds that are never the same twice. A test may let them pass faster."""

    def __init__(self) -> None:
        self._last = 0
        self._ahead_ms = 0

    def __call__(self) -> int:
        self._last = max(self._last + 1, self._ahead_ms + time.time_ns() // 1_000_000)
        return self._last

    def advance(self, seconds: float) -> None:
        self._ahead_ms += int(seconds * 1000)


async def nobody_listens(_url: Url, _headers: Mapping[str, str], _body: bytes) -> int:
    raise Unreached("nobody listens")


@contextlib.asynccontextmanager
async def open_host(
    folder: Path,
    *,
    warm: int = 0,
    slots: int = SLOTS,
    memory_mb: int | None = None,
    engine: FakeEngine | None = None,
    images: Images | None = None,
    recover: bool = False,
    keys: bytes | None = TICKETS,
    certificates: Callable[[Path], None] = lambda _: None,
    post: Post = nobody_listens,
    settings: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    replication: Replication | None = None,
    store_folder: Path | None = None,
    cluster: str = "cl-1",
    membership: Membership | None = None,
) -> AsyncIterator[Host]:
    """A poold with `slots` places and memory for as many machines, `warm` of them kept warm.

    With `recover` it begins as a daemon does: what a former one left is cleared and taken over. Its folder of keys has
    `keys` in it, its own gateway's unless others are given, and what `certificates` puts there.
    """
    engine = engine or FakeEngine(folder / "fakes")
    places = PlainSlots(slots, uid=os.getuid())
    images = images or HostImages()
    clock = Clock()
    sources = Sources(now_ms=clock, unix_ns=time.time_ns, entropy=os.urandom)
    gateway = Gateway(NAME, clock)
    pki = _pki(folder / "pki", gateway.public if keys is TICKETS else keys)
    certificates(pki)
    config = _config(folder, pki, settings or {})
    room = Places(
        places, memory_budget_mb=memory_mb or slots * MACHINE_MB, new_machine_id=lambda: new_id("vm", os.urandom)
    )
    metrics = Metrics()
    watch = Watch(folder, metrics, Thresholds(disk_free_mb=None, memory_available_mb=None))
    pool = Pool(engine, images, room, sizes={"host": PoolSize(warm, warm)} if warm else {}, gate=watch.gate)
    facts = _facts(config, clock(), slots)
    tickets = Tickets(NAME, pki / "tickets.pub", now_ms=clock)
    try:
        async with (
            asyncio.timeout(limit_s),
            contextlib.AsyncExitStack() as stack,
            Ledger.open(config.ledger_path, replication=replication) as ledger,
        ):
            todo, recovery = await _observe(ledger, engine, clock) if recover else (Plan(), Recovery(clock()))
            store = await stack.enter_async_context(open_folder(store_folder or folder / "store"))
            depot = Depot(
                store,
                engine,
                images,
                folder / "goldens",
                cluster=cluster,
                notes=notes_in(ledger, clock),
                entropy=os.urandom,
            )
            shelf = Shelf(store, cluster, config.workspaces, folder / "workspaces", clock)
            means = Means(ledger, pool, images, sources, metrics, depot=depot, shelf=shelf)
            async with pool.running(), Sandboxes(means, Defaults("host", config.rules)).running() as host:
                await reconcile.take_over(todo, means, host, _slot_of(engine, places), recovery)
                refusals = Refusals(ledger, metrics, now_ms=clock)
                async with (
                    open_folder(config.tasks.store) as store,
                    _tasks(means, host, config, post, store).running() as tasks,
                ):
                    told = (watch, recovery, facts, tickets, refusals, tasks)
                    member = membership or Membership()
                    found = Services(host, pool, ledger, images, metrics, None, *told, membership=member)
                    measure(found)
                    ledger_path, socket = config.ledger_path, config.socket
                    async with serving(found, config):
                        yield Host(config.port, engine, pool, host, places, ledger_path, clock, found, socket, gateway)
    finally:
        engine.close()


async def _observe(ledger: Ledger, engine: FakeEngine, clock: Clock) -> tuple[Plan, Recovery]:
    """The beginning of `poold.daemon`, before there are slots."""
    base_uid = os.getuid() if engine.name == "local" else 0
    todo = reconcile.plan(await ledger.read(sandboxes.alive), engine.found(), base_uid=base_uid)
    return todo, await reconcile.clear(todo, engine, ledger, now_ms=clock())


def _facts(config: Config, now_ms: int, slots: int) -> Facts:
    return Facts(
        name=NAME,
        address=config.advertise,
        version="0",
        engine="fake",
        accel="none",
        started_ms=now_ms,
        slots=slots,
        limits=config.limits,
        default_image=config.default_image,
        ledger_path=config.ledger_path,
        images_dir=config.images_dir,
    )


def _slot_of(engine: FakeEngine, places: PlainSlots) -> Callable[[int], Slot | None]:
    """With the local engine a slot is only a number."""
    if engine.name == "local":
        return lambda _: places.take_nowait()
    return lambda number: take_slot(places, number)


def take_slot(slots: PlainSlots, number: int) -> Slot | None:
    """The slot of a machine that is there already; None if there is no such slot, or it is taken."""
    for slot in slots._free:
        if slot.number == number:
            slots._free.remove(slot)
            return slot
    return None


def _pki(folder: Path, keys: bytes | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if keys is not None:
        (folder / "tickets.pub").write_bytes(keys)
    return folder


def _tasks(means: Means, host: Sandboxes, config: Config, post: Post, store: Store) -> Tasks:
    image = config.default_image
    tools = Tools.make(means, host, config.tasks, Prices(), state_dir=config.state_dir, image=image, store=store)
    return Tasks(tools, post, lambda: 0.0)


def _config(folder: Path, pki: Path, settings: Mapping[str, str]) -> Config:
    variables = {
        "POOLD_ENGINE": "local",
        "POOLD_LISTEN": f"127.0.0.1:{free_port()}",
        "POOLD_STATE_DIR": str(folder),
        "POOLD_RUN_DIR": str(folder),
        "POOLD_PKI": str(pki),
        "POOLD_NAME": NAME,
        **settings,
    }
    return Config.from_environment(variables, host_memory_mb=16_384, host_cpus=2)

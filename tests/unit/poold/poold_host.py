"""A whole poold on a loopback port: real ledger, pool, sandboxes and server, on a fake engine."""

import asyncio
import contextlib
import http.client
import os
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from contract.ids import new_id
from poold.api.observe import measure
from poold.api.services import Facts, Services
from poold.config import Config, PoolSize
from poold.images import HostImages
from poold.ledger import Ledger
from poold.metrics import Metrics
from poold.pool import OVERHEAD_MB, Places, Pool
from poold.pressure import Thresholds
from poold.reconcile import Recovery
from poold.sandboxes import Defaults, Means, Sandboxes, Sources
from poold.serving import serving
from poold.slots import PlainSlots
from poold.strain import Watch
from tests.unit.poold.poold_fake_engine import FakeEngine

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
        """Of a stream of server-sent events."""
        blocks = [dict(line.split(": ", 1) for line in b.split("\n")) for b in self.body.decode().split("\n\n") if b]
        return [(block["event"], orjson.loads(block["data"])) for block in blocks]


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
    urls: Callable[[str], str] = field(init=False)

    def __post_init__(self) -> None:
        self.urls = lambda path: f"ws://127.0.0.1:{self.port}{path}"

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: object, headers: dict[str, str]) -> Reply:
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            told = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, told, reply.read())

    async def create(self, **wanted: object) -> str:
        reply = await self.ask("POST", "/v1/sandboxes", wanted)
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

    async def ready(self) -> None:
        """Every share of the pool has its floor."""
        await self.until(lambda: all(share["warm"] >= share["floor"] for share in self.pool.keeper.shares()))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                await asyncio.sleep(0.005)


class Clock:
    """Milliseconds that are never the same twice."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        return self._last


@contextlib.asynccontextmanager
async def open_host(
    folder: Path, *, warm: int = 0, slots: int = SLOTS, memory_mb: int | None = None, engine: FakeEngine | None = None
) -> AsyncIterator[Host]:
    """A poold with `slots` places and memory for as many machines, `warm` of them kept warm."""
    engine = engine or FakeEngine()
    places = PlainSlots(slots, uid=os.getuid())
    images = HostImages()
    clock = Clock()
    sources = Sources(now_ms=clock, unix_ns=time.time_ns, entropy=os.urandom)
    variables = {
        "POOLD_ENGINE": "local",
        "POOLD_LISTEN": f"127.0.0.1:{_free_port()}",
        "POOLD_STATE_DIR": str(folder),
        "POOLD_RUN_DIR": str(folder),
    }
    config = Config.from_environment(variables, host_memory_mb=16_384, host_cpus=2)
    budget_mb = memory_mb or slots * MACHINE_MB
    room = Places(places, memory_budget_mb=budget_mb, new_machine_id=lambda: new_id("vm", os.urandom))
    metrics = Metrics()
    watch = Watch(folder, metrics, Thresholds(disk_free_mb=None, memory_available_mb=None))
    pool = Pool(engine, images, room, sizes={"host": PoolSize(warm, warm)} if warm else {}, gate=watch.gate)
    facts = Facts("0", "fake", "none", clock(), slots, config.limits, config.ledger_path)
    try:
        async with asyncio.timeout(LIMIT_S), Ledger.open(config.ledger_path) as ledger, pool.running():
            means = Means(ledger, pool, images, sources, metrics)
            async with Sandboxes(means, Defaults("host", config.rules)).running() as host:
                found = Services(host, pool, ledger, images, metrics, None, watch, Recovery(clock()), facts)
                measure(found)
                async with serving(found, config):
                    yield Host(config.port, engine, pool, host, places, config.ledger_path, clock, found, config.socket)
    finally:
        engine.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

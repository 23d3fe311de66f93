"""What the host does with sandboxes: create, find, run something in, remove. The ledger is told before and after."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from contract.errors import CapacityError, WarrenError, WrongState
from contract.ids import new_id
from contract.models import CreateSandbox, Sandbox, Shape
from contract.states import LIVE, Event, State
from poold.errors import MachineDied
from poold.images import Images
from poold.ledger import Ledger, sandboxes
from poold.lifetimes import finish
from poold.link import Guest
from poold.pool import Place, Pool

log = logging.getLogger("poold.sandboxes")

STOPPING = "this host is being stopped"
ENTROPY_BYTES = 64  # twice what the kernel's generator can hold


@dataclass(frozen=True)
class Sources:
    """Clock and randomness, read where the program begins."""

    now_ms: Callable[[], int]
    unix_ns: Callable[[], int]
    entropy: Callable[[int], bytes]


@dataclass(eq=False)
class Live:
    """A running sandbox's machine, and what ends it."""

    place: Place
    guest: Guest
    deadline: asyncio.TimerHandle | None = None


class Sandboxes:
    """All sandboxes of this host. Open as a block: after it, none of them has a machine."""

    def __init__(
        self,
        ledger: Ledger,
        pool: Pool,
        images: Images,
        sources: Sources,
        *,
        default_image: str,
        default_timeout_s: int,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._images = images
        self._sources = sources
        self._default_image = default_image
        self._default_timeout_s = default_timeout_s
        self._live: dict[str, Live] = {}
        self._creating: set[asyncio.Task[Any]] = set()
        self._created = asyncio.Event()  # a creation came to its end
        self._stopping = False
        self._tasks = asyncio.TaskGroup()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Sandboxes"]:
        """Serve during the block. What a former daemon left unfinished is written off first."""
        await self._write_off()
        async with self._tasks:
            try:
                yield self
            finally:
                await finish(self.stop())

    async def stop(self) -> None:
        """End every sandbox and every creation under way, and create none any more. Whoever waits for one is told."""
        self._stopping = True
        for task in self._creating:
            task.cancel()
        while self._creating:
            self._created.clear()
            await self._created.wait()
        for sandbox_id in list(self._live):
            with contextlib.suppress(WrongState):
                await self.destroy(sandbox_id, reason="the host daemon was stopped")

    async def create(self, request: CreateSandbox) -> Sandbox:
        """A running sandbox whose guest has answered. If this raises or is cancelled, nothing runs for it."""
        if self._stopping:
            raise CapacityError(STOPPING)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 — a coroutine runs in a task
        self._creating.add(task)
        try:
            return await self._create(request)
        except asyncio.CancelledError:
            if self._stopping and not task.uncancel():  # by `stop` and by nobody else
                raise CapacityError(STOPPING) from None
            raise
        finally:
            self._creating.discard(task)
            self._created.set()

    async def _create(self, request: CreateSandbox) -> Sandbox:
        shape = self._shape(request)
        place = await self._pool.take(shape)
        sandbox = self._new(request, shape)
        try:
            # A machine that no row names is nobody's and is removed by the next start, so the intent may become durable
            # while the machine wakes. Nobody hears of the sandbox before both are done.
            intent = self._ledger.submit(partial(_begin, sandbox=sandbox, machine=place.machine_id))
            guest = await self._pool.open(place, lambda: self._identity(sandbox.id, request))
            await asyncio.shield(intent)
            # What a loss of power would take back here is that the machine answered; it would take the machine, too.
            running = await self._move(sandbox.id, Event.READY, durable=False)
        except BaseException as error:
            await finish(self._give_up(sandbox.id, place, error))
            raise
        self._watch(running, Live(place, guest))
        return running

    async def get(self, sandbox_id: str) -> Sandbox:
        return await self._ledger.read(lambda db: sandboxes.get(db, sandbox_id))

    async def listed(self, *, states: Iterable[State], after: str | None, limit: int) -> list[Sandbox]:
        return await self._ledger.read(lambda db: sandboxes.listed(db, states=states, after=after, limit=limit))

    async def guest(self, sandbox_id: str) -> Guest:
        """The guest of a running sandbox, or an error that says why there is none."""
        live = self._live.get(sandbox_id)
        if live is not None:
            return live.guest
        sandbox = await self.get(sandbox_id)
        if sandbox.state is State.ERROR:
            raise MachineDied(f"sandbox {sandbox_id} failed: {sandbox.reason}", state=sandbox.state)
        raise WrongState(f"sandbox {sandbox_id} is {sandbox.state}, not running", state=sandbox.state)

    async def destroy(self, sandbox_id: str, reason: str = "destroyed by request") -> Sandbox:
        """Stop the sandbox and give back all that it used. Destroying a stopped one changes nothing."""
        try:
            sandbox = await self._move(sandbox_id, Event.STOP, reason=reason)
        except WrongState:
            sandbox = await self.get(sandbox_id)
            if sandbox.state is not State.STOPPED:
                raise
        await finish(self._free(sandbox_id))
        return sandbox

    def _shape(self, request: CreateSandbox) -> Shape:
        image = self._default_image if request.image is None else request.image
        defaults = self._images.find(image).defaults
        return Shape(
            image=image,
            vcpus=request.vcpus or defaults.vcpus,
            memory_mb=request.memory_mb or defaults.memory_mb,
            disk_mb=request.disk_mb or defaults.disk_mb,
        )

    def _new(self, request: CreateSandbox, shape: Shape) -> Sandbox:
        now_ms = self._sources.now_ms()
        return Sandbox(
            id=new_id("sb", self._sources.entropy),
            state=State.PENDING,
            shape=shape,
            metadata=request.metadata,
            created_ms=now_ms,
            expires_ms=now_ms + 1000 * (request.timeout_sec or self._default_timeout_s),
        )

    def _identity(self, sandbox_id: str, request: CreateSandbox) -> dict[str, Any]:
        """What makes a clone a machine of its own. The clock is read last: it is what grows old."""
        return {
            "generation": 1,
            "id": sandbox_id,
            "hostname": sandbox_id,
            "machine_id": self._sources.entropy(16).hex(),
            "entropy": base64.b64encode(self._sources.entropy(ENTROPY_BYTES)).decode(),
            "env": request.env,
            "unix_ns": self._sources.unix_ns(),
        }

    async def _move(self, sandbox_id: str, event: Event, *, reason: str | None = None, durable: bool = True) -> Sandbox:
        now_ms = self._sources.now_ms()
        move = partial(sandboxes.move, sandbox_id=sandbox_id, event=event, now_ms=now_ms, reason=reason)
        return await self._ledger.write(move, durable=durable)

    async def _give_up(self, sandbox_id: str, place: Place, error: BaseException) -> None:
        """Undo a creation, whatever of it was done."""
        await self._pool.release(place)
        reason = error.message if isinstance(error, WarrenError) else f"creation was cut short ({type(error).__name__})"
        with contextlib.suppress(WarrenError):  # there is no row, or it was stopped meanwhile
            await self._move(sandbox_id, Event.FAIL, reason=reason)

    def _watch(self, sandbox: Sandbox, live: Live) -> None:
        """From now on the sandbox ends with its machine, and its machine with its deadline."""
        self._live[sandbox.id] = live
        if live.place.machine is not None:
            live.place.machine.ended.add_done_callback(lambda ended: self._ended(sandbox.id, ended.result()))
        if sandbox.expires_ms is not None:
            loop = asyncio.get_running_loop()
            left_s = (sandbox.expires_ms - self._sources.now_ms()) / 1000
            live.deadline = loop.call_later(max(0.0, left_s), self._expired, sandbox.id)

    def _ended(self, sandbox_id: str, reason: str) -> None:
        if sandbox_id in self._live:
            self._tasks.create_task(self._fail(sandbox_id, f"its machine ended: {reason}"))

    def _expired(self, sandbox_id: str) -> None:
        if sandbox_id in self._live:
            self._tasks.create_task(self._destroy_expired(sandbox_id))

    async def _destroy_expired(self, sandbox_id: str) -> None:
        with contextlib.suppress(WrongState):  # it failed at the same moment
            await self.destroy(sandbox_id, reason="its time was up")

    async def _fail(self, sandbox_id: str, reason: str) -> None:
        log.warning("sandbox failed", extra={"sandbox": sandbox_id, "why": reason})
        with contextlib.suppress(WrongState):  # it was stopped at the same moment
            await self._move(sandbox_id, Event.FAIL, reason=reason)
        await finish(self._free(sandbox_id))

    async def _free(self, sandbox_id: str) -> None:
        live = self._live.pop(sandbox_id, None)
        if live is not None:
            if live.deadline is not None:
                live.deadline.cancel()
            await self._pool.release(live.place)

    async def _write_off(self) -> None:
        """No machine survives a restart of the daemon in this version, and a sandbox is not left to look alive."""
        now_ms = self._sources.now_ms()
        for sandbox in await self.listed(states=LIVE, after=None, limit=1_000_000):
            write = partial(
                sandboxes.move,
                sandbox_id=sandbox.id,
                event=Event.FAIL,
                now_ms=now_ms,
                reason="the host daemon was restarted",
            )
            await self._ledger.write(write)


def _begin(db: Any, sandbox: Sandbox, machine: str) -> None:
    """The intent: the sandbox is being started, in this machine."""
    sandboxes.add(db, sandbox)
    sandboxes.move(db, sandbox.id, Event.CLAIM, now_ms=sandbox.created_ms, machine=machine)

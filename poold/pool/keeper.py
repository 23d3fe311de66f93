"""The keeper: one task owns the filling of the pool."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from contract.errors import CapacityError, WarrenError
from contract.models import Shape
from poold.config import PoolSize
from poold.lifetimes import finish
from poold.pool.places import Place
from poold.stock import Demand, Drop, Fill, plan, victim

log = logging.getLogger("poold.pool")

GRACE_S = 0.2  # after a claim: time for its caller to run a first command on an otherwise idle host
PATIENCE_S = 0.5
POLL_S = 0.02
RECHECK_S = 5.0  # demand falls with time, so the pool is looked at also when nothing happens
RETRY_AFTER_FAILURE_S = 5.0

Make = Callable[[Shape], Awaitable[Place]]
Release = Callable[[Place], Awaitable[None]]


class Keeper:
    """The warm machines, and the task that sees to it that they are as many as wanted."""

    def __init__(self, *, rooms: Callable[[], int], make: Make, release: Release) -> None:
        self._rooms = rooms
        self._make = make
        self._release = release
        self._warm: list[Place] = []
        self._demand: dict[Shape, Demand] = {}
        self._standing: dict[Shape, PoolSize] = {}  # the shapes that the operator asked for
        self._look = asyncio.Event()
        self._opening = 0  # claims under way
        self._opened_at = 0.0  # when the last one ended
        self._filling: asyncio.Event | None = None  # set when the machine being made is warm, or given up
        self._is_strained = False  # the host is: no machine is kept warm
        self._is_closed = False  # it is being emptied: likewise

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep machines warm during the block. After it there are none."""
        # A keeper that fails in a way that nobody foresaw takes the daemon with it: a restart is safer than a guess.
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep())
            try:
                yield
            finally:
                keeper.cancel()
                await finish(self._close(keeper))

    def resize(self, shape: Shape, size: PoolSize) -> None:
        """From now on keep between `size.floor` and `size.ceiling` machines of `shape` warm."""
        self._standing[shape] = size
        self._demand[shape] = Demand(size)
        self._look.set()

    def strain(self, is_strained: bool) -> None:
        """Whether the host is short of something: then warm machines go first."""
        self._is_strained = is_strained
        self._look.set()

    async def close(self) -> None:
        """Keep no machine warm until `open`, and return when there is none."""
        self._is_closed = True
        if self._filling is not None:
            await self._filling.wait()
        await self.refill(None)
        self._look.set()

    def open(self) -> None:
        self._is_closed = False
        self._look.set()

    def look(self) -> None:
        """Something changed: there may be something to do."""
        self._look.set()

    def asked(self, shape: Shape) -> None:
        """Somebody wants a machine of `shape`, now."""
        self._demand.setdefault(shape, Demand(PoolSize(0, 1))).claimed(time.monotonic())
        self._look.set()

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """A claim is under way: it and the first requests after it come before filling."""
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1
            self._opened_at = time.monotonic()
            self._look.set()

    def pop(self, shape: Shape) -> Place | None:
        """A warm machine of `shape`, if there is one."""
        for place in self._warm:
            if place.shape == shape:
                self._warm.remove(place)
                return place
        return None

    async def make_room(self, shape: Shape) -> bool:
        """Let a warm machine of another shape go, or wait for one that is being made. False if there is neither."""
        if (spare := victim(self._count(), shape)) is not None:
            await self._drop(spare)
        elif self._filling is not None:
            await self._filling.wait()  # the last room may be about to become a warm machine
        else:
            return False
        return True

    async def refill(self, image: str | None) -> None:
        """Let the warm machines of `image` (of all, if None) go; new ones take their place."""
        for place in [place for place in self._warm if image in (None, place.shape.image)]:
            if place in self._warm:  # it may have been claimed meanwhile
                self._warm.remove(place)
                await self._release(place)

    def shares(self) -> list[dict[str, Any]]:
        """What the pool has and wants of each shape, for people and programs to look at."""
        warm, targets = self._count(), self._targets()
        return [
            {
                **vars(shape),
                "warm": warm[shape],
                "wanted": targets[shape],
                "floor": demand.size.floor,
                "ceiling": demand.size.ceiling,
            }
            for shape, demand in self._demand.items()
        ]

    def _count(self) -> Counter[Shape]:
        return Counter(place.shape for place in self._warm)

    def _targets(self) -> dict[Shape, int]:
        now = time.monotonic()
        is_shut = self._is_strained or self._is_closed
        return {shape: 0 if is_shut else demand.target(now) for shape, demand in self._demand.items()}

    async def _keep(self) -> None:
        while True:
            self._look.clear()
            await self._let_claims_pass()
            await self._forget_dead()
            targets = self._targets()
            for shape in [shape for shape, target in targets.items() if not target and shape not in self._standing]:
                del self._demand[shape]  # callers may ask for any number of shapes; those of the past are forgotten
            actions = plan(self._count(), targets, rooms=self._rooms())
            # Only the first: a claim may have changed everything by the time that it is done.
            match actions[0] if actions else None:
                case Drop(shape):
                    await self._drop(shape)
                case Fill(shape):
                    await self._fill(shape)
                case None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RECHECK_S):
                            await self._look.wait()

    async def _let_claims_pass(self) -> None:
        """Claims and the first requests after them come before filling; under steady load it is filled all the same."""
        give_up = time.monotonic() + PATIENCE_S
        while self._opening or time.monotonic() - self._opened_at < GRACE_S:
            if time.monotonic() > give_up:
                return
            await asyncio.sleep(POLL_S)

    async def _drop(self, shape: Shape) -> None:
        place = self.pop(shape)
        if place is not None:
            await self._release(place)

    async def _forget_dead(self) -> None:
        for place in [place for place in self._warm if place.machine is None or place.machine.ended.done()]:
            log.warning("a warm machine ended", extra={"machine": place.machine_id})
            self._warm.remove(place)
            await self._release(place)

    async def _fill(self, shape: Shape) -> None:
        """One more warm machine, or a pause if that failed: a host that cannot restore must not spin."""
        self._filling = asyncio.Event()
        try:
            place = await self._make(shape)
        except CapacityError:
            pass  # claims were faster; there is room again when a sandbox ends
        except WarrenError as error:
            log.error("filling the pool failed", extra={"shape": str(shape), "why": str(error)})
        else:
            self._warm.append(place)
            if place.machine is not None:
                place.machine.ended.add_done_callback(lambda _: self._look.set())
            return
        finally:
            self._filling.set()
            self._filling = None
        await asyncio.sleep(RETRY_AFTER_FAILURE_S)

    async def _close(self, keeper: "asyncio.Task[None]") -> None:
        await asyncio.wait([keeper])
        while self._warm:
            await self._release(self._warm.pop())

"""The warm pool: machines that are restored, identity-free and paused, so that a claim is a resume and one call.

A claim goes through a *place*: `take` finds room and changes nothing else, so that the caller can write down what
it is about to do; `open` makes the place's machine answer under its own identity; `release` gives everything back.
"""

import asyncio
import base64
import contextlib
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contract.errors import CapacityError, WarrenError
from contract.models import Shape
from poold.config import PoolSize
from poold.engines import Engine, Machine
from poold.errors import GuestError, GuestRefused, HostFault, MachineDied
from poold.images import Images
from poold.lifetimes import both, finish
from poold.link import Guest
from poold.slots import Slot
from poold.stock import Demand, Drop, Fill, plan, victim

log = logging.getLogger("poold.pool")

OVERHEAD_MB = 160  # of a machine besides its RAM: the emulator and the code that it translates
BOOT_LIMIT_S = 120.0  # of a cold boot under emulation on a busy host; about 5 s on an idle one
DIAL_LIMIT_S = 0.5  # a guest that boots drops what is sent to it, and TCP would try again only after a second
REHEARSALS = 16  # in a golden machine: afterwards the paths of a first claim are in memory
REHEARSALS_OF_A_CLONE = 3  # the first translates the code, the others link it
IDENTITY_LIMIT_S = 10.0
GRACE_S = 0.2  # after a claim: time for its caller to run a first command on an otherwise idle host
PATIENCE_S = 0.5
POLL_S = 0.02
RECHECK_S = 5.0  # demand falls with time, so the pool is looked at also when nothing happens
RETRY_AFTER_FAILURE_S = 5.0

# Nobody: what a machine rehearses a claim with. The next identity replaces all of it, and costs least if its names
# are as long: then no file changes its size.
NOBODY_ID = "sb-" + "0" * 16
NOBODY = {"generation": 1, "hostname": NOBODY_ID, "machine_id": "0" * 32, "id": NOBODY_ID, "env": {}}

BROKEN = (HostFault, GuestError, GuestRefused, MachineDied)


class Slots(Protocol):
    """Places for machines on this host."""

    @property
    def free(self) -> int: ...

    def take_nowait(self) -> Slot:
        """A slot that nobody else has, or `NoFreeSlot`."""
        ...

    async def give_back(self, slot: Slot) -> None:
        """The slot may be taken again, with nothing left of its last machine."""
        ...


@dataclass(eq=False)
class Place:
    """Room for one machine on this host, and the machine once there is one."""

    shape: Shape
    slot: Slot
    machine_id: str
    machine: Machine | None = None
    guest: Guest | None = None


class Pool:
    """Keeps warm machines of each shape. Open as a block: after it, all of its machines are gone."""

    def __init__(
        self,
        engine: Engine,
        images: Images,
        slots: Slots,
        *,
        sizes: Mapping[str, PoolSize],
        memory_budget_mb: int,
        new_machine_id: Callable[[], str],
    ) -> None:
        self._engine = engine
        self._images = images
        self._slots = slots
        self._sizes = sizes
        self._memory_left_mb = memory_budget_mb
        self._new_machine_id = new_machine_id
        self._warm: list[Place] = []
        self._demand: dict[Shape, Demand] = {}
        self._standing: frozenset[Shape] = frozenset()  # the shapes that the operator asked for
        self._building: dict[Shape, asyncio.Lock] = {}
        self._look = asyncio.Event()
        self._opening = 0  # claims under way
        self._opened_at = 0.0  # when the last one ended
        self._filling: asyncio.Event | None = None  # set when the machine being made is warm, or given up

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Pool"]:
        """Keep the pool filled during the block."""
        for name, size in self._sizes.items():
            self._demand[self._images.find(name).defaults] = Demand(size)
        self._standing = frozenset(self._demand)
        # A keeper that fails in a way that nobody foresaw takes the daemon with it: a restart is safer than a guess.
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep())
            try:
                yield self
            finally:
                keeper.cancel()
                await finish(self._close(keeper))

    async def take(self, shape: Shape) -> Place:
        """A place for a machine of `shape`: a warm one, or room to restore one. Raises `CapacityError`."""
        self._demand.setdefault(shape, Demand(PoolSize(0, 1))).claimed(time.monotonic())
        self._look.set()
        while True:
            if (place := self._take_warm(shape)) is not None:
                return place
            try:
                return self._room(shape)
            except CapacityError:
                if (spare := victim(self._count(), shape)) is not None:
                    await self._drop(spare)
                elif self._filling is not None:
                    await self._filling.wait()  # the last room may be about to become a warm machine
                else:
                    raise

    def _take_warm(self, shape: Shape) -> Place | None:
        for place in self._warm:
            if place.shape == shape:
                self._warm.remove(place)
                return place
        return None

    async def open(self, place: Place, identity: Callable[[], dict[str, Any]]) -> Guest:
        """Make the place's machine run, under an identity of its own. On failure the place still has to be released."""
        self._opening += 1
        try:
            return await self._open(place, identity)
        finally:
            self._opening -= 1
            self._opened_at = time.monotonic()
            self._look.set()

    async def _open(self, place: Place, identity: Callable[[], dict[str, Any]]) -> Guest:
        if place.machine is not None:
            try:
                return await self._identify(place, identity)
            except BROKEN as error:
                log.warning(
                    "a warm machine failed, restoring another", extra={"machine": place.machine_id, "why": str(error)}
                )
                await self._clear(place)
        await self._restore(place)
        return await self._identify(place, identity)

    async def release(self, place: Place) -> None:
        """Everything of the place is given back. Succeeds if it is already."""
        await finish(self._release(place))

    def shares(self) -> list[dict[str, Any]]:
        """What the pool has and wants of each shape, for people and programs to look at."""
        warm, now = self._count(), time.monotonic()
        return [
            {**vars(shape), "warm": warm[shape], "wanted": demand.target(now), "floor": demand.size.floor}
            for shape, demand in self._demand.items()
        ]

    def _count(self) -> Counter[Shape]:
        return Counter(place.shape for place in self._warm)

    def _room(self, shape: Shape) -> Place:
        need_mb = shape.memory_mb + OVERHEAD_MB
        if need_mb > self._memory_left_mb:
            raise CapacityError(f"no room for {need_mb} MB on this host, {self._memory_left_mb} MB are left")
        place = Place(shape, self._slots.take_nowait(), self._new_machine_id())
        self._memory_left_mb -= need_mb
        return place

    async def _release(self, place: Place) -> None:
        if place.machine_id == "":
            return
        machine_id, place.machine_id = place.machine_id, ""
        self._hang_up(place)
        await self._engine.destroy(machine_id)
        await self._slots.give_back(place.slot)
        self._memory_left_mb += place.shape.memory_mb + OVERHEAD_MB
        self._look.set()

    async def _clear(self, place: Place) -> None:
        """Destroy the place's machine and keep the place."""
        self._hang_up(place)
        await finish(self._engine.destroy(place.machine_id))

    def _hang_up(self, place: Place) -> None:
        if place.guest is not None:
            place.guest.close()
        place.guest = place.machine = None

    async def _restore(self, place: Place) -> None:
        """Put a machine into the place, paused. The first of its shape on this host is booted and frozen."""
        image = self._images.find(place.shape.image)
        async with self._building.setdefault(place.shape, asyncio.Lock()):
            snapshot = await self._engine.build_snapshot(image, place.shape, place.slot, self.settle)
        place.machine = await self._engine.restore(snapshot, place.slot, place.machine_id)
        place.guest = self._guest(place.machine)

    def _guest(self, machine: Machine) -> Guest:
        return Guest(functools.partial(self._engine.dial, machine), machine.ended)

    async def _identify(self, place: Place, identity: Callable[[], dict[str, Any]]) -> Guest:
        machine, guest = place.machine, place.guest
        if machine is None or guest is None or machine.ended.done():
            raise MachineDied("the machine ended before it was claimed")
        # The call waits in the tap for the machine to wake: one turn of QEMU's loop and not two.
        await both(
            self._engine.resume(machine),
            guest.call("POST", "/identity", identity(), limit_s=IDENTITY_LIMIT_S),
        )
        return guest

    async def settle(self, machine: Machine) -> None:
        """Wait until a machine that boots is ready to be frozen, with the paths of a first claim in its memory."""
        guest = self._guest(machine)
        try:
            async with asyncio.timeout(BOOT_LIMIT_S):
                while not await self.answers(guest, machine):  # noqa: ASYNC110 — we have to ask
                    await asyncio.sleep(0.05)
                for _ in range(REHEARSALS):
                    await guest.call("POST", "/rehearse", self._nobody())
        except TimeoutError as error:
            raise GuestError(f"the guest did not answer within {BOOT_LIMIT_S:g} s of its start") from error
        finally:
            guest.close()

    def _nobody(self) -> dict[str, Any]:
        entropy = base64.b64encode(os.urandom(32)).decode()
        return {**NOBODY, "entropy": entropy, "unix_ns": time.time_ns()}

    async def answers(self, guest: Guest, machine: Machine) -> bool:
        """Whether a machine that boots has come up. Raises `MachineDied` if it never will."""
        try:
            await guest.call("GET", "/health", limit_s=DIAL_LIMIT_S)
        except GuestError:
            if machine.ended.done():
                raise MachineDied(f"the machine ended while it booted: {machine.ended.result()}") from None
            return False
        return True

    # The keeper: one task owns the filling of the pool.

    async def _keep(self) -> None:
        while True:
            self._look.clear()
            await self._let_claims_pass()
            await self._forget_dead()
            now = time.monotonic()
            targets = {shape: demand.target(now) for shape, demand in self._demand.items()}
            for shape in [shape for shape, target in targets.items() if not target and shape not in self._standing]:
                del self._demand[shape]  # callers may ask for any number of shapes; those of the past are forgotten
            actions = plan(self._count(), targets, rooms=self._slots.free)
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
        place = next((place for place in self._warm if place.shape == shape), None)
        if place is not None:
            self._warm.remove(place)
            await self.release(place)

    async def _forget_dead(self) -> None:
        for place in [place for place in self._warm if place.machine is None or place.machine.ended.done()]:
            log.warning("a warm machine ended", extra={"machine": place.machine_id})
            self._warm.remove(place)
            await self.release(place)

    async def _fill(self, shape: Shape) -> None:
        """One more warm machine, or a pause if that failed: a host that cannot restore must not spin."""
        self._filling = asyncio.Event()
        try:
            self._warm.append(await self._new_warm(shape))
            return
        except CapacityError:
            pass  # claims were faster; there is room again when a sandbox ends
        except WarrenError as error:
            log.error("filling the pool failed", extra={"shape": str(shape), "why": str(error)})
        finally:
            self._filling.set()
            self._filling = None
        await asyncio.sleep(RETRY_AFTER_FAILURE_S)

    async def _new_warm(self, shape: Shape) -> Place:
        place = self._room(shape)
        try:
            await self._restore(place)
            await self._rehearse(place)
        except BaseException:
            await self.release(place)
            raise
        return place

    async def _rehearse(self, place: Place) -> None:
        """Run the paths of a claim, so that their code is translated and their pages are there, then pause."""
        if place.machine is None or place.guest is None:
            raise MachineDied("the machine ended while it was restored")
        await self._engine.resume(place.machine)
        for _ in range(REHEARSALS_OF_A_CLONE):
            await place.guest.call("POST", "/rehearse", self._nobody())
            await place.guest.call("GET", "/health")
        await self._engine.pause(place.machine)
        place.machine.ended.add_done_callback(lambda _: self._look.set())

    async def _close(self, keeper: "asyncio.Task[None]") -> None:
        await asyncio.wait([keeper])
        while self._warm:
            await self._release(self._warm.pop())

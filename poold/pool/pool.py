"""Claims: from a place to a machine that answers under its own identity."""

import asyncio
import base64
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from contract.errors import CapacityError, WarrenError
from contract.models import Shape
from poold.config import PoolSize
from poold.engines import Engine, Machine, Snapshot
from poold.errors import GuestError, GuestRefused, HostFault, MachineDied
from poold.images import Image, Images
from poold.lifetimes import beside, both, finish
from poold.link import Guest
from poold.pool.ends import End, Ends
from poold.pool.keeper import Keeper
from poold.pool.outfit import Outfit
from poold.pool.places import Place, Places, Rule

log = logging.getLogger("poold.pool")

BOOT_LIMIT_S = 120.0  # of a cold boot under emulation on a busy host; about 5 s on an idle one
BOOTS = 3  # a guest that finds its timers wrong, as the host was too busy, ends while it boots: the next may be right
DIAL_LIMIT_S = 0.5  # a guest that boots drops what is sent to it, and TCP would try again only after a second
REHEARSALS = 16  # in a golden machine: afterwards the paths of a first claim are in memory
REHEARSALS_OF_A_CLONE = 3  # the first translates the code, the others link it
IDENTITY_LIMIT_S = 10.0
LAST_LIMIT_S = 60.0  # for one that is restored or comes back from disk: there is no other one to try

# Nobody: what a machine rehearses a claim with. The next identity replaces all of it, and costs least if its names
# are as long: then no file changes its size.
NOBODY_ID = "sb-" + "0" * 16
NOBODY = {"generation": 1, "hostname": NOBODY_ID, "machine_id": "0" * 32, "id": NOBODY_ID, "env": {}}

BROKEN = (HostFault, GuestError, GuestRefused, MachineDied)

Identity = Callable[[], dict[str, Any]]
Gate = Callable[[], None]
Observe = Callable[[float], None]


class Pool:
    """Machines of this host: warm ones, and those that were claimed until they are released.

    Open as a block: after it, the machines that nobody claimed are gone. `gate` raises when the host is under pressure.
    `observe` is told how long each call of a guest took.
    """

    def __init__(
        self,
        engine: Engine,
        images: Images,
        places: Places,
        *,
        sizes: Mapping[str, PoolSize],
        gate: Gate = lambda: None,
        observe: Observe = lambda _seconds: None,
        outfit: Outfit | None = None,
    ) -> None:
        self.engine = engine
        self.places = places
        self._images = images
        self._sizes = sizes
        self._gate = gate
        self._observe = observe
        self._outfit = outfit or Outfit()
        self._building: dict[Shape, asyncio.Lock] = {}
        self._ends = Ends(places)
        self.keeper = Keeper(rooms=lambda: places.free, make=self._new_warm, release=self._let_go)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Pool"]:
        """Keep the pool filled during the block."""
        for name, size in self._sizes.items():
            self.keeper.resize(self._images.find(name).defaults, size)
        async with beside(self._ends.keep_trying()), self.keeper.running():
            yield self

    async def take(self, shape: Shape) -> Place:
        """A place for a machine of `shape`: a warm one, or room to restore one. Raises `CapacityError`."""
        self._gate()
        self.keeper.asked(shape)
        return await self._take(shape, lambda: self.keeper.pop(shape) or self.places.take(shape))

    async def take_room(self, shape: Shape, machine_id: str) -> Place:
        """A place for the machine `machine_id`, which is on disk. Raises `CapacityError`."""
        self._gate()
        await finish(self._ends.settle(machine_id))  # of when it was put on disk
        return await self._take(shape, lambda: self.places.take(shape, machine_id))

    async def _take(self, shape: Shape, attempt: Callable[[], Place]) -> Place:
        """A place, for which warm machines of other shapes go if they have to."""
        with self.keeper.claiming():  # or the keeper would have the room that was made before we do
            while True:
                try:
                    return attempt()
                except CapacityError:
                    if not await self.keeper.make_room(shape):
                        raise

    async def open(self, place: Place, identity: Identity, rule: Rule) -> Guest:
        """Make the place's machine run, under an identity of its own. On failure the place still has to be released.

        What it may reach is in force before its first instruction.
        """
        with self.keeper.claiming():
            if place.machine is not None:
                try:
                    await place.tell(rule)
                    return await self._identify(place, identity, IDENTITY_LIMIT_S)
                except BROKEN as error:
                    log.warning(
                        "a warm machine failed, restoring another",
                        extra={"machine": place.machine_id, "why": str(error)},
                    )
                    place.hang_up()
                    await finish(self.engine.destroy(place.machine_id))
            await self._restore(place)
            await place.tell(rule)
            return await self._identify(place, identity, LAST_LIMIT_S)

    async def load(self, place: Place) -> None:
        """Bring the place's machine back from disk, paused. On failure it is on disk as before."""
        place.machine = await both(self.places.guard(place), self.engine.load(place.machine_id, place.slot))
        place.guest = self._guest(place.machine)

    async def reopen(self, place: Place, identity: Identity, rule: Rule) -> Guest:
        """Let a machine that was loaded go on, and tell it what has changed. It reaches what it may from the start."""
        await place.tell(rule)
        return await self._identify(place, identity, LAST_LIMIT_S)

    async def adopt(self, place: Place, rule: Rule) -> Guest:
        """Take over the place's machine and its proxy, which a former daemon started."""
        place.machine = await self.engine.adopt(place.machine_id, place.slot)
        place.guest = self._guest(place.machine)
        await self.places.guard_again(place, rule[0])
        await place.tell(rule)
        await self.engine.resume(place.machine)
        return place.guest

    def redial(self, place: Place, error: WarrenError) -> Guest:
        """Hang up on the place's guest, for everybody else, and call it again."""
        if place.machine is None or place.guest is None:
            raise MachineDied("the machine has ended")
        place.guest.close(error)
        place.guest = self._guest(place.machine)
        return place.guest

    async def release(self, place: Place, error: WarrenError | None = None) -> None:
        """Everything of the place is given back. Succeeds if it is already. What fails is tried again by itself."""
        await finish(self._end(place, self.engine.destroy, error))

    async def put_away(self, place: Place, error: WarrenError | None = None) -> None:
        """The place is given back, and its machine stays on disk. Whoever waits for its guest gets `error`."""
        await finish(self._end(place, self.engine.halt, error))

    async def remove(self, machine_id: str) -> None:
        """Nothing is left of a machine that nobody has the place of: it is on disk, or could not be ended before."""
        await finish(self._ends.end(machine_id, self.engine.destroy))
        self.keeper.look()

    async def _end(self, place: Place, end: End, error: WarrenError | None) -> None:
        if not place.is_taken:
            return
        place.hang_up(error)
        await self._ends.end(place.machine_id, end, place)
        self.keeper.look()

    async def _let_go(self, place: Place) -> None:
        """Release a machine that nobody has claimed. One that cannot be ended now is in nobody's way."""
        try:
            await self.release(place)
        except WarrenError as error:
            log.error("a machine cannot be ended", extra={"machine": place.machine_id, "why": str(error)})

    async def _restore(self, place: Place) -> None:
        """Put a machine into the place, paused. The first of its shape on this host is booted and frozen."""
        image = self._images.find(place.shape.image)
        async with self._building.setdefault(place.shape, asyncio.Lock()):
            snapshot = await self._snapshot(image, place)
        place.machine = await both(
            self.places.guard(place), self.engine.restore(snapshot, place.slot, place.machine_id)
        )
        place.guest = self._guest(place.machine)

    async def _snapshot(self, image: Image, place: Place) -> Snapshot:
        """The snapshot for the place's shape. One whose machine ends while it boots is booted again, a few times."""
        left = BOOTS
        while True:
            try:
                return await self.engine.build_snapshot(image, place.shape, place.slot, self.settle)
            except MachineDied as error:
                left -= 1
                if not left:
                    raise
                log.warning("a machine ended while it booted", extra={"image": image.name, "why": str(error)})

    def _guest(self, machine: Machine) -> Guest:
        return Guest(functools.partial(self.engine.dial, machine), machine.ended, self._observe)

    async def _identify(self, place: Place, identity: Identity, limit_s: float) -> Guest:
        machine, guest = place.machine, place.guest
        if machine is None or guest is None or machine.ended.done():
            raise MachineDied("the machine ended before it was claimed")
        # The call waits in the tap for the machine to wake: one turn of QEMU's loop and not two.
        await both(
            self.engine.resume(machine),
            guest.call("POST", "/identity", identity(), limit_s=limit_s),
        )
        return guest

    async def settle(self, machine: Machine) -> None:
        """Wait until a machine that boots is ready to be frozen, with the paths of a first claim in its memory."""
        guest = self._guest(machine)
        try:
            async with asyncio.timeout(BOOT_LIMIT_S):
                while not await self.answers(guest, machine):  # noqa: ASYNC110 — we have to ask
                    await asyncio.sleep(0.05)
                await self._outfit.put_on(guest)
                for _ in range(REHEARSALS):
                    await guest.call("POST", "/rehearse", self._nobody() | self._outfit.identity)
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

    async def _new_warm(self, shape: Shape) -> Place:
        place = self.places.take(shape)
        try:
            await self._restore(place)
            await self._rehearse(place)
        except BaseException:
            await self._let_go(place)
            raise
        return place

    async def _rehearse(self, place: Place) -> None:
        """Run the paths of a claim, so that their code is translated and their pages are there, then pause."""
        if place.machine is None or place.guest is None:
            raise MachineDied("the machine ended while it was restored")
        await self.engine.resume(place.machine)
        for _ in range(REHEARSALS_OF_A_CLONE):
            await place.guest.call("POST", "/rehearse", self._nobody())
            await place.guest.call("GET", "/health")
        await self.engine.pause(place.machine)

"""Places: room on this host for one machine each, and what is left of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from contract.errors import CapacityError, WarrenError
from contract.models import Shape
from poold.egress.policy import Policy
from poold.egress.proxies import Proxies, Proxy
from poold.engines import Machine
from poold.link import Guest
from poold.slots import Slot

OVERHEAD_MB = 160  # of a machine besides its RAM: the emulator and the code that it translates


Rule = tuple[str, Policy]  # whose machine it is, and what that may reach


class Slots(Protocol):
    """Slots for machines on this host."""

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
    proxy: Proxy | None = None  # what stands between the machine and the world; not where the engine isolates nothing
    is_taken: bool = True  # until it is given back

    async def tell(self, rule: Rule) -> None:
        """Have the proxy allow what `rule` says, and nothing else, from now on."""
        if self.proxy is not None:
            await self.proxy.rule(*rule)

    def hang_up(self, error: WarrenError | None = None) -> None:
        """Forget the machine. Whoever waits for its guest gets `error`."""
        if self.guest is not None:
            self.guest.close(error)
        self.guest = self.machine = None


class Places:
    """All places of this host: a slot and a share of the memory make one."""

    def __init__(
        self,
        slots: Slots,
        *,
        memory_budget_mb: int,
        new_machine_id: Callable[[], str],
        proxies: Proxies | None = None,
    ) -> None:
        self._slots = slots
        self._proxies = proxies
        self._new_machine_id = new_machine_id
        self.memory_budget_mb = memory_budget_mb
        self.memory_left_mb = memory_budget_mb
        self.on_room: Callable[[], None] = lambda: None  # called whenever a place was given back

    @property
    def free(self) -> int:
        return self._slots.free

    def take(self, shape: Shape, machine_id: str | None = None) -> Place:
        """A place for a machine of `shape`, or `CapacityError`."""
        need_mb = shape.memory_mb + OVERHEAD_MB
        if need_mb > self.memory_left_mb:
            raise CapacityError(f"no room for {need_mb} MB on this host, {self.memory_left_mb} MB are left")
        return self.hold(shape, self._slots.take_nowait(), machine_id or self._new_machine_id())

    def hold(self, shape: Shape, slot: Slot, machine_id: str) -> Place:
        """The place of a machine that is there already, even if there are more of them than fit."""
        self.memory_left_mb -= shape.memory_mb + OVERHEAD_MB
        return Place(shape, slot, machine_id)

    async def guard(self, place: Place) -> None:
        """See that the place has a proxy, which denies everything. Before its machine runs."""
        if self._proxies is not None and place.proxy is None:
            place.proxy = await self._proxies.start(place.slot)

    async def guard_again(self, place: Place, sandbox: str) -> None:
        """As `guard`, for the machine of `sandbox`, which runs: the proxy that a former daemon left goes on."""
        if self._proxies is not None:
            place.proxy = await self._proxies.adopt(place.slot, sandbox)

    async def give_back(self, place: Place) -> None:
        """The place may be taken again: its machine is gone. Succeeds if it is free; a failure can be repeated."""
        if not place.is_taken:
            return
        place.is_taken = False  # now: who comes while we wait must not give back what is somebody else's by then
        try:
            if self._proxies is not None and place.proxy is not None:
                await self._proxies.end(place.proxy)
                place.proxy = None
            await self._slots.give_back(place.slot)
        except BaseException:
            place.is_taken = True
            raise
        self.memory_left_mb += place.shape.memory_mb + OVERHEAD_MB
        self.on_room()

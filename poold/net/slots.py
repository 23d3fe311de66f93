"""The slots of this host, from the event loop's side. Nothing here waits for the kernel on the loop's own thread."""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from poold.errors import NoFreeSlot
from poold.lifetimes import finish
from poold.net import folder, namespace
from poold.net.addresses import TAP
from poold.net.listening import proxy_sockets
from poold.net.tap import open_tap
from poold.net.worker import Worker, open_worker
from poold.slots import ProxySockets, Slot


class Slots:
    """Slots made ahead of time, all alike; see `open_slots`. Raises `NetError` and `NoFreeSlot` and nothing else."""

    def __init__(self, pins: Path, worker: Worker, *, count: int, base_uid: int) -> None:
        self._pins = pins
        self._worker = worker
        self._count = count
        self._base_uid = base_uid
        self._free: deque[Slot] = deque()
        self._taken: dict[int, Slot] = {}
        self._closed = False
        self.spared: Collection[int] = ()

    @property
    def free(self) -> int:
        """How many slots can be taken now. One that was given back counts when it has its new namespace."""
        return len(self._free)

    @property
    def taken(self) -> frozenset[Slot]:
        """The slots in use, among them those that were kept from a former run."""
        return frozenset(self._taken.values())

    def spare_taken(self) -> None:
        """The slots in use outlive the block: machines run on in them."""
        self.spared = list(self._taken)

    def kept(self, number: int) -> Slot | None:
        """The slot with this number, if it is in use."""
        return self._taken.get(number)

    def take_nowait(self) -> Slot:
        """Return a slot that no machine has used before, or raise `NoFreeSlot`."""
        if not self._free:
            raise NoFreeSlot(f"all {self._count} slots of this host are in use")
        slot = self._free.popleft()
        self._taken[slot.number] = slot
        return slot

    async def give_back(self, slot: Slot) -> None:
        """Make the slot's network anew and the slot free. The machine in it should have ended.

        Does nothing if the slot is not taken. A cancellation is let through when the slot is free. If this raises
        `NetError`, the slot is still taken and can be given back again.
        """
        if self._taken.pop(slot.number, None) is not None:
            await finish(self._renew(slot))

    async def socket_in(self, slot: Slot) -> socket.socket:
        """Return a non-blocking TCP socket inside the slot's namespace, with which to connect to the guest.

        Close it before the slot is given back: it keeps the old namespace alive. Connect when the monitor has opened
        the tap: a first packet that nobody sees is sent again after a whole second.
        """
        return await finish(self._worker.run(partial(namespace.socket_in, slot.netns)), undo=socket.socket.close)

    async def open_tap(self, slot: Slot) -> int:
        """Return the file descriptor of the slot's tap, for a machine to inherit: one holds it at a time.

        The machine's own user may not open `/dev/net/tun` on every host, and needs not be able to.
        """
        return await finish(self._worker.run(partial(_open_tap, slot)), undo=os.close)

    async def proxy_sockets(self, slot: Slot) -> ProxySockets:
        """Return what a proxy of the slot's machine listens on. One has them at a time."""
        return await finish(self._worker.run(partial(_proxy_sockets, slot)), undo=ProxySockets.close)

    async def adopt(self, keep: Collection[int]) -> frozenset[int]:
        """Take those of the slots to `keep` that a former run left, and return them. Remove all else that it left."""
        kept = (await self._worker.run(partial(folder.pinned, self._pins))).intersection(keep)
        await self._worker.run(partial(folder.sweep, self._pins, kept))
        self._taken = {number: self._slot(number) for number in kept}
        return kept

    async def fill(self) -> None:
        """Make every slot that is not taken."""
        for number in range(self._count):
            if number not in self._taken:
                slot = self._slot(number)
                # For each a job of its own, so that others who need the worker wait for one slot and not for all.
                await self._worker.run(partial(folder.make, slot))
                self._free.append(slot)

    async def close(self, keep: Collection[int] = ()) -> None:
        """Remove every slot but those to `keep`, taken or not. Nothing is taken or renewed any more."""
        self._closed = True
        self._free.clear()
        self._taken.clear()
        await self._worker.run(partial(folder.sweep, self._pins, keep))

    async def _renew(self, slot: Slot) -> None:
        if self._closed:
            return
        # A kept slot may lie beyond today's count: it ends with its machine.
        is_wanted = slot.number < self._count
        try:
            await self._worker.run(partial(folder.remake, slot) if is_wanted else partial(namespace.unpin, slot.netns))
        except BaseException:
            self._taken[slot.number] = slot
            raise
        if is_wanted and not self._closed:
            self._free.append(slot)

    def _slot(self, number: int) -> Slot:
        return Slot(number=number, netns=self._pins / str(number), tap=TAP, uid=self._base_uid + number)


def _open_tap(slot: Slot) -> int:
    with namespace.inside(slot.netns):
        return open_tap(slot.tap)


def _proxy_sockets(slot: Slot) -> ProxySockets:
    with namespace.inside(slot.netns):
        return proxy_sockets()


@asynccontextmanager
async def open_slots(run_dir: Path, *, count: int, base_uid: int, keep: Collection[int] = ()) -> AsyncIterator[Slots]:
    """Have `count` slots during the block, numbered from 0, pinned in `run_dir/netns`. After it none is left.

    But for those that were to be `spare`d. A daemon that is killed leaves all. The next one removes them, but for those
    in `keep`: they are `taken` from the start, if they are still there. If opening fails or is cancelled, they are left
    as they were.
    """
    pins = run_dir / "netns"
    async with open_worker() as worker:
        # On the loop's thread: three short system calls, and no await at which a cancellation could lose the lock.
        with folder.claimed(pins):
            slots = Slots(pins, worker, count=count, base_uid=base_uid)
            spared: Collection[int] = keep
            try:
                spared = await slots.adopt(keep)
                await slots.fill()
                spared = ()
                yield slots
            finally:
                await finish(slots.close(spared or slots.spared))

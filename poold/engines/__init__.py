"""Engines: how a machine is made from an image, and no more.

An engine knows nothing of sandboxes, of HTTP or of the guest's contract. What it needs of the rooms beside it
(a socket inside a slot's network, a guest that is ready to be frozen) it is given as a callable.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contract.models import Shape
from poold.images import Image
from poold.slots import Slot


@dataclass(frozen=True)
class Snapshot:
    """A paused machine on disk, immutable, that any number of machines are restored from."""

    key: str  # of the image, the shape and the engine: the same key is the same snapshot
    folder: Path
    image: Image
    shape: Shape


@dataclass(eq=False)
class Machine:
    """One running VM. `ended` is set to the reason when its process is gone, however that came about."""

    id: str
    slot: Slot
    folder: Path
    pid: int
    ended: "asyncio.Future[str]" = field(repr=False)


Settle = Callable[[Machine], Awaitable[None]]


class Engine(Protocol):
    """Starts machines. Safe to call from many tasks. Raises `EngineError` and nothing else."""

    name: str

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        """Boot `image` in `slot`, wait for `settle`, freeze it and keep it as a snapshot.

        If there is one with the same key, that one is returned and nothing is started. If this raises or is
        cancelled, no process, no file and no half snapshot remains. What `settle` raises is passed on.
        """
        ...

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        """Start a machine from `snapshot`, paused, wired to `slot`.

        It lives in a session of its own and survives this process. If this raises or is cancelled, no process
        and no file of it remains.
        """
        ...

    async def pause(self, machine: Machine) -> None:
        """Stop the machine's processors. Pausing a paused machine changes nothing."""
        ...

    async def resume(self, machine: Machine) -> None:
        """Let the machine's processors run. Resuming a running machine changes nothing."""
        ...

    async def destroy(self, machine_id: str) -> None:
        """Remove every trace of `machine_id`, also of one that a former daemon started. Succeeds if there is none."""
        ...

    async def dial(self, machine: Machine) -> socket.socket:
        """A connected, non-blocking socket to the machine's guest. Waits while the guest is paused."""
        ...

    def leftovers(self) -> list[str]:
        """The ids of all machines that have anything on this host, running or not."""
        ...

    def close(self) -> None:
        """Forget everything. Machines that run go on running."""
        ...

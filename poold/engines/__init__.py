"""Engines: how a machine is made from an image, and no more.

An engine knows nothing of sandboxes, of HTTP or of the guest's contract. What it needs of the rooms beside it
(a socket inside a slot's network, a guest that is ready to be frozen) it is given as a callable.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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


@dataclass(frozen=True)
class Found:
    """What there is on this host of one machine."""

    id: str
    pid: int | None  # of its process, if it has one
    is_saved: bool
    uid: int | None = None  # of its process: the user of its slot


@dataclass(frozen=True)
class Parts:
    """What a saved machine is made of, besides the root of its image. The files are as they are while it is saved."""

    facts: Mapping[str, Any]  # JSON: its shape, its image, and which engine can load it
    golden: Path  # the memory that it began with, which others share
    files: Mapping[str, Path]  # its own, by name


Settle = Callable[[Machine], Awaitable[None]]
Progress = Callable[[int, int], None]


def silent(_done_bytes: int, _all_bytes: int) -> None:
    """The progress of what nobody watches."""


class Limit(Protocol):
    """Confines what the processes of machines may use. Called in threads; raises `EngineError` or `OSError`."""

    def begin(self, machine_id: str, pid: int, shape: Shape) -> None:
        """Confine the process of a machine. It was just started, and no instruction of the guest has run."""
        ...

    def end(self, machine_id: str) -> None:
        """The machine has no process any more, or never had one. May be called again."""
        ...


class Engine(Protocol):
    """Starts machines. Safe to call from many tasks. Raises `EngineError` and nothing else."""

    name: str
    can_save: bool  # whether `save`, `halt` and `load` do what they say; elsewhere they raise
    isolates: bool  # whether its machines are in slots, so that all they reach is a proxy

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

    async def save(self, machine: Machine, progress: Progress = silent) -> int:
        """Write the paused machine's memory and devices beside its drive, so that `load` can bring it back.

        The machine stays paused and alive. Returns the bytes written: only what it changed is. If this raises or is
        cancelled, nothing of it remains. `progress(done_bytes, all_bytes)` is called now and then, from the loop.
        """
        ...

    async def halt(self, machine_id: str) -> None:
        """End the process of a saved machine, if it has one, and keep its saved state and drive.

        Refused for one that is not saved.
        """
        ...

    async def load(self, machine_id: str, slot: Slot) -> Machine:
        """Start the saved machine `machine_id`, paused, wired to `slot`, which need not be the one that it had.

        The saved state stays until `discard`, and nothing writes to the drive before `resume`. If this raises or is
        cancelled, no process remains and the saved state can be loaded again.
        """
        ...

    async def discard(self, machine_id: str) -> None:
        """Forget the saved state of a machine that was loaded and resumed; it goes on. Succeeds if there is none."""
        ...

    async def parts(self, machine_id: str) -> Parts:
        """What the saved machine `machine_id` is made of. Refused for one that is not saved."""
        ...

    async def build_of(self, machine: Machine) -> str:
        """The key of the build of its image that the machine was made from."""
        ...

    def check_fits(self, machine_id: str, facts: Mapping[str, Any], image: Image) -> None:
        """Raise `EngineError` unless a machine of which `parts` told these facts can be loaded on this host."""
        ...

    def planting(
        self, machine_id: str, facts: Mapping[str, Any], image: Image, memory: Path
    ) -> AbstractAsyncContextManager[Mapping[str, Path]]:
        """Put a saved machine together of its parts: during the block the caller makes the files, by their names.

        After the block it is saved under its name, as a whole and checked, and `load` brings it back. If this or the
        block raises, nothing of it remains.
        """
        ...

    async def dial(self, machine: Machine) -> socket.socket:
        """A connected, non-blocking socket to the machine's guest. Waits while the guest is paused."""
        ...

    def found(self) -> list[Found]:
        """Every machine that has anything on this host, by id. Blocks; what comes or goes meanwhile may be missing."""
        ...

    async def adopt(self, machine_id: str, slot: Slot) -> Machine:
        """Take over a running machine that a former daemon started in `slot`. If this raises, it is as it was.

        Whether it is paused is for the caller to know, or to change.
        """
        ...

    def close(self) -> None:
        """Forget everything. Machines that run go on running."""
        ...

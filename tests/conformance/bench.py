"""A bench to put an engine on: what it needs around it, and a look at what it leaves behind."""

import asyncio
import contextlib
import getpass
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from contract.models import Exec, Shape
from poold.commands import Ended, Output, run
from poold.engines import Engine, Machine, Settle, Snapshot
from poold.engines.local import LocalEngine
from poold.engines.qemu.argv import Accel
from poold.engines.qemu.engine import QemuEngine
from poold.engines.qemu.tsc import measure_khz
from poold.errors import GuestError
from poold.images import Image, read_image
from poold.link import Guest
from poold.net import open_slots
from poold.slots import Slot

REPOSITORY = Path(__file__).parents[2]
QEMU, LOCAL, PLAIN = "qemu", "local", "local-without-namespaces"
ENGINES = (QEMU, LOCAL, PLAIN)
SLOTS = 3
# Nobody else's: the tests of other rooms may run on this host at the same time.
BASE_UID = 260_000
SHAPE = Shape("minimal", vcpus=1, memory_mb=192, disk_mb=128)
BOOT_LIMIT_S = 60.0
# Until a state that must come about has come about, on a host that does other things too.
LIMIT_S = 20.0


class Slots(Protocol):
    def take_nowait(self) -> Slot: ...

    async def give_back(self, slot: Slot) -> None: ...


class NoNetwork:
    """Slots for machines that use the network of the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def take_nowait(self) -> Slot:
        self._next += 1
        return Slot(self._next, self._folder / str(self._next), "tap0", BASE_UID + self._next)

    async def give_back(self, slot: Slot) -> None:
        pass


@dataclass
class Bench:
    """One engine, ready for use."""

    name: str
    folder: Path
    slots: Slots
    image: Image
    user: str  # whom commands run as in a machine of this engine
    open_engine: Callable[..., Engine]

    def __post_init__(self) -> None:
        self.engine = self.open_engine()

    async def snapshot(self) -> Snapshot:
        """The one snapshot that the tests share, with a file `before` in its workspace; who comes first builds it."""

        async def settle(machine: Machine) -> None:
            await self.settle(machine)
            assert await self.sh(machine, "echo frozen > before; sync") == (0, "")

        slot = self.slots.take_nowait()
        snapshot = await self.engine.build_snapshot(self.image, SHAPE, slot, settle)
        await self.slots.give_back(slot)
        return snapshot

    async def settle(self, machine: Machine) -> None:
        """Wait until the guest of a machine that boots answers."""
        async with asyncio.timeout(BOOT_LIMIT_S), self.guest(machine) as guest:
            while True:
                assert not machine.ended.done(), machine.ended.result()
                with contextlib.suppress(GuestError):
                    await guest.call("GET", "/health", limit_s=0.5)
                    return
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def machine(self, *, running: bool = True) -> AsyncIterator[Machine]:
        """A machine of the shared snapshot during the block."""
        snapshot = await self.snapshot()
        slot = self.slots.take_nowait()
        machine = await self.engine.restore(snapshot, slot, new_id())
        try:
            if running:
                await self.engine.resume(machine)
            yield machine
        finally:
            await self.engine.destroy(machine.id)
            await self.slots.give_back(slot)

    def uid_of(self, machine: Machine) -> int:
        """The user that the machine's process runs as: its slot's, where there is something to be kept apart."""
        return machine.slot.uid if self.name == QEMU else os.getuid()

    @contextlib.asynccontextmanager
    async def guest(self, machine: Machine) -> AsyncIterator[Guest]:
        guest = Guest(partial(self.engine.dial, machine), machine.ended)
        try:
            yield guest
        finally:
            guest.close()

    async def answers(self, machine: Machine, *, within_s: float) -> bool:
        async with self.guest(machine) as guest:
            try:
                await guest.call("GET", "/health", limit_s=within_s)
            except GuestError:
                return False
            return True

    def broken(self) -> tuple[Engine, Image]:
        """An engine and an image with which no machine comes up: its first process ends at once."""
        if self.name == QEMU:
            return self.open_engine(), replace(self.image, kernel=Path(os.devnull))
        return self.open_engine(python="false"), self.image

    def script(self, script: str) -> Exec:
        return Exec(["/bin/sh", "-c", script], env={}, cwd=None, user=self.user, stdin=None, timeout_ms=60_000)

    async def sh(self, machine: Machine, script: str) -> tuple[int | None, str]:
        """Run a script in the machine's workspace: its exit code, and all that it said."""
        said = b""
        async with self.guest(machine) as guest:
            async for event in run(guest, self.script(script)):
                match event:
                    case Output(data=data):
                        said += data
                    case Ended(exit_code=exit_code):
                        return exit_code, said.decode()
        raise AssertionError("a command's stream has no end")

    async def traces(self) -> list[str]:
        """Everything on this host that belongs to a machine of this bench, once its threads have come to rest."""
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor()
        before = getattr(loop, "_default_executor", None)
        loop.set_default_executor(executor)
        if before is not None:
            before.shutdown(wait=True)
        files = [str(path) for path in (self.folder / "machines").iterdir()]
        halves = [str(path) for path in (self.folder / "snapshots").iterdir() if path.name.startswith(".")]
        return files + halves + [f"process {pid}: {line}" for pid, line in processes_of(self.folder).items()]

    def snapshots(self) -> list[Path]:
        return list((self.folder / "snapshots").iterdir())


def new_id() -> str:
    return f"vm-{secrets.token_hex(6)}"


async def no_settling(_machine: Machine) -> None:
    """For tests of what surrounds a snapshot, where what is in it does not matter."""
    await asyncio.sleep(0)


def failing_settle(error: Exception) -> Settle:
    async def settle(_machine: Machine) -> None:
        raise error

    return settle


def processes_of(folder: Path) -> dict[int, str]:
    """The processes that were told of `folder` or have a file of it open. Looks where engines do not."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                links = [os.readlink(link) for link in (entry / "fd").iterdir()]
                if str(folder) in command or any(link.startswith(f"{folder}/") for link in links):
                    found[int(entry.name)] = command[:200]
    return found


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a state, with a limit."""
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


@cache
def _tsc_khz() -> int:
    return measure_khz()


def _image() -> Image:
    folder = Path(os.environ.get("WARREN_IMAGES", REPOSITORY / "build/images"))
    assert (folder / "minimal").is_dir(), f"no image in {folder}: run `python -m images build minimal`"
    return read_image(folder / "minimal")


@contextlib.asynccontextmanager
async def open_bench(name: str, folder: Path, run_dir: Path) -> AsyncIterator[Bench]:
    """The bench of engine `name`, with its machines in `folder` and its slots in `run_dir`."""
    async with contextlib.AsyncExitStack() as stack:
        if name == QEMU:
            assert os.geteuid() == 0, "the QEMU engine makes network namespaces: run its tests as root"
            slots = await stack.enter_async_context(open_slots(run_dir, count=SLOTS, base_uid=BASE_UID))
            # Emulated also where there is KVM: what is slow shows more of what can go wrong between two steps.
            accel = Accel("tcg", tsc_khz=_tsc_khz())
            make = partial(QemuEngine, folder, accel=accel, socket_in=slots.socket_in, open_tap=slots.open_tap)
            bench = Bench(name, folder, slots, _image(), "user", make)
        else:
            make_local = partial(
                LocalEngine,
                folder,
                python=sys.executable,
                guest_path=REPOSITORY / "guest",
                namespaces=name == LOCAL,
            )
            nothing = Path(os.devnull)
            image = Image("minimal", "0" * 64, nothing, nothing, nothing, SHAPE)
            bench = Bench(name, folder, NoNetwork(run_dir), image, getpass.getuser(), make_local)
        yield bench
        bench.engine.close()

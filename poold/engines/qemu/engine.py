"""The QEMU engine: see `poold.engines.Engine` for its promises."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from contract.models import Shape
from poold.engines import Machine, Settle, Snapshot, process
from poold.engines.qemu import argv, golden
from poold.engines.qemu.inherited import Inherited
from poold.engines.qemu.memory import Memories
from poold.engines.qemu.qmp import Qmp
from poold.errors import EngineError, NetError
from poold.images import Image
from poold.lifetimes import finish
from poold.slots import Slot

GUEST_ADDRESS = ("172.16.0.2", 1024)
QMP_LIMIT_S = 30  # of patience with a QEMU that starts on a busy host
QMP_SOCKET = "qmp.sock"
LOG = "qemu.log"
TELL_WHEN_LOADED = [{"capability": "events", "state": True}]

SocketIn = Callable[[Slot], Awaitable[socket.socket]]
OpenTap = Callable[[Slot], Awaitable[int]]


class QemuEngine:
    """Machines as QEMU processes under `folder`, each with its drive, its control socket and its log."""

    name = "qemu"

    def __init__(self, folder: Path, *, accel: argv.Accel, socket_in: SocketIn, open_tap: OpenTap) -> None:
        self._machines = folder / "machines"
        self._snapshots = folder / "snapshots"
        self._accel = accel
        self._socket_in = socket_in
        self._open_tap = open_tap
        self._control: dict[str, Qmp] = {}
        self._running: dict[str, Machine] = {}
        self._memories = Memories()
        self._version = subprocess.run(
            ["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True
        ).stdout.splitlines()[0]
        for path in (self._machines, self._snapshots):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        key = self._key(image, shape)
        snapshot = Snapshot(key, self._snapshots / key, image, shape)
        if golden.is_whole(snapshot.folder):
            golden.used(snapshot.folder)
            return snapshot
        machine_id = f"build-{key}"
        folder = self._machines / machine_id
        await self.destroy(machine_id)
        try:
            with _as_engine_errors("booting", str(shape)):
                await finish(asyncio.to_thread(golden.prepare, folder, shape, slot.uid))
                machine, devices_fd = await self._boot(machine_id, slot, image, shape)
            await settle(machine)
            with _as_engine_errors("freezing", str(shape)):
                await golden.freeze(self._control[machine_id], devices_fd)
                await self._end(machine)
                await finish(asyncio.to_thread(golden.keep, folder, snapshot))
        finally:
            await finish(self.destroy(machine_id))
        return snapshot

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        try:
            with _as_engine_errors("restoring", machine_id):
                return await self._restore(snapshot, slot, machine_id)
        except BaseException:
            await finish(self.destroy(machine_id))
            raise

    async def pause(self, machine: Machine) -> None:
        await self._run(machine, "stop")

    async def resume(self, machine: Machine) -> None:
        await self._run(machine, "cont")

    async def destroy(self, machine_id: str) -> None:
        folder = self._machines / machine_id
        machine = self._running.get(machine_id)
        if machine is not None:
            await self._end(machine)
        else:
            for pid in await asyncio.to_thread(process.find, argv.mark(folder)):
                await process.end(pid)
        with _as_engine_errors("removing", machine_id), contextlib.suppress(FileNotFoundError):
            await finish(asyncio.to_thread(shutil.rmtree, folder))

    async def dial(self, machine: Machine) -> socket.socket:
        if machine.ended.done():
            raise EngineError(
                "reaching the guest of", machine.id, hint=f"the machine is gone: {machine.ended.result()}"
            )
        connection = await self._socket_in(machine.slot)
        try:
            await asyncio.get_running_loop().sock_connect(connection, GUEST_ADDRESS)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise EngineError("reaching the guest of", machine.id, hint=str(error)) from error
            raise
        return connection

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self._machines.iterdir())

    def close(self) -> None:
        for control in self._control.values():
            control.close()
        self._control.clear()
        self._memories.close()

    def _key(self, image: Image, shape: Shape) -> str:
        """Two snapshots with the same key are the same: everything that makes a difference is in it."""
        layout = argv.hardware(self._accel, shape, argv.Files(0, 0, 0, 0, 0), share="off")
        facts = "\n".join([self._version, image.key, str(shape), golden.FORMAT, argv.KERNEL_ARGS, *layout])
        return f"{shape.image}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    async def _restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        folder = self._machines / machine_id
        await finish(asyncio.to_thread(golden.give_drive, snapshot, folder, slot.uid))
        with Inherited() as inherited:
            memory_fd = inherited.keep(await self._memories.open(snapshot.folder / golden.MEMORY))
            files = await self._files(inherited, snapshot.image, slot, folder, memory_fd)
            line = argv.restored(folder, self._accel, snapshot.shape, files)
            devices_fd = inherited.open(snapshot.folder / golden.DEVICES, os.O_RDONLY)
            machine = await finish(self._start(machine_id, slot, line, inherited))
        await self._shake_hands(machine)
        await self._load(machine, devices_fd)
        return machine

    async def _boot(self, machine_id: str, slot: Slot, image: Image, shape: Shape) -> tuple[Machine, int]:
        """Start a machine that boots in a prepared folder. The number is its file for the state of its devices."""
        folder = self._machines / machine_id
        with Inherited() as inherited:
            memory_fd = inherited.open(folder / golden.MEMORY, os.O_RDWR)
            files = await self._files(inherited, image, slot, folder, memory_fd)
            boot = argv.Boot(
                kernel=inherited.open(image.kernel, os.O_RDONLY),
                initramfs=inherited.open(image.initramfs, os.O_RDONLY),
                console=inherited.open(folder / golden.CONSOLE, os.O_WRONLY),
            )
            devices_fd = inherited.open(folder / golden.DEVICES, os.O_WRONLY)
            line = argv.cold(folder, self._accel, shape, files, boot)
            machine = await finish(self._start(machine_id, slot, line, inherited))
        await self._shake_hands(machine)
        return machine, devices_fd

    async def _files(self, inherited: Inherited, image: Image, slot: Slot, folder: Path, memory_fd: int) -> argv.Files:
        return argv.Files(
            qmp=inherited.listen(folder / QMP_SOCKET),
            tap=inherited.keep(await self._open_tap(slot)),
            memory=memory_fd,
            root=inherited.open(image.rootfs, os.O_RDONLY),
            drive=inherited.open(folder / golden.DRIVE, os.O_RDWR),
        )

    async def _start(self, machine_id: str, slot: Slot, line: Sequence[str], inherited: Inherited) -> Machine:
        """Start QEMU as the slot's user.

        Not to be left before its pid is known: while it becomes QEMU, its arguments cannot be relied upon to find it.
        """
        folder = self._machines / machine_id
        confined = argv.confine(slot.netns, slot.uid, self._gid(slot), line)
        pid = await process.start(confined, log=folder / LOG, keep_fds=inherited.fds)
        machine = Machine(machine_id, slot, folder, pid, process.watch(pid))
        self._running[machine_id] = machine
        return machine

    def _gid(self, slot: Slot) -> int:
        """The machine's group: one that may open /dev/kvm, if it has to."""
        return Path("/dev/kvm").stat().st_gid if self._accel.name == "kvm" else slot.uid

    async def _shake_hands(self, machine: Machine) -> None:
        """Connect to QEMU's control socket, or raise with what QEMU said before it gave up.

        Only QEMU may still hold the listening end: then it hangs up on us when it ends.
        """
        try:
            async with asyncio.timeout(QMP_LIMIT_S):
                self._control[machine.id] = await Qmp.connect(machine.folder / QMP_SOCKET, machine.id)
        except (TimeoutError, OSError, EngineError) as error:
            said = (machine.folder / LOG).read_text(errors="replace")[-500:].strip()
            raise EngineError("starting QEMU for", machine.id, hint=said or str(error)) from error

    async def _load(self, machine: Machine, devices_fd: int) -> None:
        """Bring the devices of a just started QEMU into the snapshot's state."""
        control = self._control[machine.id]
        async with asyncio.timeout(QMP_LIMIT_S):
            await control.run("migrate-set-capabilities", capabilities=TELL_WHEN_LOADED)
            await control.run("migrate-incoming", uri=f"fd:{devices_fd}")
            await control.event("MIGRATION", status="completed")

    async def _run(self, machine: Machine, command: str) -> None:
        control = self._control.get(machine.id)
        if control is None:
            raise EngineError(command, machine.id, hint="the machine is gone")
        try:
            async with asyncio.timeout(QMP_LIMIT_S):
                await control.run(command)
        except TimeoutError as error:
            raise EngineError(command, machine.id, hint=f"QEMU did not answer within {QMP_LIMIT_S} s") from error

    async def _end(self, machine: Machine) -> None:
        if not machine.ended.done():  # else the pid may be somebody else's by now
            await process.end(machine.pid)
        control = self._control.pop(machine.id, None)
        if control is not None:
            control.close()
        self._running.pop(machine.id, None)


@contextlib.contextmanager
def _as_engine_errors(doing: str, subject: str) -> Iterator[None]:
    try:
        yield
    except (OSError, NetError) as error:
        raise EngineError(doing, subject, hint=str(error)) from error

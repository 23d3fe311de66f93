"""The QEMU engine: see `poold.engines.Engine` for its promises."""

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from contract.models import Shape
from poold.engines import Machine, Settle, Snapshot, process, sparse
from poold.engines.qemu import argv, golden
from poold.engines.qemu.memory import load_sealed
from poold.engines.qemu.qmp import Qmp
from poold.errors import EngineError
from poold.images import Image
from poold.lifetimes import finish
from poold.slots import Slot

GUEST_ADDRESS = ("172.16.0.2", 1024)
QMP_LIMIT_S = 30  # of patience with a QEMU that starts on a busy host
# The frozen stream holds devices only, without QEMU's preamble; `events` tells when it has been loaded.
INCOMING = ("-S", "-incoming", "defer", "-global", "migration.send-configuration=off")
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
        self._memories: dict[str, int] = {}
        self._loading: dict[str, asyncio.Future[int]] = {}
        self._version = subprocess.run(
            ["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True
        ).stdout.splitlines()[0]
        for path in (self._machines, self._snapshots):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)  # a machine's user passes through to its own folder, and sees no other

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        snapshot = Snapshot(self._key(image, shape), self._snapshots / self._key(image, shape), image, shape)
        if golden.is_whole(snapshot.folder):
            return snapshot
        machine_id = f"build-{snapshot.key}"
        folder = self._machines / machine_id
        await self.destroy(machine_id)
        try:
            memory = await asyncio.to_thread(golden.prepare, folder, shape, slot.uid)
            machine = await self._start(machine_id, slot, image, shape, argv.Memory(memory, shared=True), cold=True)
            await settle(machine)
            await golden.freeze(self._control[machine_id], folder)
            await self._end(machine)
            await asyncio.to_thread(golden.keep, folder, snapshot)
        except OSError as error:
            raise EngineError("building a snapshot of", str(shape), hint=str(error)) from error
        finally:
            await finish(self.destroy(machine_id))
        return snapshot

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        folder = self._machines / machine_id
        try:
            memory_fd = await self._memory(snapshot)
            await finish(asyncio.to_thread(_prepare, folder, snapshot, slot.uid))
            memory = argv.Memory(Path(f"/proc/self/fd/{memory_fd}"), shared=False)
            with (snapshot.folder / golden.DEVICES).open("rb") as devices:
                fds = (memory_fd, devices.fileno())
                machine = await self._start(machine_id, slot, snapshot.image, snapshot.shape, memory, keep_fds=fds)
                await self._load(machine, devices.fileno())
        except BaseException as error:
            await finish(self.destroy(machine_id))
            if isinstance(error, OSError):
                raise EngineError("restoring", machine_id, hint=str(error)) from error
            raise
        return machine

    async def pause(self, machine: Machine) -> None:
        await self._run(machine, "stop")

    async def resume(self, machine: Machine) -> None:
        await self._run(machine, "cont")

    async def destroy(self, machine_id: str) -> None:
        machine = self._running.get(machine_id)
        if machine is not None:
            await self._end(machine)
        else:
            for pid in await asyncio.to_thread(process.find, machine_id):
                await process.end(pid)
        await asyncio.to_thread(shutil.rmtree, self._machines / machine_id, ignore_errors=True)

    async def dial(self, machine: Machine) -> socket.socket:
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
        for fd in self._memories.values():
            os.close(fd)
        self._control.clear()
        self._memories.clear()

    def _key(self, image: Image, shape: Shape) -> str:
        """Two snapshots with the same key are the same: everything that makes a difference is in it."""
        layout = argv.hardware(
            self._accel,
            image,
            vcpus=shape.vcpus,
            memory_mb=shape.memory_mb,
            memory=argv.Memory(Path("memory"), shared=False),
            drive=Path("drive"),
            tap_fd=0,
        )
        facts = "\n".join([self._version, image.key, str(shape), golden.FORMAT, *layout])
        return f"{shape.image}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    async def _start(
        self,
        machine_id: str,
        slot: Slot,
        image: Image,
        shape: Shape,
        memory: argv.Memory,
        *,
        keep_fds: tuple[int, ...] = (),
        cold: bool = False,
    ) -> Machine:
        """Start QEMU in the machine's folder and shake hands with it."""
        folder = self._machines / machine_id
        # A clone's console has no reader and hostile writers: a file of it would grow without end.
        console = f"file,path={folder / 'console.log'}" if cold else "null"
        extra = () if cold else INCOMING
        tap_fd = await self._open_tap(slot)
        with os.fdopen(tap_fd, "rb", buffering=0), socket.socket(socket.AF_UNIX) as listener:
            hardware = argv.hardware(
                self._accel,
                image,
                vcpus=shape.vcpus,
                memory_mb=shape.memory_mb,
                memory=memory,
                drive=folder / golden.DRIVE,
                tap_fd=tap_fd,
            )
            listener.bind(str(folder / "qmp.sock"))
            listener.listen(1)
            line = argv.command(machine_id, hardware, qmp_fd=listener.fileno(), console=console, extra=extra)
            pid = await process.start(
                argv.confine(slot.netns, slot.uid, self._gid(slot), line),
                log=folder / "qemu.log",
                keep_fds=(listener.fileno(), tap_fd, *keep_fds),
            )
        machine = Machine(machine_id, slot, folder, pid, process.watch(pid))
        self._running[machine_id] = machine
        self._control[machine_id] = await self._shake_hands(machine)
        return machine

    def _gid(self, slot: Slot) -> int:
        """The machine's group: one that may open /dev/kvm, if it has to."""
        return Path("/dev/kvm").stat().st_gid if self._accel.name == "kvm" else slot.uid

    async def _shake_hands(self, machine: Machine) -> Qmp:
        """Connect to QEMU's control socket, or raise with what QEMU said before it gave up."""
        try:
            async with asyncio.timeout(QMP_LIMIT_S):
                return await Qmp.connect(machine.folder / "qmp.sock", machine.id)
        except (TimeoutError, OSError, EngineError) as error:
            said = (machine.folder / "qemu.log").read_text(errors="replace")[-500:].strip()
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
        await process.end(machine.pid)
        control = self._control.pop(machine.id, None)
        if control is not None:
            control.close()
        self._running.pop(machine.id, None)

    async def _memory(self, snapshot: Snapshot) -> int:
        """The snapshot's sealed memory, loaded once however many ask at the same time."""
        if snapshot.key not in self._memories:
            loading = self._loading.get(snapshot.key)
            if loading is None:
                loading = asyncio.ensure_future(asyncio.to_thread(load_sealed, snapshot.folder / golden.MEMORY))
                self._loading[snapshot.key] = loading
            try:
                self._memories[snapshot.key] = await finish(loading)
            finally:
                self._loading.pop(snapshot.key, None)
        return self._memories[snapshot.key]


def _prepare(folder: Path, snapshot: Snapshot, uid: int) -> None:
    """The machine's folder with its own copy of the drive. Blocks."""
    folder.mkdir(mode=0o700)
    os.chown(folder, uid, uid)
    sparse.clone(snapshot.folder / golden.DRIVE, folder / golden.DRIVE, mode=0o600, uid=uid)

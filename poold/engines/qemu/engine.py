"""The QEMU engine: see `poold.engines.Engine` for its promises."""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from contract.models import Shape
from poold import processes
from poold.engines import Found, Limit, Machine, Parts, Progress, Settle, Snapshot, silent
from poold.engines.qemu import argv, golden, made, planted, saved
from poold.engines.qemu.faults import as_engine_errors
from poold.engines.qemu.inherited import Inherited, is_listening
from poold.engines.qemu.made import Made
from poold.engines.qemu.memory import Memories
from poold.engines.qemu.vms import QMP_SOCKET, Vm, Vms
from poold.errors import EngineError
from poold.images import Image
from poold.lifetimes import both, finish
from poold.slots import Slot

log = logging.getLogger("poold.engines.qemu")

GUEST_ADDRESS = ("172.16.0.2", 1024)

SocketIn = Callable[[Slot], Awaitable[socket.socket]]
OpenTap = Callable[[Slot], Awaitable[int]]


class QemuEngine:
    """Machines as QEMU processes under `folder`, each with its drive, its control socket and its log."""

    name = "qemu"
    can_save = True
    isolates = True

    def __init__(
        self,
        folder: Path,
        *,
        accel: argv.Accel,
        socket_in: SocketIn,
        open_tap: OpenTap,
        limit: Limit | None = None,
        outfit: str = "",
    ) -> None:
        """`outfit` stands for what `settle` puts into machines: with another one there are other snapshots."""
        self._machines = folder / "machines"
        self._snapshots = folder / "snapshots"
        self._accel = accel
        self._outfit = outfit
        self._socket_in = socket_in
        self._open_tap = open_tap
        self._vms = Vms(self._machines, limit)
        self._memories = Memories()
        # One change at a time to the folder of a machine.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._version = subprocess.run(
            ["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True
        ).stdout.splitlines()[0]
        for path in (self._machines, self._snapshots):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)

    # Machines from images and snapshots.

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
            with as_engine_errors("booting", str(shape)):
                await finish(asyncio.to_thread(golden.prepare, folder, shape, slot.uid))
                vm, devices_fd = await self._boot(machine_id, slot, image, shape)
            await settle(vm.machine)
            with as_engine_errors("freezing", str(shape)):
                await golden.freeze(vm.control, devices_fd)
                await self._vms.end(machine_id)
                await finish(asyncio.to_thread(golden.keep, folder, snapshot))
        finally:
            await finish(self.destroy(machine_id))
        return snapshot

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        try:
            with as_engine_errors("restoring", machine_id):
                return await self._restore(snapshot, slot, machine_id)
        except BaseException:
            await finish(self.destroy(machine_id))
            raise

    # Machines that run.

    async def pause(self, machine: Machine) -> None:
        await self._vms.find(machine).run("stop")

    async def resume(self, machine: Machine) -> None:
        await self._vms.find(machine).run("cont")

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

    async def destroy(self, machine_id: str) -> None:
        # First, so that a save that is under way fails and does not keep us waiting.
        await self._vms.end(machine_id)
        async with self._turn(machine_id):
            if self._vms.knows(machine_id):  # it was being loaded
                await self._vms.end(machine_id)
            with as_engine_errors("removing", machine_id), contextlib.suppress(FileNotFoundError):
                await finish(asyncio.to_thread(shutil.rmtree, self._machines / machine_id))

    # Machines on disk.

    async def save(self, machine: Machine, progress: Progress = silent) -> int:
        async with self._turn(machine.id):
            vm = self._vms.find(machine)
            if not await vm.is_stopped():
                raise EngineError("saving", machine.id, hint="it runs: pause it first")
            with as_engine_errors("saving", machine.id):
                try:
                    made_of = await asyncio.to_thread(made.read, machine.folder)
                    fd = await finish(asyncio.to_thread(saved.begin, machine.folder), undo=os.close)
                    await vm.save_devices(fd)
                    return await saved.write(machine.folder, machine.pid, made_of, progress)
                finally:
                    await finish(asyncio.to_thread(saved.remove_half, machine.folder))

    async def halt(self, machine_id: str) -> None:
        async with self._turn(machine_id):
            if not saved.is_whole(self._machines / machine_id):
                raise EngineError("halting", machine_id, hint="it is not saved, and would be lost")
            await finish(self._vms.end(machine_id))

    async def load(self, machine_id: str, slot: Slot) -> Machine:
        async with self._turn(machine_id):
            if self._vms.runs(machine_id):
                raise EngineError("loading", machine_id, hint="it runs already")
            if not saved.is_whole(self._machines / machine_id):
                raise EngineError("loading", machine_id, hint="it is not saved on this host")
            with as_engine_errors("loading", machine_id):
                made_of = await finish(asyncio.to_thread(self._prepare, machine_id, slot.uid))
                try:
                    return await self._load(machine_id, slot, made_of)
                except BaseException:
                    await finish(self._vms.end(machine_id))
                    raise

    async def discard(self, machine_id: str) -> None:
        async with self._turn(machine_id):
            with as_engine_errors("forgetting the saved state of", machine_id):
                await finish(asyncio.to_thread(saved.remove, self._machines / machine_id))

    async def parts(self, machine_id: str) -> Parts:
        folder = self._machines / machine_id
        async with self._turn(machine_id):
            if not saved.is_whole(folder):
                raise EngineError("taking apart", machine_id, hint="it is not saved on this host")
            with as_engine_errors("taking apart", machine_id):
                return await asyncio.to_thread(planted.parts, folder)

    async def build_of(self, machine: Machine) -> str:
        return (await asyncio.to_thread(made.read, machine.folder)).image_key

    def check_fits(self, machine_id: str, facts: Mapping[str, Any], image: Image) -> None:
        self._fitting(machine_id, facts, image)

    @contextlib.asynccontextmanager
    async def planting(
        self, machine_id: str, facts: Mapping[str, Any], image: Image, memory: Path
    ) -> AsyncIterator[Mapping[str, Path]]:
        made_of = self._fitting(machine_id, facts, image)
        folder = self._machines / f"{planted.PREFIX}{machine_id}"
        async with self._turn(folder.name):
            try:
                with as_engine_errors("planting", machine_id):
                    yield await finish(asyncio.to_thread(planted.begin, folder))
                    target = self._machines / machine_id
                    await finish(asyncio.to_thread(planted.commit, folder, target, made_of, image, memory))
            finally:
                await finish(asyncio.to_thread(planted.remove, folder))

    def _fitting(self, machine_id: str, facts: Mapping[str, Any], image: Image) -> Made:
        shape = made.from_facts(facts, machine_id).shape
        return planted.check_fits(facts, image, self._made(shape, image.key), machine_id)

    # Machines of a former daemon.

    def found(self) -> list[Found]:
        pids = self._vms.pids()
        names = {path.name for path in self._machines.iterdir()} | pids.keys()
        return [self._found(name, pids.get(name)) for name in sorted(names)]

    def _found(self, name: str, pid: int | None) -> Found:
        uid = None if pid is None else processes.owner(pid)
        return Found(name, pid if uid is not None else None, saved.is_whole(self._machines / name), uid)

    async def adopt(self, machine_id: str, slot: Slot) -> Machine:
        async with self._turn(machine_id):
            machine = await self._vms.adopt(machine_id, slot)
            try:
                await finish(asyncio.to_thread(saved.remove_half, machine.folder))
            except OSError as error:  # the next save begins with that
                log.warning("half a save was not removed", extra={"machine": machine_id, "why": str(error)})
            return machine

    def close(self) -> None:
        self._vms.close()
        self._memories.close()

    def _turn(self, machine_id: str) -> asyncio.Lock:
        return self._turns.setdefault(machine_id, asyncio.Lock())

    def _key(self, image: Image, shape: Shape) -> str:
        """Two snapshots with the same key are the same: everything that makes a difference is in it."""
        layout = [self._outfit, *made.hardware(self._accel, shape)]
        facts = "\n".join([self._version, image.key, str(shape), golden.FORMAT, argv.KERNEL_ARGS, *layout])
        return f"{shape.image}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def _made(self, shape: Shape, image_key: str) -> Made:
        return Made.now(shape, image_key, qemu=self._version, accel=self._accel)

    async def _restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        made_of = self._made(snapshot.shape, snapshot.image.key)
        await finish(asyncio.to_thread(golden.outfit, snapshot, self._machines / machine_id, slot.uid, made_of))
        vm, devices_fd = await self._start(machine_id, slot, snapshot.shape, snapshot.folder / golden.DEVICES)
        await self._vms.shake_hands(vm)
        await vm.load_devices(devices_fd)
        return vm.machine

    def _prepare(self, machine_id: str, uid: int) -> Made:
        """Check that a saved machine can be loaded, and make its folder ready for a process of `uid`. Blocks."""
        folder = self._machines / machine_id
        made_of = made.read(folder)
        made_of.check_loads_under(self._made(made_of.shape, made_of.image_key), machine_id)
        saved.check_drive(folder)
        if is_listening(folder / QMP_SOCKET):
            raise EngineError("loading", machine_id, hint="it has a process already, which nobody has adopted")
        (folder / QMP_SOCKET).unlink(missing_ok=True)
        os.chown(folder / golden.DRIVE, uid, uid)
        return made_of

    async def _load(self, machine_id: str, slot: Slot, made_of: Made) -> Machine:
        folder = self._machines / machine_id
        vm, devices_fd = await self._start(machine_id, slot, made_of.shape, folder / saved.SAVED / saved.DEVICES)
        # At once: QEMU takes as long to come up as it takes to fill its memory.
        await both(self._fill(vm, made_of), self._vms.shake_hands(vm))
        await vm.load_devices(devices_fd)
        return vm.machine

    async def _fill(self, vm: Vm, made_of: Made) -> None:
        await vm.limited()
        await saved.put_pages(vm.machine.folder, vm.machine.pid, made_of)

    async def _start(self, machine_id: str, slot: Slot, shape: Shape, devices: Path) -> tuple[Vm, int]:
        """Start a machine that waits for the state of its devices. The number is its file of `devices`."""
        folder = self._machines / machine_id
        with Inherited() as inherited:
            memory_fd = inherited.keep(await self._memories.open(folder / golden.MEMORY))
            files = await self._files(inherited, folder / golden.ROOT, slot, folder, memory_fd)
            devices_fd = inherited.open(devices, os.O_RDONLY)
            line = argv.restored(folder, self._accel, shape, files)
            vm = await self._vms.start(machine_id, slot, shape, self._confine(slot, line), inherited.fds)
        return vm, devices_fd

    async def _boot(self, machine_id: str, slot: Slot, image: Image, shape: Shape) -> tuple[Vm, int]:
        """Start a machine that boots in a prepared folder. The number is its file for the state of its devices."""
        folder = self._machines / machine_id
        with Inherited() as inherited:
            memory_fd = inherited.open(folder / golden.MEMORY, os.O_RDWR)
            files = await self._files(inherited, image.rootfs, slot, folder, memory_fd)
            boot = argv.Boot(
                kernel=inherited.open(image.kernel, os.O_RDONLY),
                initramfs=inherited.open(image.initramfs, os.O_RDONLY),
                console=inherited.open(folder / golden.CONSOLE, os.O_WRONLY),
            )
            devices_fd = inherited.open(folder / golden.DEVICES, os.O_WRONLY)
            line = argv.cold(folder, self._accel, shape, files, boot)
            vm = await self._vms.start(machine_id, slot, shape, self._confine(slot, line), inherited.fds)
        await self._vms.shake_hands(vm)
        await vm.run("cont")
        return vm, devices_fd

    async def _files(self, inherited: Inherited, root: Path, slot: Slot, folder: Path, memory_fd: int) -> argv.Files:
        return argv.Files(
            qmp=inherited.listen(folder / QMP_SOCKET),
            tap=inherited.keep(await self._open_tap(slot)),
            memory=memory_fd,
            root=inherited.open(root, os.O_RDONLY),
            drive=inherited.open(folder / golden.DRIVE, os.O_RDWR),
        )

    def _confine(self, slot: Slot, line: list[str]) -> list[str]:
        """QEMU as the slot's user, in a group that may open /dev/kvm if it has to."""
        gid = Path("/dev/kvm").stat().st_gid if self._accel.name == "kvm" else slot.uid
        return argv.confine(slot.netns, slot.uid, gid, line)

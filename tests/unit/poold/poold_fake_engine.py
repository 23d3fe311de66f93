"""An engine whose machines are objects in memory, each with a fake guest. It counts, and breaks where it is told to."""

import asyncio
import contextlib
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from contract.models import Shape
from poold.engines import Found, Machine, Parts, Progress, Settle, Snapshot, silent
from poold.errors import EngineError
from poold.images import HostImages, Image
from poold.slots import Slot
from tests.unit.poold.poold_fake_guest import FakeGuest


class FakeEngine:
    """Keeps the promises of `poold.engines.Engine`.

    `broken` holds the steps that fail, `held` those that wait, and `calls` counts. `frozen` are the machines whose
    processors stand still. A machine in slot n runs as the user n.
    """

    name = "fake"
    can_save = True
    isolates = True

    def __init__(self, folder: Path = Path("/nonexistent")) -> None:
        self.folder = folder
        self.shape = HostImages().find("host").defaults
        self.machines: dict[str, Machine] = {}
        self.guests: dict[str, FakeGuest] = {}
        self.build = "host"
        self.broken: set[str] = set()
        self.held: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.saved: set[str] = set()
        self.frozen: set[str] = set()
        self.guests_say: dict[str, bytes] = {}  # what guests of machines restored from now on say to a path
        self._built: set[Shape] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        await self._step("build_snapshot")
        if shape not in self._built:
            machine = self._start(f"build-{shape}", slot)
            try:
                await settle(machine)
            finally:
                await self.destroy(machine.id)
            self._built.add(shape)
        return Snapshot(str(shape), Path("/nonexistent"), image, shape)

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        await self._step("restore")
        self.frozen.add(machine_id)
        return self._start(machine_id, slot)

    async def pause(self, machine: Machine) -> None:
        await self._step("pause", machine)
        self.frozen.add(machine.id)

    async def resume(self, machine: Machine) -> None:
        await self._step("resume", machine)
        self.frozen.discard(machine.id)

    async def destroy(self, machine_id: str) -> None:
        await self._step("destroy")
        self.kill(machine_id, "destroyed")
        self.machines.pop(machine_id, None)
        self.saved.discard(machine_id)

    async def save(self, machine: Machine, progress: Progress = silent) -> int:
        assert machine.ended.done() or machine.id in self.frozen, "a machine was saved while it ran"
        await self._step("save", machine)
        progress(1, 2)
        self.saved.add(machine.id)
        return 2

    async def halt(self, machine_id: str) -> None:
        await self._step("halt")
        if machine_id not in self.saved:
            raise EngineError("halting", machine_id, hint="it is not saved")
        self.kill(machine_id, "halted")
        self.machines.pop(machine_id, None)

    async def load(self, machine_id: str, slot: Slot) -> Machine:
        await self._step("load")
        if machine_id not in self.saved:
            raise EngineError("loading", machine_id, hint="it is not saved")
        self.frozen.add(machine_id)
        return self._start(machine_id, slot, self.guests[machine_id])

    async def discard(self, machine_id: str) -> None:
        await self._step("discard")
        self.saved.discard(machine_id)

    async def parts(self, machine_id: str) -> Parts:
        """The files of a fake machine are kept by whoever gives the engine a `folder`."""
        await self._step("parts")
        if machine_id not in self.saved:
            raise EngineError("taking apart", machine_id, hint="it is not saved")
        folder = self.folder / machine_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "golden").write_bytes(b"golden" * 1000)
        (folder / "drive").write_bytes(b"drive of " + machine_id.encode())
        (folder / "pages").write_bytes(b"pages of " + machine_id.encode())
        return Parts(self.facts(), folder / "golden", {name: folder / name for name in ("drive", "pages")})

    def facts(self) -> dict[str, Any]:
        return {"shape": orjson.loads(orjson.dumps(self.shape)), "qemu": "fake"}

    async def build_of(self, machine: Machine) -> str:
        await self._step("build_of", machine)
        return self.build

    def check_fits(self, machine_id: str, facts: Mapping[str, Any], image: Image) -> None:
        if facts != self.facts():
            raise EngineError("loading", machine_id, hint="it was saved under another engine")

    @contextlib.asynccontextmanager
    async def planting(
        self, machine_id: str, facts: Mapping[str, Any], image: Image, memory: Path
    ) -> AsyncIterator[Mapping[str, Path]]:
        await self._step("planting")
        folder = self.folder / f"plant-{machine_id}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        paths = {name: folder / name for name in ("drive", "pages")}
        try:
            yield paths
            await self._step("plant")
            assert machine_id not in self.saved | self.machines.keys(), "a machine was planted over another"
            assert memory.read_bytes() == b"golden" * 1000
            for name, path in paths.items():
                assert path.read_bytes() == f"{name} of {machine_id}".encode()
            self.saved.add(machine_id)
        finally:
            shutil.rmtree(folder)

    async def adopt(self, machine_id: str, slot: Slot) -> Machine:
        await self._step("adopt")
        return replace(self.machines[machine_id], slot=slot)

    async def dial(self, machine: Machine) -> socket.socket:
        if machine.ended.done():
            raise EngineError("reaching the guest of", machine.id)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        task = asyncio.create_task(self._serve(machine, theirs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ours

    def found(self) -> list[Found]:
        return [self._found(name) for name in sorted(self.machines.keys() | self.saved)]

    def _found(self, name: str) -> Found:
        machine = self.machines.get(name)
        if machine is None or machine.ended.done():
            return Found(name, None, name in self.saved)
        return Found(name, 1, name in self.saved, uid=machine.slot.number)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # What a test does.

    def kill(self, machine_id: str, reason: str) -> None:
        """The machine's process ends."""
        machine = self.machines.get(machine_id)
        self.frozen.discard(machine_id)
        if machine is not None and not machine.ended.done():
            machine.ended.set_result(reason)

    def guest_of(self, sandbox_id: str) -> FakeGuest:
        return self.guests[self.machine_of(sandbox_id)]

    def machine_of(self, sandbox_id: str) -> str:
        return next(name for name, guest in self.guests.items() if guest.identity.get("id") == sandbox_id)

    def _start(self, machine_id: str, slot: Slot, guest: FakeGuest | None = None) -> Machine:
        assert machine_id not in self.machines, "one machine was started twice"
        assert not [m for m in self.machines.values() if m.slot == slot and not m.id.startswith("build-")], (
            "slot in use"
        )
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        machine = self.machines[machine_id] = Machine(machine_id, slot, Path("/nonexistent"), 0, ended)
        self.guests[machine_id] = guest or FakeGuest(dict(self.guests_say))
        return machine

    async def _step(self, name: str, machine: Machine | None = None) -> None:
        """What every step begins with: it waits, fails or is counted as the test says, and needs `machine` alive."""
        self.calls[name] += 1
        await asyncio.sleep(0)
        while name in self.held:
            await asyncio.sleep(0.005)
        if name in self.broken:
            raise EngineError(name, "a machine", hint="the test says so")
        if machine is not None and machine.ended.done():
            raise EngineError(name, machine.id, hint="it ended")

    async def _serve(self, machine: Machine, theirs: socket.socket) -> None:
        """Serve one connection until it or the machine ends."""
        reader, writer = await asyncio.open_connection(sock=theirs)
        serving = asyncio.create_task(self.guests[machine.id].serve(reader, writer))
        try:
            await asyncio.wait([serving, machine.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            writer.transport.abort()

"""The QEMU processes of this host: started, taken over, steered and ended."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.models import Shape
from poold import processes
from poold.engines import Limit, Machine
from poold.engines.qemu import argv
from poold.engines.qemu.faults import as_engine_errors
from poold.engines.qemu.qmp import Qmp
from poold.errors import EngineError
from poold.lifetimes import finish
from poold.slots import Slot

QMP_LIMIT_S = 30  # of patience with a QEMU that starts on a busy host
QMP_SOCKET = "qmp.sock"
LOG = "qemu.log"
LAST_WORDS = 500  # bytes of it that are told
RETRY_S = 0.01
TELL_WHEN_LOADED = [{"capability": "events", "state": True}]


@dataclass(eq=False)
class Vm:
    """One QEMU process, and the way to steer it."""

    machine: Machine
    limiting: asyncio.Future[None] | None = None  # under way since its start
    _control: Qmp | None = None

    @property
    def control(self) -> Qmp:
        if self._control is None:
            raise EngineError("steering", self.machine.id, hint="there is no connection to its QEMU")
        return self._control

    async def run(self, command: str, **arguments: Any) -> Any:
        try:
            async with asyncio.timeout(QMP_LIMIT_S):
                return await self.control.run(command, **arguments)
        except TimeoutError as error:
            hint = f"QEMU did not answer within {QMP_LIMIT_S} s"
            raise EngineError(command, self.machine.id, hint=hint) from error

    async def limited(self) -> None:
        """Wait until its limits hold. Memory that it gets before is counted as somebody else's."""
        if self.limiting is not None:
            with as_engine_errors("limiting", self.machine.id):
                await asyncio.shield(self.limiting)

    async def is_stopped(self) -> bool:
        told = await self.run("query-status")
        return isinstance(told, dict) and told.get("running") is False

    async def save_devices(self, fd: int) -> None:
        """Write the state of its devices to our open file `fd`, and close that."""
        try:
            async with asyncio.timeout(QMP_LIMIT_S), self.control.lent(fd) as name:
                # Not `live`: that would take its drives from a machine that may yet go on.
                await self.control.run("xen-save-devices-state", filename=name, live=False)
        finally:
            os.close(fd)

    async def load_devices(self, devices_fd: int) -> None:
        """Bring the devices of a just started QEMU into the state that its file `devices_fd` holds.

        A QEMU that does not like what it reads there says why, and ends.
        """
        try:
            async with asyncio.timeout(QMP_LIMIT_S):
                await self.control.run("migrate-set-capabilities", capabilities=TELL_WHEN_LOADED)
                await self.control.run("migrate-incoming", uri=f"fd:{devices_fd}")
                await self.control.event("MIGRATION", status="completed")
        except (OSError, EngineError) as error:
            raise EngineError("loading the devices of", self.machine.id, hint=self.said() or str(error)) from error

    async def connect(self) -> None:
        """Connect to the control socket. One whose former client has just gone may take a moment to notice."""
        path = self.machine.folder / QMP_SOCKET
        async with asyncio.timeout(QMP_LIMIT_S):
            while True:
                with contextlib.suppress(BlockingIOError):  # its queue of clients is full
                    self._control = await Qmp.connect(path, self.machine.id)
                    return
                await asyncio.sleep(RETRY_S)

    def hang_up(self) -> None:
        if self._control is not None:
            self._control.close()

    def said(self) -> str:
        """The last words of its process."""
        with contextlib.suppress(OSError), (self.machine.folder / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS))
            return log.read(LAST_WORDS).decode(errors="replace").strip()
        return ""


class Vms:
    """The QEMU processes that we know, by the id of their machine."""

    def __init__(self, machines: Path, limit: Limit | None) -> None:
        self._machines = machines
        self._limit = limit
        self._known: dict[str, Vm] = {}

    def find(self, machine: Machine) -> Vm:
        vm = self._known.get(machine.id)
        if vm is None or vm.machine.ended.done():
            raise EngineError("steering", machine.id, hint="the machine is gone")
        return vm

    def knows(self, machine_id: str) -> bool:
        return machine_id in self._known

    def runs(self, machine_id: str) -> bool:
        return self.knows(machine_id) and not self._known[machine_id].machine.ended.done()

    async def start(self, machine_id: str, slot: Slot, shape: Shape, line: Sequence[str], fds: Sequence[int]) -> Vm:
        """Start the confined QEMU `line` for the machine, whose folder is there. It is limited while it comes up.

        If this or what follows raises or is cancelled, `end` removes what there is of it.
        """
        vm = await finish(self._start(machine_id, slot, line, fds))
        if self._limit is not None:
            beginning = asyncio.to_thread(self._limit.begin, machine_id, vm.machine.pid, shape)
            vm.limiting = asyncio.ensure_future(beginning)
        return vm

    async def _start(self, machine_id: str, slot: Slot, line: Sequence[str], fds: Sequence[int]) -> Vm:
        """Not to be left before its pid is known: while it becomes QEMU, its arguments cannot be relied upon."""
        folder = self._machines / machine_id
        pid = await processes.start(line, log=folder / LOG, keep_fds=fds)
        vm = Vm(Machine(machine_id, slot, folder, pid, processes.watch(pid)))
        self._know(vm)
        return vm

    async def shake_hands(self, vm: Vm) -> None:
        """Connect to QEMU's control socket, or raise with what QEMU said before it gave up. Its limits hold then.

        Only QEMU may still hold the listening end: then it hangs up on us when it ends.
        """
        try:
            await vm.connect()
        except (OSError, EngineError) as error:
            raise EngineError("starting QEMU for", vm.machine.id, hint=vm.said() or str(error)) from error
        await vm.limited()

    async def adopt(self, machine_id: str, slot: Slot) -> Machine:
        """Take over the process that a former daemon started for this machine. If this raises, it is as it was."""
        folder = self._machines / machine_id
        if self.runs(machine_id):
            raise EngineError("adopting", machine_id, hint="it is ours already")
        pid = (await asyncio.to_thread(self.pids)).get(machine_id)
        if pid is None:
            raise EngineError("adopting", machine_id, hint="it has no process")
        vm = Vm(Machine(machine_id, slot, folder, pid, processes.watch(pid)))
        try:
            # Only now: from here on its number cannot be that of another process without `ended` saying so.
            if processes.mark_of(pid, argv.MARK) != argv.mark(folder):
                raise EngineError("adopting", machine_id, hint="its process has just ended")
            with as_engine_errors("adopting", machine_id):
                await vm.connect()
        except BaseException:
            vm.machine.ended.cancel()
            raise
        self._know(vm)
        return vm.machine

    def _know(self, vm: Vm) -> None:
        """From now on it is the process of its machine. There may have been another, which has ended by itself."""
        former = self._known.pop(vm.machine.id, None)
        if former is not None:
            former.hang_up()
        self._known[vm.machine.id] = vm

    async def end(self, machine_id: str) -> None:
        """End the process of a machine, also one that we do not know. Succeeds if there is none."""
        vm = self._known.get(machine_id)
        if vm is not None and vm.limiting is not None:
            await asyncio.wait({vm.limiting})
            vm.limiting.exception()  # seen: whoever started the machine was told
        if vm is None:
            for pid in await asyncio.to_thread(processes.find, argv.mark(self._machines / machine_id)):
                await processes.end(pid)
        else:
            if not vm.machine.ended.done():  # else the pid may be somebody else's by now
                await processes.end(vm.machine.pid)
            vm.hang_up()
            self._known.pop(machine_id, None)
        if self._limit is not None:
            with as_engine_errors("unlimiting", machine_id):
                await finish(asyncio.to_thread(self._limit.end, machine_id))

    def pids(self) -> dict[str, int]:
        """The processes of all machines of this host, whoever started them. Blocks: it looks at every process."""
        found = processes.find_marked(argv.MARK, f"{argv.mark(self._machines)}/")
        return {name.replace(",,", ","): min(pids) for name, pids in found.items()}

    def close(self) -> None:
        """Hang up. The processes go on."""
        for vm in self._known.values():
            vm.hang_up()
        self._known.clear()

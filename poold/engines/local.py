"""The local engine: the guest as a plain process, for developing Warren itself without root or QEMU.

It keeps the promises of `poold.engines.Engine` and isolates nothing: what runs in a machine runs as whoever runs
poold, and sees that user's files and network. Of a shape only the name matters: no size is enforced.

Where the kernel lets us, a machine has namespaces of its own. Then `unshare` is its first process, the guest is the
first process inside, and nothing that it starts outlives it. Elsewhere the guest adopts what loses its parent, so
that everything is still found below it; but if the guest is killed from outside, what it had started goes on.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from contract.models import Shape
from poold import processes
from poold.engines import Found, Machine, Parts, Progress, Settle, Snapshot, family, silent
from poold.errors import EngineError
from poold.images import HOST_KEY, Image
from poold.lifetimes import finish
from poold.slots import Slot

log = logging.getLogger("poold.engines.local")

T = TypeVar("T")

FORMAT = "1"  # part of every snapshot's key: raise it when a snapshot's folder changes its meaning
SOCKET = "guest.sock"
MARK = "--socket"  # its path is the mark by which a later daemon finds the process again
WORKSPACE = "workspace"
LOG = "guest.log"
MAX_SOCKET_PATH = 107  # bytes that the kernel takes as the name of a unix socket
START_LIMIT_S = 30.0  # of patience with an interpreter that starts on a busy computer
RETRY_S = 0.005


class LocalEngine:
    """Machines as guest processes under `folder`, each with its workspace, its socket and its log."""

    name = "local"
    can_save = False
    isolates = False

    def __init__(self, folder: Path, *, python: str, guest_path: Path, namespaces: bool = True) -> None:
        self._machines = folder / "machines"
        self._snapshots = folder / "snapshots"
        self._unshare = _allowed_namespaces() if namespaces else []
        # Nothing of poold's own environment: what runs in a machine can read that of its guest.
        self._guest = [
            *("env", "--ignore-environment", f"PATH={os.defpath}", f"PYTHONPATH={guest_path}"),
            *self._unshare,
            *(python, "-m", "warren_guest"),
        ]
        self._running: dict[str, Machine] = {}
        self._paused: dict[str, list[int]] = {}
        # One change at a time to what has this name: a machine, or the snapshot that is being made.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for path in (self._machines, self._snapshots):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.warning("the local engine isolates nothing: run only what you would run yourself")

    async def build_snapshot(self, image: Image, shape: Shape, slot: Slot, settle: Settle) -> Snapshot:
        """There is no memory to freeze: a guest shows that it starts, and its workspace is the snapshot."""
        snapshot = Snapshot(_key(image, shape), self._snapshots / _key(image, shape), image, shape)
        machine_id = f"build-{snapshot.key}"
        async with self._turn(snapshot.key):
            if snapshot.folder.is_dir():
                return snapshot
            await self.destroy(machine_id)
            try:
                machine = await self._start(machine_id, slot, workspace=None)
                await settle(machine)
                await self.pause(machine)
                await _in_thread("keeping", machine_id, _keep, machine.folder, snapshot)
            finally:
                await finish(self.destroy(machine_id))
        return snapshot

    async def restore(self, snapshot: Snapshot, slot: Slot, machine_id: str) -> Machine:
        try:
            machine = await self._start(machine_id, slot, workspace=snapshot.folder)
            await self.pause(machine)
        except BaseException:
            await finish(self.destroy(machine_id))
            raise
        return machine

    async def pause(self, machine: Machine) -> None:
        async with self._turn(machine.id):
            _check_alive("pausing", machine)
            stopped = await _in_thread("pausing", machine.id, family.stop, [machine.pid], self._spared(machine))
            self._paused.setdefault(machine.id, []).extend(stopped)

    async def resume(self, machine: Machine) -> None:
        async with self._turn(machine.id):
            _check_alive("resuming", machine)
            await _in_thread("resuming", machine.id, family.go_on, machine.pid, self._paused.pop(machine.id, []))

    async def destroy(self, machine_id: str) -> None:
        folder = self._machines / machine_id
        async with self._turn(machine_id):
            machine = self._running.get(machine_id)
            known = [] if machine is None or machine.ended.done() else [machine.pid]
            for pid in await _in_thread("ending", machine_id, _find_stopped, folder / SOCKET, known):
                await processes.end(pid)
            self._running.pop(machine_id, None)
            self._paused.pop(machine_id, None)
            await _in_thread("removing", machine_id, _remove, folder)

    async def dial(self, machine: Machine) -> socket.socket:
        _check_alive("reaching the guest of", machine)
        try:
            return await _connect(machine.folder / SOCKET)
        except OSError as error:
            raise EngineError("reaching the guest of", machine.id, hint=str(error)) from error

    async def save(self, machine: Machine, progress: Progress = silent) -> int:
        raise _cannot_save("saving", machine.id)

    async def halt(self, machine_id: str) -> None:
        raise _cannot_save("halting", machine_id)

    async def load(self, machine_id: str, slot: Slot) -> Machine:
        raise _cannot_save("loading", machine_id)

    async def discard(self, machine_id: str) -> None:
        """There is never a saved state to forget."""

    async def parts(self, machine_id: str) -> Parts:
        raise _cannot_save("taking apart", machine_id)

    async def build_of(self, machine: Machine) -> str:
        """There is one image, and it is never built."""
        return HOST_KEY

    def check_fits(self, machine_id: str, facts: Mapping[str, Any], image: Image) -> None:
        raise _cannot_save("loading", machine_id)

    def planting(
        self, machine_id: str, facts: Mapping[str, Any], image: Image, memory: Path
    ) -> contextlib.AbstractAsyncContextManager[Mapping[str, Path]]:
        raise _cannot_save("planting", machine_id)

    def found(self) -> list[Found]:
        pids = {name: pid for name, (pid, _) in _find_guests(self._machines).items()}
        names = {path.name for path in self._machines.iterdir()} | pids.keys()
        return [
            Found(name, pids.get(name), is_saved=False, uid=os.getuid() if name in pids else None)
            for name in sorted(names)
        ]

    async def adopt(self, machine_id: str, slot: Slot) -> Machine:
        """Of the processes of one that is paused, all that are stopped or about to be count as stopped by us."""
        async with self._turn(machine_id):
            if machine_id in self._running and not self._running[machine_id].ended.done():
                raise EngineError("adopting", machine_id, hint="it is ours already")
            guests = await _in_thread("adopting", machine_id, _find_guests, self._machines)
            if machine_id not in guests:
                raise EngineError("adopting", machine_id, hint="it has no process")
            pid, stopped = guests[machine_id]
            machine = Machine(machine_id, slot, self._machines / machine_id, pid, processes.watch(pid))
            # Only now: from here on its number cannot be that of another process without `ended` saying so.
            if processes.mark_of(pid, MARK) != str(machine.folder / SOCKET):
                machine.ended.cancel()
                raise EngineError("adopting", machine_id, hint="its process has just ended")
            self._running[machine_id] = machine
            self._paused[machine_id] = stopped
            return machine

    def close(self) -> None:
        self._running.clear()
        self._paused.clear()

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    def _spared(self, machine: Machine) -> Collection[int]:
        """`unshare` stays awake in a paused machine: it is who sees the guest end."""
        return (machine.pid,) if self._unshare else ()

    async def _start(self, machine_id: str, slot: Slot, *, workspace: Path | None) -> Machine:
        """Start a guest with a copy of `workspace`, or with an empty one, and wait until it listens."""
        folder = self._machines / machine_id
        path = folder / SOCKET
        if (size := len(os.fsencode(path))) > MAX_SOCKET_PATH:
            hint = f"its socket {path} has a name of {size} bytes and may have {MAX_SOCKET_PATH}: use a shorter folder"
            raise EngineError("starting", machine_id, hint=hint)
        await _in_thread("preparing", machine_id, _prepare, folder, workspace)
        # Not left before we know its pid: until it is a guest, its arguments cannot be relied upon to find it.
        machine = await finish(self._launch(machine_id, slot))
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await _until_it_listens(machine)
        except TimeoutError as error:
            raise EngineError(
                "starting a guest for", machine_id, hint=f"not there after {START_LIMIT_S:g} s"
            ) from error
        return machine

    async def _launch(self, machine_id: str, slot: Slot) -> Machine:
        folder = self._machines / machine_id
        argv = [*self._guest, MARK, str(folder / SOCKET), "--workspace", str(folder / WORKSPACE)]
        pid = await processes.start(argv, log=folder / LOG, cwd=folder)
        machine = self._running[machine_id] = Machine(machine_id, slot, folder, pid, processes.watch(pid))
        return machine


def _key(image: Image, shape: Shape) -> str:
    facts = "\n".join([FORMAT, image.key, str(shape)])
    return f"{shape.image}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def _allowed_namespaces() -> list[str]:
    """The start of a command line for namespaces of its own, or nothing where we may not have them. Found by trying."""
    # As oneself and not as a made-up root: the guest of a developer is the developer.
    who = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    unshare = ["unshare", *who, "--pid", "--mount-proc", "--uts", "--ipc", "--kill-child", "--"]
    try:
        tried = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return unshare if tried.returncode == 0 else []


def _check_alive(doing: str, machine: Machine) -> None:
    if machine.ended.done():
        raise EngineError(doing, machine.id, hint=f"the machine is gone: {machine.ended.result()}")


async def _until_it_listens(machine: Machine) -> None:
    """Wait until a guest that starts takes connections, or raise with what it said before it gave up."""
    while not machine.ended.done():
        try:
            (await _connect(machine.folder / SOCKET)).close()
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(RETRY_S)
        else:
            return
    said = (machine.folder / LOG).read_text(errors="replace")[-500:].strip()
    raise EngineError("starting a guest for", machine.id, hint=said or machine.ended.result())


async def _connect(path: Path) -> socket.socket:
    """A connected, non-blocking socket. Waits while a guest that is paused has all the callers that it can queue."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        while True:
            # Not the loop's sock_connect: a unix socket is connected at once or not at all, never "in progress".
            with contextlib.suppress(BlockingIOError):
                connection.connect(str(path))
                return connection
            await asyncio.sleep(RETRY_S)
    except BaseException:
        connection.close()
        raise


async def _in_thread(doing: str, subject: str, work: Callable[..., T], *args: object) -> T:
    """Call `work` where it may block. It is never left half-way: a cancellation waits for it."""
    try:
        return await finish(asyncio.to_thread(work, *args))
    except OSError as error:
        raise EngineError(doing, subject, hint=str(error)) from error


# All that follows blocks.


def _prepare(folder: Path, workspace: Path | None) -> None:
    """The machine's folder, with its own copy of `workspace` or an empty one."""
    folder.mkdir(mode=0o700)
    if workspace is None:
        (folder / WORKSPACE).mkdir()
        return
    # Whatever may lie in a workspace, with its owners and modes; and for nothing where the file system can share it.
    argv = ["cp", "--archive", "--reflink=auto", str(workspace), str(folder / WORKSPACE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError("copying", str(workspace), hint=done.stderr.strip())


def _keep(folder: Path, snapshot: Snapshot) -> None:
    """The workspace becomes the snapshot in one step: it is all there, or it is not there."""
    (folder / WORKSPACE).rename(snapshot.folder)


def _remove(folder: Path) -> None:
    """Remove `folder` with everything in it, also what its owner may not write to. Succeeds if there is none."""
    for place, names, _ in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _find_stopped(mark: Path, known: Iterable[int]) -> list[int]:
    """Every process of the machine with this mark, stopped: it starts no more of them while they are ended."""
    roots = {*known, *processes.find(str(mark))}
    family.stop(roots)
    return list(family.look().below(roots))


def _find_guests(machines: Path) -> dict[str, tuple[int, list[int]]]:
    """The first process of each machine, and those that were stopped in it if its guest is, parents first.

    Among these are those that the kernel is busy with: one that waits for its child to become another program stops
    only when that goes on.
    """
    marked = processes.find_marked(MARK, f"{machines}/")
    now = family.look()
    found = {}
    for rest, pids in marked.items():
        first = [pid for pid in pids if pid in now.states and now.parents[pid] not in pids]
        if first and rest.endswith(f"/{SOCKET}"):
            states = now.below(first[:1])
            is_paused = any(states.get(pid) in family.STOPPED for pid in pids)
            stopped = [pid for pid, state in states.items() if state in family.STOPPED | {family.IN_THE_KERNEL}]
            found[rest.removesuffix(f"/{SOCKET}")] = (first[0], stopped if is_paused else [])
    return found


def _cannot_save(doing: str, subject: str) -> EngineError:
    return EngineError(doing, subject, hint="the local engine cannot save a machine: its processes are the host's own")

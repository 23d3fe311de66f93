"""The state of a machine on disk, beside its drive: `saved/` in its folder is there as a whole or not at all.

It holds the state of the devices, the pages that the machine changed, and how its drive was at that moment. The golden
memory and the root are in the machine's folder anyway. All functions here block, except where they say `async`.
"""

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import orjson

from poold.engines import sparse
from poold.engines.qemu import golden, made, pages, touched
from poold.engines.qemu.made import Made
from poold.errors import EngineError
from poold.lifetimes import both, finish

SAVED = "saved"
MAKING = "saved.tmp"  # what is being saved, or being removed
PAGES = "pages"
DEVICES = "devices"
DRIVE_FACTS = "drive.json"
MAX_DEVICES_BYTES = 16 << 20  # some 17 KB are usual
LOOK_AGAIN_S = 0.001
TOLD_EACH = 4 << 20  # bytes between two calls of `progress`

T = TypeVar("T")


class Stopped(Exception):
    """Nobody waits for this work any more."""


def is_whole(folder: Path) -> bool:
    """Whether the machine in `folder` is saved."""
    return (folder / SAVED).is_dir()


def remove(folder: Path) -> None:
    """Forget the saved state, in one step. Succeeds if there is none."""
    remove_half(folder)
    with contextlib.suppress(FileNotFoundError):
        (folder / SAVED).rename(folder / MAKING)
    remove_half(folder)


def remove_half(folder: Path) -> None:
    """Remove what is left of a save or a removal that did not come to its end."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder / MAKING)


def begin(folder: Path) -> int:
    """A new place for a state. Returns an open file for that of the devices."""
    remove_half(folder)
    (folder / MAKING).mkdir(mode=0o700)
    return os.open(folder / MAKING / DEVICES, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write_pages(folder: Path, pid: int, memory_bytes: int, at: pages.Progress) -> int:
    """Write what process `pid` changed of the golden memory. Returns the size of the file."""
    address = touched.find_memory(pid, memory_bytes)
    runs = touched.own_runs(pid, address, memory_bytes)
    with (
        touched.ProcessMemory(pid, address) as own,
        touched.GoldenMemory(folder / golden.MEMORY, memory_bytes) as before,
        (folder / MAKING / PAGES).open("xb", buffering=0) as file,
    ):
        size = pages.write(pages.Writer(file.fileno(), memory_bytes), runs, own.read, before.read, at)
        os.fsync(file.fileno())
        return size


def commit(folder: Path) -> int:
    """Let the new state be the machine's saved state, on disk with all that it needs. Returns the bytes of the rest."""
    making = folder / MAKING
    # The machine has stopped, so all that it wrote is in the file; but its flushes went no further.
    sparse.sync(folder / golden.DRIVE)
    (making / DRIVE_FACTS).write_bytes(orjson.dumps(_drive_facts(folder)))
    for path in (making / DEVICES, making / DRIVE_FACTS, making, folder / made.FILE):
        sparse.sync(path)
    rest = check_devices(making, folder.name) + (making / DRIVE_FACTS).stat().st_size
    if is_whole(folder):  # loaded and saved again before anybody discarded the old one
        shutil.rmtree(folder / SAVED)
    making.rename(folder / SAVED)
    sparse.sync(folder)
    sparse.sync(folder.parent)
    return rest


def check_devices(state: Path, machine_id: str) -> int:
    """The bytes of the devices in the folder `state`, or `EngineError` if those cannot be what a QEMU wrote."""
    if not 0 < (devices := (state / DEVICES).stat().st_size) <= MAX_DEVICES_BYTES:
        raise EngineError("saving", machine_id, hint=f"its QEMU wrote {devices} bytes as the state of its devices")
    return devices


def write_drive_facts(folder: Path) -> None:
    """The saved state in `folder` is that of the drive as it is now."""
    (folder / SAVED / DRIVE_FACTS).write_bytes(orjson.dumps(_drive_facts(folder)))


def check_drive(folder: Path) -> None:
    """Raise `EngineError` if the drive is not as it was saved: memory and drive of two moments destroy each other."""
    path = folder / SAVED / DRIVE_FACTS
    try:
        facts = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise EngineError("reading", str(path), hint=str(error)) from error
    if facts != _drive_facts(folder):
        raise EngineError("loading", folder.name, hint="its drive was written to after it was saved")


def _drive_facts(folder: Path) -> dict[str, int]:
    status = (folder / golden.DRIVE).stat()
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}


async def write(folder: Path, pid: int, made_of: Made, progress: pages.Progress) -> int:
    """Write the pages and commit. Returns the bytes written. Cancelled, it stops soon and has not committed.

    `progress` is called on the loop.
    """
    loop = asyncio.get_running_loop()

    def work(stop: threading.Event) -> int:
        told = 0

        def at(done: int, total: int) -> None:
            nonlocal told
            _go_on_unless(stop)
            if done == total or done - told >= TOLD_EACH:
                told = done
                loop.call_soon_threadsafe(progress, done, total)

        size = write_pages(folder, pid, made_of.memory_bytes, at)
        _go_on_unless(stop)
        return size + commit(folder)

    return await _stoppable(work)


async def put_pages(folder: Path, pid: int, made_of: Made) -> None:
    """Check the saved pages and write them into the memory of process `pid`, which has not run its machine yet.

    QEMU maps the memory early in its start and leaves it alone until the state of its devices is loaded, so this
    goes on beside it. Cancelled, it stops soon. A process that never gets that far is waited for.
    """
    path = folder / SAVED / PAGES

    def check(stop: threading.Event) -> None:
        with pages.open_pages(path, made_of.memory_bytes) as content:
            content.check(lambda _done, _total: _go_on_unless(stop))

    async def put() -> None:
        address = await _stoppable(lambda stop: _wait_for_memory(pid, made_of.memory_bytes, stop))
        await both(_stoppable(partial(put_half, address, 0)), _stoppable(partial(put_half, address, 1)))

    def put_half(address: int, which: int, stop: threading.Event) -> None:
        with (
            pages.open_pages(path, made_of.memory_bytes) as content,
            touched.ProcessMemory(pid, address) as memory,
        ):
            every_second = islice(content.batches(), which, None, 2)
            content.put(every_second, memory.write, lambda _done, _total: _go_on_unless(stop))

    await both(_stoppable(check), put())


def _wait_for_memory(pid: int, memory_bytes: int, stop: threading.Event) -> int:
    while True:
        _go_on_unless(stop)
        with contextlib.suppress(EngineError, OSError):  # it is not there yet, or its process is gone
            return touched.find_memory(pid, memory_bytes)
        time.sleep(LOOK_AGAIN_S)


def _go_on_unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped


async def _stoppable(work: Callable[[threading.Event], T]) -> T:
    """Call `work` in a thread. A cancellation asks it to stop, and waits until it has."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await finish(asyncio.wait({task}))
        if not task.cancelled():
            task.exception()  # seen; nobody is left to be told
        raise

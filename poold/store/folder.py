"""A store that is a folder: on one host, or shared by several over a file system that has locks, as NFS does."""

import asyncio
import contextlib
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from poold.lifetimes import finish
from poold.store import MAX_BYTES, Blob, Content, Entry, Observe, Progress, Reading, silent, unobserved
from poold.store.disk import Disk, Draft
from poold.store.errors import Full, Refused, Unreachable, too_large
from poold.store.keys import checked_key, checked_prefix

T = TypeVar("T")

LIMIT_S = 30.0  # of one step: a lock, a piece, a rename
THREADS = 8  # of its own, so that a file system that hangs stops nothing else
PIECE = 1 << 20
PAGE = 500


class FolderStore:
    """What `poold.store.Store` promises, of a folder. `open_folder` makes one."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor, limit_s: float, observe: Observe) -> None:
        self._folder = folder
        self._disk = Disk(folder)
        self._threads = threads
        self._limit_s = limit_s
        self._observe = observe

    def __str__(self) -> str:
        return str(self._folder)

    async def prepare(self) -> None:
        await self._do(lambda _: self._disk.prepare())

    async def sweep(self) -> None:
        await self._do(lambda _: self._disk.sweep())

    async def get(self, key: str) -> Blob:
        checked_key(key)

        def work(_: float) -> Blob:
            opened = self._disk.open(key)
            try:
                if opened.entry.bytes > MAX_BYTES:
                    raise too_large(key, opened.entry.bytes)
                return Blob(opened.entry, b"".join(iter(lambda: opened.next(PIECE), b"")))
            finally:
                opened.close()

        return await self._do(work)

    @contextlib.asynccontextmanager
    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[Reading]:
        checked_key(key)
        opened = await self._do(lambda _: self._disk.open(key, start, end), undo=lambda opened: opened.close())

        async def chunks() -> AsyncIterator[bytes]:
            while data := await self._do(lambda _: opened.next(PIECE)):
                yield data

        try:
            yield Reading(opened.entry, chunks())
        finally:
            await self._do(lambda _: opened.close())

    async def head(self, key: str) -> Entry:
        checked_key(key)
        return await self._do(lambda _: self._disk.head(key))

    async def put(self, key: str, data: bytes) -> Entry:
        return await self._whole(key, data, lambda draft, until: self._disk.put(draft, until=until))

    async def create(self, key: str, data: bytes) -> Entry:
        return await self._whole(key, data, lambda draft, until: self._disk.create(draft, until=until))

    async def replace(self, key: str, data: bytes, tag: str) -> Entry:
        return await self._whole(key, data, lambda draft, until: self._disk.replace(draft, tag, until=until))

    async def write(self, key: str, content: Content, progress: Progress = silent) -> Entry:
        draft = self._disk.draft(checked_key(key), content.bytes, content.sha256)
        try:
            await self._do(lambda _: draft.begin())
            async for piece in content.chunks():
                await self._do(lambda _, piece=piece: draft.add(piece))  # type: ignore[misc]
                progress(draft.bytes, content.bytes)
            await self._do(lambda _: draft.end())
            await self._do(lambda until: self._disk.put(draft, until=until))
        finally:
            await self._do(lambda _: draft.close())
        return _entry(draft)

    async def delete(self, key: str, tag: str | None = None) -> None:
        checked_key(key)
        await self._do(lambda until: self._disk.delete(key, tag, until=until))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Entry]:
        found = self._disk.walk(checked_prefix(prefix), after)
        while page := await self._do(lambda _: list(itertools.islice(found, PAGE))):
            for entry in page:
                yield entry

    async def _whole(self, key: str, data: bytes, place: Callable[[Draft, float], None]) -> Entry:
        """One visit of a thread: a cancellation waits for it, so there is all of it or nothing."""
        if len(data) > MAX_BYTES:
            raise too_large(key, len(data))
        checked_key(key)

        def work(until: float) -> Entry:
            draft = self._disk.draft(key, len(data), hashlib.sha256(data).hexdigest())
            try:
                draft.begin()
                draft.add(data)
                draft.end()
                place(draft, until)
            finally:
                draft.close()
            return _entry(draft)

        return await self._do(work)

    async def _do(self, work: Callable[[float], T], *, undo: Callable[[T], object] | None = None) -> T:
        """What `work` returns, of a thread. It is told until when it may begin to change something."""
        until = time.monotonic() + self._limit_s
        future = self._threads.submit(_if_in_time, work, until)
        return await finish(self._in_time(future), undo=undo)

    async def _in_time(self, future: "Future[T]") -> T:
        began = time.monotonic()
        wrapped = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({wrapped}, timeout=self._limit_s)
        is_answered = bool(done) and not isinstance(wrapped.exception(), Unreachable | Refused | Full)
        self._observe(time.monotonic() - began, is_answered)
        if not done:
            wrapped.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise Unreachable(f"the store's folder {self._folder} did not answer within {self._limit_s:g} s")
        return wrapped.result()


def is_store(folder: Path) -> bool:
    """Whether a store was ever opened there. Changes nothing. Blocks."""
    return Disk(folder).is_prepared


@contextlib.asynccontextmanager
async def open_folder(
    folder: Path, *, limit_s: float = LIMIT_S, observe: Observe = unobserved
) -> AsyncIterator[FolderStore]:
    """The store in `folder`, which is made if it is not there."""
    threads = ThreadPoolExecutor(THREADS, "store")
    try:
        store = FolderStore(folder, threads, limit_s, observe)
        await store.prepare()
        yield store
    finally:
        threads.shutdown(wait=False)


def _if_in_time(work: Callable[[float], T], until: float) -> T:
    if time.monotonic() > until:
        raise Unreachable("the store's folder is busy; nothing was changed")
    return work(until)


def _entry(draft: Draft) -> Entry:
    return Entry(draft.key, draft.told.size, draft.told.tag, draft.told.sha256)

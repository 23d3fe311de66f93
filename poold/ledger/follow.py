"""Following streams of events: what is there, then what is committed, woken by the commits and never by a clock."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial

from poold.ledger import events
from poold.ledger.driver import Connection
from poold.ledger.events import Page as Batch

BATCH = 256  # events that are read, and handed to a follower, at once
BATCH_BYTES = 256 << 10  # or fewer, if they are long: a thousand followers may each have one in memory
Read = Callable[[Callable[[Connection], Batch]], Awaitable[Batch]]


class Followers:
    """Who waits for which stream. All of it happens in the loop's thread."""

    def __init__(self, read: Read, up_to: Callable[[], int] = lambda: events.NEWEST) -> None:
        """`up_to` says how far events may be told: the id of the newest."""
        self._read = read
        self._up_to = up_to
        self._waiting: defaultdict[str | None, set[asyncio.Event]] = defaultdict(set)  # None: all streams
        self._commits = 0
        self._reading: dict[tuple[str | None, int, int], asyncio.Future[Batch]] = {}

    def wake(self, touched: set[str]) -> None:
        """Events of these streams have been committed."""
        self._commits += 1
        for stream in (None, *touched):
            for woken in self._waiting.get(stream, ()):
                woken.set()

    def wake_all(self) -> None:
        for following in self._waiting.values():
            for woken in following:
                woken.set()

    async def follow(self, stream: str | None, after: int) -> AsyncGenerator[Batch, None]:
        woken = asyncio.Event()
        with self._following(stream, woken):
            while True:
                woken.clear()  # before the read: what is committed during it is read next time
                batch = await self._next(stream, after)
                if batch:
                    after = batch[-1].id if stream is None else batch[-1].seq
                    yield batch
                if len(batch) < BATCH and not batch.is_cut:
                    await woken.wait()

    async def changes(self, *streams: str) -> AsyncGenerator[None, None]:
        woken = asyncio.Event()
        with contextlib.ExitStack() as stack:
            for stream in streams:
                stack.enter_context(self._following(stream, woken))
            while True:
                woken.clear()  # before whoever follows reads: what is committed meanwhile is read next time
                yield
                await woken.wait()

    @contextlib.contextmanager
    def _following(self, stream: str | None, woken: asyncio.Event) -> Iterator[None]:
        self._waiting[stream].add(woken)
        try:
            yield
        finally:
            self._waiting[stream].discard(woken)
            if not self._waiting[stream]:
                del self._waiting[stream]

    async def _next(self, stream: str | None, after: int) -> Batch:
        """Read on. Followers who are equally far and were woken by the same commit share one read."""
        key = (stream, after, self._commits)
        reading = self._reading.get(key)
        if reading is None:
            cut = partial(events.everything_after, event_id=after)
            if stream is not None:
                cut = partial(events.after, stream=stream, seq=after)
            question = partial(cut, limit=BATCH, most_bytes=BATCH_BYTES, up_to=self._up_to())
            reading = asyncio.ensure_future(self._read(question))
            self._reading[key] = reading
            reading.add_done_callback(lambda read: self._forget(key, read))
        return await asyncio.shield(reading)  # one who leaves takes nothing from the others

    def _forget(self, key: tuple[str | None, int, int], reading: "asyncio.Future[Batch]") -> None:
        del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # all who waited for it may have left

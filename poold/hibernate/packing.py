"""Files into the store, in parts of some megabytes: read, compressed, sent, and read again from there."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from poold.hibernate import frames
from poold.hibernate.errors import Damaged
from poold.hibernate.manifest import File, Frame, Part
from poold.lifetimes import finish
from poold.store import Progress, Store
from poold.store.errors import Corrupt, NoObject

ENOUGH = 8 << 20  # bytes of a part; the frame that reaches it is its last
MOST_FRAMES = 32
AT_ONCE = 4  # parts under way, some 12 MiB each


@dataclass(eq=False)
class _Making:
    """A part that fills."""

    frames: list[Frame] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    @property
    def is_full(self) -> bool:
        return len(self.data) >= ENOUGH or len(self.frames) == MOST_FRAMES


@dataclass(eq=False)
class Told:
    """How far something is, for whoever watches."""

    progress: Progress
    all_bytes: int
    done_bytes: int = 0

    def add(self, count: int) -> None:
        self.done_bytes = min(self.all_bytes, self.done_bytes + count)
        self.progress(self.done_bytes, self.all_bytes)


class _Parts:
    """A file's parts, made one after the other. Blocks."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._raw = frames.raw_frames(path)
        self._hash = hashlib.sha256()
        self._count = 0
        self.looked_at = 0

    def next(self) -> tuple[Part, bytes] | None:
        making = _Making()
        for raw in self._raw:
            self._hash.update(raw)
            self.looked_at += len(raw)
            packed = frames.compress(raw)
            making.frames.append(Frame(len(packed), len(raw)))
            making.data += packed
            if making.is_full:
                break
        if not making.frames:
            return None
        self._count += 1
        data = bytes(making.data)
        name = f"{self._name}-{self._count:05}"
        return Part(name, hashlib.sha256(data).hexdigest(), tuple(making.frames)), data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


async def pack(store: Store, prefix: str, name: str, path: Path, told: Told) -> File:
    """Send the file `path` to the store, in parts `prefix`NAME-number. If this raises, some of them may be there."""
    made = _Parts(name, path)
    sent: list[Part] = []
    room = asyncio.Semaphore(AT_ONCE)

    async def send(part: Part, data: bytes) -> None:
        try:
            await store.put(prefix + part.name, data)
        finally:
            room.release()

    async with _together() as tasks:
        while True:
            await room.acquire()
            before = made.looked_at
            found = await finish(asyncio.to_thread(made.next))
            if found is None:
                break
            told.add(made.looked_at - before)
            sent.append(found[0])
            tasks.create_task(send(*found))
    return File((await asyncio.to_thread(path.stat)).st_size, made.sha256, tuple(sent))


async def read_part(store: Store, prefix: str, part: Part) -> bytes:
    """The part as it was sent. Raises `Damaged` if it is missing or another."""
    key = prefix + part.name
    try:
        data = (await store.get(key)).data
    except (NoObject, Corrupt) as error:
        raise Damaged(key, "it is missing" if isinstance(error, NoObject) else error.problem) from error
    if len(data) != part.bytes or hashlib.sha256(data).hexdigest() != part.sha256:
        raise Damaged(key, f"it has {len(data)} bytes that are not those of its {part.bytes}")
    return data


async def check(store: Store, prefix: str, files: Iterable[File], told: Told) -> None:
    """Read every part back. Raises `Damaged` if one is not what was sent."""

    async def look(part: Part) -> None:
        await read_part(store, prefix, part)
        told.add(part.bytes)

    await each((part for file in files for part in file.parts), look)


async def each(parts: Iterable[Part], work: Callable[[Part], Awaitable[None]]) -> None:
    """Do `work` for all `parts`, some at once. The first error ends the others and is raised as it is."""
    waiting: Iterator[Part] = iter(parts)

    async def worker() -> None:
        for part in waiting:
            await work(part)

    async with _together() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())


class _together(asyncio.TaskGroup):  # noqa: N801 — a block
    """A task group whose error is the first one, without a group around it."""

    async def __aexit__(self, *given: object) -> None:
        try:
            await super().__aexit__(*given)  # type: ignore[arg-type]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

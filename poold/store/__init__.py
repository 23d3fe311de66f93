"""The object store: the one thing that hosts share. A folder or S3, and nobody above this room knows which.

A key is like a path: `leases/host-1` (`poold.store.keys`). No key is the folder of another: beside `a/b` there is no
`a`. What is written under a key is there as a whole or not at all, and whoever reads after a write has returned reads
that write. Each object has the SHA-256 of its content with it, which is checked whenever all of it is read.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

Progress = Callable[[int, int], None]
Observe = Callable[[float, bool], None]  # seconds that a request took, and whether it was answered
MAX_BYTES = 16 << 20  # of an object that is read or written in one piece


def silent(_done_bytes: int, _all_bytes: int) -> None:
    """The progress of what nobody watches."""


def unobserved(_seconds: float, _is_answered: bool) -> None:
    """The requests of a store that nobody watches."""


@dataclass(frozen=True)
class Entry:
    """An object without its content. `tag` is another one after every write of another content.

    Of an object that nobody wrote through a store, or that is damaged, a listing tells a tag that matches nothing.
    """

    key: str
    bytes: int
    tag: str
    sha256: str = ""  # a listing does not tell it
    # When it was written, by the clock of the store: only a listing tells it, and nobody decides more by it than
    # whether something is days old.
    written_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Blob:
    """A small object with its content."""

    entry: Entry
    data: bytes


@dataclass(frozen=True)
class Content:
    """What is to be written in pieces. Its hash is known before, so that a half or a changed one never gets a name.

    `chunks` is called anew for each attempt to send it.
    """

    chunks: Callable[[], AsyncIterator[bytes]]
    bytes: int
    sha256: str


class Store(Protocol):
    """Safe to call from many tasks. Raises the errors of `poold.store.errors` and nothing else.

    Each call has a limit of time and is tried again by itself where that is safe. A write carries a number drawn at
    random, and one whose reply was lost is looked at before it is tried again: what is there with our number was
    written by us. If somebody else's is there by then nobody can tell whether ours was in between, and `Unreachable`
    is raised; after `Conflict` nothing was changed, for sure.

    A write that was cancelled, or ended as `Unreachable`, is done or not, and perhaps only a moment later: S3 may have
    the request and not have come to it. All of it or nothing, as ever.
    """

    async def get(self, key: str) -> Blob:
        """The object, of at most `MAX_BYTES`. Raises `NoObject`, or `Corrupt` if it is not what was written."""
        ...

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AbstractAsyncContextManager["Reading"]:
        """The object in pieces, or its bytes from `start` up to `end`, or to its end if that is before.

        The end of a whole one raises `Corrupt` if it is not what was written; of a part only its length is known to
        be right. Raises `NoObject` when the block is entered.
        """
        ...

    async def head(self, key: str) -> Entry:
        """The object without its content. Raises `NoObject`."""
        ...

    async def put(self, key: str, data: bytes) -> Entry:
        """Let `key` hold `data`, of at most `MAX_BYTES`, whatever was there."""
        ...

    async def create(self, key: str, data: bytes) -> Entry:
        """As `put`, if there is no such object. Raises `Conflict` if there is: of many who try, one wins."""
        ...

    async def replace(self, key: str, data: bytes, tag: str) -> Entry:
        """As `put`, if the object is the one with this tag. Raises `Conflict` if it is another, or gone."""
        ...

    async def write(self, key: str, content: Content, progress: Progress = silent) -> Entry:
        """As `put`, in pieces and of any size. `progress(done_bytes, all_bytes)` is called now and then.

        Raises `WrongContent` if the pieces are not what their hash says, and what they raise; then nothing is changed.
        """
        ...

    async def delete(self, key: str, tag: str | None = None) -> None:
        """Remove the object. Succeeds if there is none; with a tag raises `Conflict` if it is another one."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Entry]:
        """The objects whose keys begin with `prefix`. Those of one folder come by name; which folder comes first is
        the store's own business. `after` a key that was listed it goes on behind that.
        """
        ...

    async def sweep(self) -> None:
        """Remove the halves of objects whose writers have been gone for a day or two."""
        ...


@dataclass(frozen=True)
class Reading:
    """An object that is being read."""

    entry: Entry
    chunks: AsyncIterator[bytes]

"""A tar stream, read header by header as it comes, in bounded memory. No I/O.

What is let through is what was understood: POSIX headers, with extended ones (among them GNU's sparse files 1.0), and
GNU's long names. What two programs could read in two ways is refused, for whoever unpacks it may be the other one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from contract.errors import shown
from poold.archives.errors import BadArchive

BLOCK = 512
ZEROS = bytes(BLOCK)
MAX_EXTENDED = 1 << 20  # of one extended header: some have attributes besides names
MAX_SIZE = 1 << 50  # of one file; no disk of a guest has as much, and sums of it stay numbers
POSIX_MAGIC, GNU_MAGIC = b"ustar\x0000", b"ustar  \x00"
EXTENDED, OF_ALL, LONG_NAME, LONG_LINK = b"x", b"g", b"L", b"K"
SPARSE = b"GNU.sparse."


class Kind(Enum):
    FILE = "file"
    HARD_LINK = "hard link"
    SYMLINK = "symlink"
    DEVICE = "device"
    FOLDER = "folder"
    FIFO = "fifo"


KINDS = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.DEVICE,
    b"4": Kind.DEVICE,
    b"5": Kind.FOLDER,
    b"6": Kind.FIFO,
}


@dataclass(frozen=True)
class Member:
    """What a stream says of one thing in it."""

    kind: Kind
    names: tuple[bytes, ...]  # the one that counts first; programs that know less go by another
    link: bytes  # what a link leads to
    stored: int  # bytes in the stream
    size: int  # bytes when it is unpacked
    mode: int = 0
    uid: int = 0
    gid: int = 0

    @property
    def name(self) -> bytes:
        return self.names[0]


def _unheard(_data: bytes) -> None:
    """What is in a file, where nobody wants to know."""


class Tar:
    """Reads one stream. `judge` is asked of each member whether it is kept; it may raise, which ends the reading.

    `hear` is told the data of the members that are kept, as it is stored. Without `has_end` what is returned is to be
    followed by more.
    """

    def __init__(
        self, judge: Callable[[Member], bool], hear: Callable[[bytes], None] = _unheard, *, has_end: bool = True
    ) -> None:
        self._judge = judge
        self._hear = hear
        self._has_end = has_end
        self._gathered = bytearray()  # a header, or the body of an extended one, as far as it came
        self._wanted = BLOCK
        self._extended: bytes | None = None  # the type of the extended header whose body is gathered
        self._size = 0  # of that body
        self._before: dict[bytes, bytes] = {}  # bodies of extended headers that are for the next member
        self._pending = bytearray()  # those headers as they came
        self._left = 0  # bytes of a member's data, with what fills its last block
        self._unheard = 0  # of those without
        self._keeps = True
        self._zeros = 0
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """Read on, and return what of it (and of what was held back) is kept. What follows the end is not."""
        view, kept = memoryview(data), []
        while view and not self.is_over:
            take = self._left or self._wanted - len(self._gathered)
            piece, view = view[:take], view[take:]
            if self._left:
                self._left -= len(piece)
                if self._keeps:
                    kept.append(bytes(piece))
                    self._hear(kept[-1][: self._unheard])
                    self._unheard = max(0, self._unheard - len(piece))
                continue
            self._gathered += piece
            if len(self._gathered) == self._wanted:
                kept.append(self._step())
        return b"".join(kept)

    def end(self) -> None:
        """The stream has ended. Raises `BadArchive` if it should not have."""
        if not self.is_over:
            raise BadArchive("the archive of the workspace ends in the middle")

    def _step(self) -> bytes:
        """A header, or the body of one, is there as a whole."""
        gathered, self._gathered, self._wanted = bytes(self._gathered), bytearray(), BLOCK
        if self._extended is not None:
            kind, self._extended = self._extended, None
            self._pending += gathered
            return self._take_extended(kind, gathered[: self._size])
        if gathered == ZEROS:
            return self._take_zeros()
        if self._zeros:
            raise BadArchive("the archive of the workspace goes on behind its end")
        header = _Header(gathered)
        if header.type in (EXTENDED, OF_ALL, LONG_NAME, LONG_LINK):
            self._begin_extended(header, gathered)
            return b""
        return self._take_member(header, gathered)

    def _take_zeros(self) -> bytes:
        """Two blocks of zeros are the end."""
        if self._before:
            raise BadArchive("the archive of the workspace has a header that is of nothing")
        self._zeros += 1
        self.is_over = self._zeros == 2
        return ZEROS * 2 if self.is_over and self._has_end else b""

    def _begin_extended(self, header: "_Header", block: bytes) -> None:
        if not 0 < header.size <= MAX_EXTENDED:
            problem = f"a header of {header.size} bytes, and {MAX_EXTENDED} are the most"
            raise BadArchive(f"the archive of the workspace has {problem}")
        is_second = header.type in self._before or (self._before and header.type == OF_ALL)
        is_mixed = (header.type == EXTENDED and self._before) or EXTENDED in self._before
        if is_second or is_mixed:
            raise BadArchive("the archive of the workspace has two headers for one name")
        self._pending += block
        self._extended, self._size, self._wanted = header.type, header.size, _padded(header.size)

    def _take_extended(self, kind: bytes, body: bytes) -> bytes:
        if kind != OF_ALL:
            self._before[kind] = body
            return b""
        for key in _records(body):
            if key in (b"path", b"linkpath", b"size") or key.startswith(SPARSE):
                raise BadArchive(f"the archive of the workspace says {shown(key)} of all that is in it")
        kept, self._pending = bytes(self._pending), bytearray()
        return kept

    def _take_member(self, header: "_Header", block: bytes) -> bytes:
        before, self._before = self._before, {}
        pending, self._pending = self._pending, bytearray()
        member = _member(header, before)
        self._keeps = self._judge(member)
        self._left, self._unheard = _padded(member.stored), member.stored
        return bytes(pending) + block if self._keeps else b""


class _Header:
    """The fields of one block that we go by."""

    def __init__(self, block: bytes) -> None:
        magic = block[257:265]
        if magic not in (POSIX_MAGIC, GNU_MAGIC):
            raise BadArchive("the archive of the workspace has what is no header of tar")
        if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _number(block[148:156]):
            raise BadArchive("the archive of the workspace has a header whose sum is wrong")
        self.type = block[156:157]
        self.size = _number(block[124:136])
        self.link = _text(block[157:257])
        self.mode, self.uid, self.gid = _small(block[100:108]) & 0o7777, _small(block[108:116]), _small(block[116:124])
        name, prefix = _text(block[:100]), _text(block[345:500])
        # GNU's own format has other things where POSIX has a prefix.
        self.name = prefix + b"/" + name if prefix and magic == POSIX_MAGIC else name


def _member(header: _Header, before: dict[bytes, bytes]) -> Member:
    """One thing of the stream, by its own header and by what was said before it."""
    kind = KINDS.get(header.type)
    if kind is None:
        raise BadArchive(f"the archive of the workspace has something of an unknown type {shown(header.type)}")
    said = _records(before.get(EXTENDED, b""))
    name = said.get(b"path") or _long(before.get(LONG_NAME)) or header.name
    link = said.get(b"linkpath") or _long(before.get(LONG_LINK)) or header.link
    stored = _decimal(said[b"size"]) if b"size" in said else header.size
    if kind is not Kind.FILE and stored:
        raise BadArchive(f"the archive of the workspace has a {kind.value} with data: {shown(name)}")
    if stored > MAX_SIZE:
        raise BadArchive(f"the archive of the workspace has a file of {stored} bytes: {shown(name)}")
    real_name, size = _sparse(said, kind, stored)
    names = (name,) if real_name is None else (real_name, name)
    uid = _decimal(said[b"uid"]) if b"uid" in said else header.uid
    gid = _decimal(said[b"gid"]) if b"gid" in said else header.gid
    link = link if kind in (Kind.HARD_LINK, Kind.SYMLINK) else b""
    return Member(kind, names, link, stored, size, header.mode, uid, gid)


def _sparse(said: dict[bytes, bytes], kind: Kind, stored: int) -> tuple[bytes | None, int]:
    """A sparse file's own name and size; of others no name, and what is stored."""
    sparse = {key.removeprefix(SPARSE): value for key, value in said.items() if key.startswith(SPARSE)}
    if not sparse:
        return None, stored
    is_known = (sparse.get(b"major"), sparse.get(b"minor")) == (b"1", b"0") and kind is Kind.FILE
    if not is_known or not sparse.get(b"name") or b"realsize" not in sparse:
        raise BadArchive("the archive of the workspace has a sparse file of an unknown form")
    size = _decimal(sparse[b"realsize"])
    if size > MAX_SIZE:
        raise BadArchive(f"the archive of the workspace has a file of {size} bytes: {shown(sparse[b'name'])}")
    return sparse[b"name"], size


def _records(body: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, one after the other, each key once."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        match = re.compile(rb"([0-9]{1,7}) ([^=\0\n]{1,255})=").match(body, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(body) or body[end - 1 : end] != b"\n" or match[2] in found:
            raise BadArchive("the archive of the workspace has an extended header that makes no sense")
        found[match[2]] = body[match.end() : end - 1]
        at = end
    for key in (b"path", b"linkpath", b"size"):
        if found.get(key) == b"":
            raise BadArchive(f"the archive of the workspace has an empty {key.decode()}")
    return found


def _long(body: bytes | None) -> bytes | None:
    """A long name has one NUL, at its end; whoever judges names refuses those with others."""
    return None if body is None else body.removesuffix(b"\0")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _decimal(text: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,20}", text):
        raise BadArchive(f"the archive of the workspace has a size that is no number: {shown(text)}")
    return int(text)


def _number(field: bytes) -> int:
    """Octal digits, or (as GNU does with large ones) a binary number behind a bit that says so."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    match = re.fullmatch(rb" *([0-7]+)[ \0]*", field)
    if match is None:
        raise BadArchive(f"the archive of the workspace has a field that is no number: {shown(field)}")
    return int(match[1], 8)


def _small(field: bytes) -> int:
    """A mode or an owner. Where there is none it is nobody's choice: whoever unpacks it says."""
    try:
        return _number(field)
    except BadArchive:
        return 0


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK

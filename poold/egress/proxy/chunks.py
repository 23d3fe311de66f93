"""Bodies that come in chunks, read strictly. No I/O."""

import re

MAX_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8 * 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")


class BadChunk(ValueError):
    """Not the chunks of a body, or not in the only way that everybody reads alike."""


class Chunks:
    """Reads one body. What is said beside it (extensions, trailers) is read and not kept."""

    def __init__(self) -> None:
        self.is_done = False
        self._line = bytearray()  # a line that is not whole yet
        self._left = 0  # of the chunk's data
        self._read = self._size
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """The pieces of the body in `data`, and how many bytes of it belong to this body. Raises `BadChunk`."""
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_done:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            at = self._feed_line(data, at)
        return pieces, at

    def _feed_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        self._line += data[at:stop]
        if len(self._line) > MAX_LINE_BYTES:
            raise BadChunk("a line in a chunked body is too long")
        if end >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
                raise BadChunk("a line in a chunked body does not end in CR LF")
            self._read(line[:-2])
        return stop

    def _size(self, line: bytes) -> None:
        said = _SIZE.fullmatch(line)
        if said is None:
            raise BadChunk("the size of a chunk is not a number")
        self._left = int(said[1], 16)
        self._read = self._after_data if self._left else self._trailer

    def _after_data(self, line: bytes) -> None:
        if line:
            raise BadChunk("a chunk is longer than its size")
        self._read = self._size

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line) + 2
        if self._trailer_bytes > MAX_TRAILER_BYTES or (line and not _TRAILER.fullmatch(line)):
            raise BadChunk("what follows a chunked body is not a header")
        self.is_done = not line

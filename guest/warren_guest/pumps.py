"""What moves bytes between a process's descriptors and the loop: a pump for its output, an inlet for its input.

Each owns the descriptors that it is given and closes them exactly once.
"""

import asyncio
import fcntl
import os
import termios
from collections.abc import Callable

from warren_guest.bell import Bell
from warren_guest.errors import RefusedError
from warren_guest.frames import PAYLOAD_LIMIT
from warren_guest.output import Output

_READS_PER_TURN = 4


class Pump:
    """Reads the output of a process as fast as its readers allow.

    `on_progress` is called after every read and every end of file.
    """

    def __init__(self, output: Output, sources: dict[int, int], on_progress: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._kinds = {fd: kind for kind, fd in sources.items()}
        self._on_progress = on_progress
        self._owed: dict[int, int] = {}
        self._discards = False
        self._is_paused = True
        self._output.on_room = self._resume
        self._resume()

    @property
    def is_open(self) -> bool:
        return bool(self._kinds)

    @property
    def has_waiting(self) -> bool:
        """Whether something was written that is not read yet."""
        return any(_waiting_in(fd) for fd in self._kinds)

    @property
    def is_owed(self) -> bool:
        """Whether output that was written before `note_owed` is still unread."""
        return any(self._owed.values())

    def note_owed(self) -> None:
        """Count what waits in the pipes now: when the process has just ended, this is the last of its own output."""
        self._owed = {fd: _waiting_in(fd) for fd in self._kinds}

    def discard(self) -> None:
        """From now on read and forget: the process is over, and those it left behind must not die of a closed pipe."""
        self._discards = True
        self._resume()

    def _read(self, fd: int) -> None:
        # Several reads per turn of the loop: what a turn costs is shared by more bytes.
        for _ in range(_READS_PER_TURN):
            try:
                data = os.read(fd, PAYLOAD_LIMIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""  # EIO: nobody holds the other side of the terminal any more
            self._take(fd, data)
            if self._is_paused or len(data) < PAYLOAD_LIMIT:
                break
        self._on_progress()

    def _take(self, fd: int, data: bytes) -> None:
        if not data:
            self._close(fd)
        elif not self._discards:
            self._output.append(self._kinds[fd], data)
            self._owed[fd] = max(self._owed.get(fd, 0) - len(data), 0)
            if self._output.is_full:
                self._pause()

    def _pause(self) -> None:
        self._is_paused = True
        for fd in self._kinds:
            self._loop.remove_reader(fd)

    def _resume(self) -> None:
        if self._is_paused and (self._discards or not self._output.is_full):
            self._is_paused = False
            for fd in self._kinds:
                self._loop.add_reader(fd, self._read, fd)

    def _close(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._owed.pop(fd, None)
        del self._kinds[fd]
        os.close(fd)

    def close(self) -> None:
        for fd in list(self._kinds):
            self._close(fd)


def _waiting_in(fd: int) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), "little")
    except OSError:
        return 0


class Inlet:
    """The standard input of a process, or its terminal. Writers take turns; each waits until the process reads."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = fd
        self._turn = asyncio.Lock()
        self._ready = Bell()

    async def write(self, pieces: list[bytes]) -> None:
        """Raises `no_stdin` if it was closed, by us or by the process."""
        async with self._turn:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[await self._write_some(view) :]

    async def _write_some(self, view: memoryview) -> int:
        if self._fd is None:
            raise RefusedError("no_stdin", "standard input is closed")
        try:
            return os.write(self._fd, view)
        except BlockingIOError:
            await self._wait_writable(self._fd)
            return 0
        except OSError as exc:
            raise RefusedError("no_stdin", f"the process does not read its input any more: {exc.strerror}") from exc

    async def _wait_writable(self, fd: int) -> None:
        self._loop.add_writer(fd, self._ready.ring)
        try:
            await self._ready.wait()
        finally:
            if self._fd == fd:
                self._loop.remove_writer(fd)

    async def end(self) -> None:
        """Close it after those who write now."""
        async with self._turn:
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None
            self._ready.ring()

    def set_window(self, cols: int, rows: int) -> None:
        """Change the size of the terminal behind it."""
        if self._fd is not None:
            termios.tcsetwinsize(self._fd, (rows, cols))

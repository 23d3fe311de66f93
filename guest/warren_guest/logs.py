"""The guest's own log: its last lines in memory, and on the machine's console until it is ready."""

import logging
import os
import time
from collections import deque

KEPT = 1000
_LINE_LIMIT = 2000


class Ring(logging.Handler):
    """Keeps the last lines of everything that is logged. A traceback is as many lines as it has."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=KEPT)
        self.setFormatter(Format())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += [line[:_LINE_LIMIT] for line in self.format(record).splitlines()]

    def last(self, count: int) -> str:
        lines = list(self._lines)[-count:]
        return "".join(f"{line}\n" for line in lines)


class Format(logging.Formatter):
    """UTC to the millisecond, level, module, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self.default_msec_format = "%s.%03dZ"


class Console(logging.Handler):
    """Writes lines to the kernel's log, where the host sees them even if the guest never gets ready."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._fd, f"warren-guest: {record.getMessage()}\n".encode()[:900])
        except OSError:
            self.handleError(record)


def open_log() -> Ring:
    """Keep what any module logs from now on."""
    ring = Ring()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(ring)
    return ring

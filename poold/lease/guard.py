"""What poold tells its warden, in two files of the run folder: whom to kill, and when.

The time is written with every renewal and must get through on a full disk, too: it is a record of fixed length,
written over itself, with a checksum by which a reader knows half of one from a whole one.
"""

import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from contract.errors import CallerError
from contract.fields import Fields
from poold import processes
from poold.files import PRIVATE, put

RECORD_BYTES = 512
CHECKSUM_BYTES = 8
TARGETS_BYTES = 1 << 20
MAX_NS = 1 << 62
TRIES = 100  # to read a record that is just being written


@dataclass(frozen=True)
class Targets:
    """How the processes of a host are found that must not outlive its lease, and poold's own."""

    marks: tuple[tuple[str, str], ...] = ()  # an option, and what the argument after it begins with
    arguments: tuple[tuple[str, ...], ...] = ()  # all of these are whole arguments of it
    groups: tuple[str, ...] = ()  # folders with a control group for each machine

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> "Targets":
        found: dict[str, Any] = orjson.loads(data)
        marks = tuple((str(option), str(prefix)) for option, prefix in found["marks"])
        arguments = tuple(tuple(map(str, words)) for words in found["arguments"] if words)
        return cls(marks, arguments, tuple(map(str, found["groups"])))


@dataclass(frozen=True)
class Until:
    """Until when this host holds its lease, as poold last knew. 0 is: nothing is to be guarded."""

    boot: str
    epoch: int = 0
    hold_ns: int = 0  # until then poold goes on
    kill_ns: int = 0  # from then on nothing may run
    pid: int = 0  # of poold
    started: str = ""  # and when that began: no other process has had this number then

    @classmethod
    def nothing(cls, boot: str) -> "Until":
        """This process is poold, and has nothing to be guarded yet."""
        return cls(boot, pid=os.getpid(), started=processes.started(os.getpid()))

    def over(self) -> "Until":
        """The same poold has nothing to be guarded any more."""
        return replace(self, epoch=0, hold_ns=0, kill_ns=0)

    def encode(self) -> bytes:
        """Always as many bytes."""
        body = orjson.dumps(asdict(self)).ljust(RECORD_BYTES - CHECKSUM_BYTES)
        return body + b"%08x" % zlib.crc32(body)

    @classmethod
    def decode(cls, data: bytes) -> "Until | None":
        """None if this is not a whole record."""
        body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        if len(data) != RECORD_BYTES or checksum != b"%08x" % zlib.crc32(body):
            return None
        with contextlib.suppress(CallerError):
            fields = Fields.parse(body.strip())
            return cls(
                boot=fields.text("boot", max_chars=64),
                epoch=fields.integer("epoch", low=0, high=MAX_NS),
                hold_ns=fields.integer("hold_ns", low=0, high=MAX_NS),
                kill_ns=fields.integer("kill_ns", low=0, high=MAX_NS),
                pid=fields.integer("pid", low=0, high=MAX_NS),
                started=fields.text("started", max_chars=64),
            )
        return None


@dataclass
class Guard:
    """The folder by which a poold and its warden know of each other."""

    folder: Path
    _file: int | None = field(default=None, repr=False)

    @property
    def lock(self) -> Path:
        """Locked by the warden that runs; what it says of itself is in it."""
        return self.folder / "warden.lock"

    @property
    def log(self) -> Path:
        return self.folder / "warden.log"

    @property
    def killed(self) -> Path:
        """What a warden has done, for the next start."""
        return self.folder / "killed.json"

    def prepare(self, targets: Targets) -> None:
        """Blocks."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        put(self.folder / "targets.json", targets.encode(), PRIVATE)

    def targets(self) -> Targets:
        """Raises `OSError` or `ValueError`."""
        with (self.folder / "targets.json").open("rb") as file:
            return Targets.decode(file.read(TARGETS_BYTES))

    def write(self, until: Until) -> None:
        """The warden knows this from now on. Raises `OSError`. Blocks."""
        if self._file is None:
            path = self.folder / "until"
            if not path.exists():
                put(path, Until("").encode(), PRIVATE)
            self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._file, until.encode(), 0)

    def read(self) -> Until | None:
        """What was last written, or None if there is nothing whole. Blocks."""
        with contextlib.suppress(OSError):
            for _ in range(TRIES):
                found = Until.decode((self.folder / "until").read_bytes())
                if found is not None:
                    return found
        return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    @contextlib.contextmanager
    def opened(self) -> Iterator["Guard"]:
        try:
            yield self
        finally:
            self.close()

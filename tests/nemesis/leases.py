"""Who held which lease when, by what the store was really told: every write to `leases/` that it accepted."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_LEASE = re.compile(r"/leases/([^/?]+)$")


@dataclass(frozen=True)
class Written:
    at: float  # monotonic: when the store had answered
    host: str
    epoch: int
    root: int  # 0: nobody holds it
    holder: str
    beat: int
    taken: Sequence[tuple[int, int, str, int]]  # root, last, by, by_epoch


@dataclass
class Leases:
    """In the order of the store's answers."""

    written: list[Written] = field(default_factory=list)

    def put(self, path: str, body: bytes, status: int) -> None:
        match = _LEASE.search(path.partition("?")[0])
        if match is not None and status == 200:
            self.written.append(read(match[1], body))


def read(host: str, body: bytes) -> Written:
    told: dict[str, Any] = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])  # it may come in chunks
    taken = [(each["root"], each["last"], each["by"], each["by_epoch"]) for each in told["taken"]]
    return Written(time.monotonic(), host, told["epoch"], told["root"], told["holder"], told["beat"], taken)

"""What is told of connections: one row for each, kept until somebody has written it down. No I/O.

Guests say what they like, as often as they like: refusals that are alike are one row, and no more rows are made in a
second, in the long run, or kept, than the constants say. Rows get their numbers when they are sent, so that those that
still wait can be put together without a gap.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

MAX_KEPT = 20_000
MAX_REFUSALS_AT_ONCE = 200  # of different kinds, in the time in which they are collected
# Rows are kept for a year, and a guest can be refused in a new way each time, all day long.
MANY_REFUSALS, MORE_REFUSALS_PER_S = 5_000, 5.0
MAX_SENT = 1_000  # and not taken yet
ALIKE_S = 0.2  # for so long refusals are collected; whoever looks right after one finds it
MAX_NAME_CHARS = 253
MAX_RULE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Row:
    sandbox: str | None
    at_ms: int
    verdict: str
    via: str
    name: str | None = None
    address: str | None = None
    port: int | None = None
    rule: str | None = None
    why: str | None = None
    up: int = 0
    down: int = 0
    duration_ms: int = 0
    times: int = 1
    id: int | None = None


def shown(text: str | None) -> str | None:
    """A name as a guest said it, in a form that nobody has to be afraid of."""
    if text is None:
        return None
    return "".join(char if "!" <= char <= "~" else "?" for char in text[:MAX_NAME_CHARS])


def shown_rule(rule: str) -> str:
    """What a rule says, as long as whoever reads it takes it: one may have thousands of characters of paths."""
    return rule if len(rule) <= MAX_RULE_CHARS else rule[: MAX_RULE_CHARS - 1] + "…"


class Rows:
    """Collects rows. `wake` is called when there may be something to send."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._alike: dict[object, Row] = {}
        self._waiting: deque[Row] = deque()
        self._sent: deque[tuple[int, Row]] = deque()
        self._number = 0
        self._room = float(MANY_REFUSALS)  # for refusals that are not like others
        self._at_ms = 0

    def add(self, row: Row) -> None:
        """A row of its own."""
        self._waiting.append(row)
        if len(self._waiting) > MAX_KEPT:
            self._merge()
        self._wake()

    def refuse(self, row: Row) -> bool:
        """A refusal, which is one row with those like it. True: it is the first, and `flush` is wanted in `ALIKE_S`."""
        key: object = (row.sandbox, row.via, row.name, row.address, row.port, row.why)
        if key not in self._alike and not self._has_room(row.at_ms):
            key = row.sandbox
            row = Row(row.sandbox, row.at_ms, "refused", row.via, why="too_fast", times=row.times)
        is_first = not self._alike
        before = self._alike.get(key)
        self._alike[key] = row if before is None else replace(before, times=before.times + row.times)
        return is_first

    def _has_room(self, at_ms: int) -> bool:
        """Take the place of a row, if there is one."""
        passed_s = max(0, at_ms - self._at_ms) / 1000
        self._room = min(MANY_REFUSALS, self._room + passed_s * MORE_REFUSALS_PER_S)
        self._at_ms = at_ms
        if len(self._alike) >= MAX_REFUSALS_AT_ONCE or self._room < 1:
            return False
        self._room -= 1
        return True

    def flush(self) -> None:
        """No more refusals are like those that were collected."""
        collected, self._alike = self._alike, {}
        for row in collected.values():
            self.add(row)

    def next(self) -> Iterator[dict[str, Any]]:
        """The rows that may be sent now, each once, with their numbers."""
        while self._waiting and len(self._sent) < MAX_SENT:
            yield self._send()

    def rest(self) -> Iterator[dict[str, Any]]:
        """All that is left: nobody will ask again."""
        self.flush()
        while self._waiting:
            yield self._send()

    def again(self) -> Iterator[dict[str, Any]]:
        """The rows that were sent and not taken, for somebody who may not have got them."""
        return (_told(number, row) for number, row in list(self._sent))

    def taken(self, number: int) -> None:
        while self._sent and self._sent[0][0] <= number:
            self._sent.popleft()
        self._wake()

    def _send(self) -> dict[str, Any]:
        self._number += 1
        row = self._waiting.popleft()
        self._sent.append((self._number, row))
        return _told(self._number, row)

    def _merge(self) -> None:
        """Make one row of the older half's refusals; if that is not enough, of its connections, too."""
        rows = [self._waiting.popleft() for _ in range(len(self._waiting) // 2)]
        refused = [row for row in rows if row.verdict == "refused"]
        allowed = [row for row in rows if row.verdict != "refused"]
        if len(refused) < len(rows) // 8:
            allowed = _as_one(allowed, "too_many")
        self._waiting.extendleft(reversed(_as_one(refused, "too_fast") + allowed))


def _as_one(rows: list[Row], why: str) -> list[Row]:
    """One row for each sandbox that has some here."""
    merged: dict[str | None, Row] = {}
    for row in rows:
        one = merged.setdefault(row.sandbox, Row(row.sandbox, row.at_ms, row.verdict, row.via, why=why, times=0))
        merged[row.sandbox] = replace(one, times=one.times + row.times, up=one.up + row.up, down=one.down + row.down)
    return list(merged.values())


def _told(number: int, row: Row) -> dict[str, Any]:
    return {"told": "row", "number": number} | {name: getattr(row, name) for name in Row.__slots__}

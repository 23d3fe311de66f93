"""Where the time of each takeover went: by what the store was told, what hosts logged, and what clients heard. No I/O.

Hosts say how long something took and never when: their clocks are set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.nemesis.leases import Written
from tests.nemesis.load import Followed

# What a taker logs of it, and what of that is told here.
TAKEN = {"a lost host's lease was taken": {"late_s": "late"}}  # after it might have
MADE = {"a lost host's ledger was made from its replica": {"took_s": "restored_in"}}
HAD = {"a lost host was taken over": {"first_s": "first_rows_in", "took_s": "rows_in"}}
SAID = TAKEN | MADE | HAD


@dataclass
class Takeover:
    host: str
    epoch: int
    by: str
    renewed: float  # when the store had the last renewal; monotonic, as all that follows
    taken: float
    settled: float | None = None  # all of it is in the taker's ledger
    said: dict[str, float] = field(default_factory=dict)
    heard: list[float] = field(default_factory=list)  # of each of its tasks, that it goes on

    def line(self) -> str:
        """Seconds from the last renewal on."""
        told = {"taken": self.taken - self.renewed}
        if self.settled is not None:
            told["settled"] = self.settled - self.renewed
        if self.heard:
            told |= {"first_event": self.heard[0] - self.renewed, "last_event": self.heard[-1] - self.renewed}
        words = [f"{name}=+{value:.1f}" for name, value in told.items()]
        words += [f"{name}={value:.1f}" for name, value in self.said.items()]
        return f"takeover {self.host}/{self.epoch} by {self.by}: {' '.join(words)} tasks={len(self.heard)}"


def takeovers(
    leases: Sequence[Written], tasks: Iterable[Followed], logs: Mapping[str, Iterable[bytes]]
) -> list[Takeover]:
    """In their order."""
    found: list[Takeover] = []
    before: dict[str, Written] = {}
    for written in leases:
        last = before.get(written.host)
        if last is not None and last.root and not written.root and written.taken:
            found.append(Takeover(written.host, last.epoch, written.taken[-1][2], last.at, written.at))
        for each in found:
            is_open = any(line[1] == each.epoch for line in written.taken)
            if each.host == written.host and each.settled is None and not is_open:
                each.settled = written.at
        before[written.host] = written
    said = {host: [_said(line) for line in lines] for host, lines in logs.items()}
    for each in found:
        _add_said(each, [told for told in said.get(each.by, ()) if told])
    _add_heard(found, tasks)
    return found


def _said(line: bytes) -> dict[str, Any]:
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) and told.get("what") in SAID else {}


def _add_said(takeover: Takeover, said: Iterable[Mapping[str, Any]]) -> None:
    for told in said:
        if (told.get("host"), told.get("epoch")) == (takeover.host, takeover.epoch):
            for name, word in SAID[told["what"]].items():
                if told.get(name) is not None:
                    takeover.said[word] = told[name]


def _add_heard(found: Sequence[Takeover], tasks: Iterable[Followed]) -> None:
    """That a task's host is gone is the first that is heard of it from the next one."""
    for task in tasks:
        for heard in task.heard:
            if heard.event["kind"] == "sandbox.lost":
                why = str(heard.event["data"].get("reason"))
                earlier = [each for each in found if f" {each.host} " in why and each.taken <= heard.at]
                if earlier:
                    earlier[-1].heard.append(heard.at)
    for each in found:
        each.heard.sort()

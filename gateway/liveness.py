"""Whether a host lives, from what was heard of it. Pure: the clock is given."""

from dataclasses import dataclass
from enum import StrEnum

from contract.hosts import Host

SILENT_S = 5.0  # without a beat and without an answer, a host is dead
MAX_FAILURES = 3  # in a row, and it is dead at once


class Health(StrEnum):
    ALIVE = "alive"
    DRAINING = "draining"  # it lives, and takes nothing new
    DEAD = "dead"


@dataclass(slots=True)
class Pulse:
    """The signs of life of one host."""

    beat: int | None = None  # the last one in the registry
    heard_s: float = float("-inf")
    failures: int = 0

    def is_alive(self, now_s: float) -> bool:
        return self.failures < MAX_FAILURES and now_s - self.heard_s < SILENT_S

    def saw_beat(self, beat: int, now_s: float) -> None:
        """The registry has this one. The first that is seen may be of a host that is long gone: it says nothing."""
        if self.beat is not None and beat != self.beat:
            self.heard_s = now_s
        self.beat = beat

    def answered_probe(self, now_s: float) -> None:
        self.heard_s = now_s
        self.failures = 0

    def answered(self) -> None:
        """It answered a request. A host that was declared dead comes back by a probe only."""
        if self.failures < MAX_FAILURES:
            self.failures = 0

    def failed(self) -> None:
        """It could not be reached."""
        self.failures = min(self.failures + 1, MAX_FAILURES)


def health(record: Host, pulse: Pulse, now_s: float) -> Health:
    if not pulse.is_alive(now_s):
        return Health.DEAD
    return Health.DRAINING if record.draining else Health.ALIVE

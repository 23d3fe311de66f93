"""How fast and how much. No I/O."""

from dataclasses import dataclass

from contract.network import Limits

MB = 1_000_000


class Bucket:
    """Lets `per_sec` pass, and twice as many at once after a pause."""

    def __init__(self, per_sec: float, now: float) -> None:
        self.per_sec = per_sec
        self._left = 2.0 * per_sec
        self._at = now

    def has_one(self, now: float) -> bool:
        """Take one, if there is one."""
        self._left = min(2.0 * self.per_sec, self._left + (now - self._at) * self.per_sec)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass
class Meter:
    """The bytes of all connections together."""

    up: int = 0
    down: int = 0
    most_up: float = float("inf")
    most_down: float = float("inf")

    def limit(self, limits: Limits) -> None:
        self.most_up = float("inf") if limits.up_mb is None else limits.up_mb * MB
        self.most_down = float("inf") if limits.down_mb is None else limits.down_mb * MB

    @property
    def is_over(self) -> bool:
        return self.up > self.most_up or self.down > self.most_down

"""How many warm machines there should be, and what to do about it. No I/O, no clock of its own."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.models import Shape
from poold.config import PoolSize

DEMAND_WINDOW_S = 60.0  # as many as were claimed in the last minute are kept for the next


@dataclass(frozen=True)
class Drop:
    """Destroy one warm machine of this shape."""

    shape: Shape


@dataclass(frozen=True)
class Fill:
    """Restore one more machine of this shape."""

    shape: Shape


Action = Drop | Fill


@dataclass
class Demand:
    """The claims of one shape, and so how many machines are worth keeping warm."""

    size: PoolSize
    claims: deque[float] = field(default_factory=deque)

    def claimed(self, now: float) -> None:
        self.claims.append(now)
        if len(self.claims) > self.size.ceiling:
            self.claims.popleft()  # more than the ceiling make no difference

    def target(self, now: float) -> int:
        while self.claims and self.claims[0] < now - DEMAND_WINDOW_S:
            self.claims.popleft()
        return min(self.size.ceiling, max(self.size.floor, len(self.claims)))


def plan(warm: Mapping[Shape, int], targets: Mapping[Shape, int], *, rooms: int) -> list[Action]:
    """Bring the pool to its targets: drops first, then fills, the emptiest share first, `rooms` at most."""
    drops: list[Action] = [
        Drop(shape) for shape, count in warm.items() for _ in range(max(0, count - targets.get(shape, 0)))
    ]
    missing = {shape: target - warm.get(shape, 0) for shape, target in targets.items()}
    have = dict(warm)
    fills: list[Action] = []
    while len(fills) < rooms + len(drops):
        wanting = [shape for shape, count in missing.items() if count > 0]
        if not wanting:
            break
        shape = min(wanting, key=lambda shape: (have.get(shape, 0), str(shape)))
        fills.append(Fill(shape))
        missing[shape] -= 1
        have[shape] = have.get(shape, 0) + 1
    return drops + fills


def victim(warm: Mapping[Shape, int], wanted: Shape) -> Shape | None:
    """Whose warm machine makes room for `wanted` when the host is full: the shape with the most to spare."""
    others = {shape: count for shape, count in warm.items() if count > 0 and shape != wanted}
    return max(others, key=lambda shape: (others[shape], str(shape)), default=None)

"""Whether a task may go on: its caps, its loops, what it spends. No I/O."""

from dataclasses import dataclass
from typing import Any

from contract.tasks import Approvals, Caps, Loop, Usage
from poold.tasks.progress import Progress

# What an agent prints becomes events, cut short and with some words around it. More of them than this come of no output
# that a guest has counted: they would fill the ledger for as long as the task may take.
TOLD_TIMES = 4
TOLD_BYTES = 16 << 20

UNITS = {
    "steps": "steps",
    "tokens": "tokens",
    "usd": "dollars",
    "wall_sec": "seconds",
    "output_bytes": "bytes of output",
}


@dataclass(frozen=True)
class Capped:
    """More than it may have."""

    cap: str
    limit: float
    value: float

    @property
    def data(self) -> dict[str, Any]:
        return {"cap": self.cap, "limit": self.limit, "value": self.value}

    @property
    def reason(self) -> dict[str, Any]:
        message = f"it may have {self.limit:g} {UNITS.get(self.cap, self.cap)}, and came to {self.value:g}"
        return {"code": "cap", "message": message, **self.data}


@dataclass(frozen=True)
class Looping:
    """It does the same again and again."""

    rule: str
    what: str
    times: int

    @property
    def data(self) -> dict[str, Any]:
        return {"rule": self.rule, "what": self.what, "times": self.times}

    @property
    def reason(self) -> dict[str, Any]:
        said = {
            "same_diff": f"its workspace came back to the same change {self.times} times",
            "same_failure": f"the same command failed {self.times} times in a row",
        }
        return {"code": "loop", "message": said[self.rule], **self.data}


@dataclass(frozen=True)
class Spending:
    """It has spent so much that a person is to be asked. `number`: which time this is."""

    number: int
    usd: float
    at_usd: float


Verdict = Capped | Looping


def judge(progress: Progress, caps: Caps, loop: Loop, *, wall_ms: int) -> Verdict | None:
    """What ends the task, if anything does. Caps come first: they are what was promised."""
    return over_caps(progress.usage, caps, wall_ms=wall_ms) or flooding(progress, caps) or looping(progress, loop)


def over_caps(usage: Usage, caps: Caps, *, wall_ms: int) -> Capped | None:
    values: dict[str, tuple[float | None, float | None]] = {
        "steps": (caps.steps, usage.steps),
        "tokens": (caps.tokens, usage.tokens),
        "usd": (caps.usd, usage.usd),
        "output_bytes": (caps.output_bytes, usage.output_bytes),
    }
    for name, (limit, value) in values.items():
        if limit is not None and value is not None and value > limit:
            return Capped(name, limit, value)
    if wall_ms >= 1000 * caps.wall_sec:
        return Capped("wall_sec", caps.wall_sec, wall_ms / 1000)
    return None


def flooding(progress: Progress, caps: Caps) -> Capped | None:
    """Whether it tells more than it can have printed."""
    if progress.told_bytes <= TOLD_BYTES + TOLD_TIMES * caps.output_bytes:
        return None
    return Capped("output_bytes", caps.output_bytes, progress.told_bytes)


def looping(progress: Progress, loop: Loop) -> Looping | None:
    times = progress.diffs.get(progress.last_diff, 0)
    if loop.same_diff and times >= loop.same_diff:
        return Looping("same_diff", progress.last_diff, times)
    failure = progress.failure
    if loop.same_failure and failure.times >= loop.same_failure:
        return Looping("same_failure", failure.command, failure.times)
    return None


def spending(progress: Progress, approvals: Approvals) -> Spending | None:
    """Whether to ask about spending: at every multiple of what may be spent unasked, once for all that were passed."""
    if approvals.spend_usd is None or progress.usd is None:
        return None
    passed = int(progress.usd / approvals.spend_usd + 1e-9)
    if passed <= progress.approved_spends:
        return None
    return Spending(passed, progress.usd, passed * approvals.spend_usd)

"""Tokens and dollars: from what CLIs tell, each in its own way, to totals of a task that only grow."""

from dataclasses import dataclass

_SESSIONS_KEPT = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """`input_tokens` has neither of the two cached ones in it. `usd` is None where the CLI tells no dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None

    def plus(self, other: "Usage") -> "Usage":
        dollars = [value for value in (self.usd, other.usd) if value is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            round(sum(dollars), 9) if dollars else None,
        )

    def minus(self, other: "Usage") -> "Usage":
        """What is left of it; nothing is ever less than nothing."""
        return Usage(
            max(self.input_tokens - other.input_tokens, 0),
            max(self.output_tokens - other.output_tokens, 0),
            max(self.cache_read_tokens - other.cache_read_tokens, 0),
            max(self.cache_write_tokens - other.cache_write_tokens, 0),
            None if self.usd is None else round(max(self.usd - (other.usd or 0.0), 0.0), 9),
        )

    def is_behind(self, other: "Usage") -> bool:
        """Whether anything in it is less than in `other`: a counter that only grows began anew."""
        return (
            self.input_tokens < other.input_tokens
            or self.output_tokens < other.output_tokens
            or self.cache_read_tokens < other.cache_read_tokens
            or self.cache_write_tokens < other.cache_write_tokens
            or (self.usd or 0.0) < (other.usd or 0.0) - 1e-9
        )

    def facts(self) -> dict[str, object]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "usd": self.usd,
        }


class Meter:
    """The totals of one task over all of its runs and sessions.

    CLIs tell totals of a *session*, and go on with them when it is resumed; so the last word of each session counts,
    once. A session whose totals went back (its CLI was killed before it wrote them down) began to count anew.
    """

    def __init__(self) -> None:
        self._settled = Usage()
        self._told: dict[str, Usage] = {}
        self._live = Usage()

    def go_on(self, session: str, before: Usage, covered: Usage) -> None:
        """Of a task that used `before` in machines that are no more; `covered` of it is what its session remembers."""
        self._settled = before.minus(covered)
        self._told[session] = covered

    def told(self, session: str) -> Usage:
        """The totals that `session` has told last."""
        return self._told.get(session, Usage())

    @property
    def total(self) -> Usage:
        total = self._settled.plus(self._live)
        for told in self._told.values():
            total = total.plus(told)
        return total

    def tell(self, session: str, usage: Usage) -> None:
        """The totals of `session` so far. What was counted live is part of them, unless nothing is told."""
        if usage == Usage(usd=usage.usd) and not usage.usd:
            self.settle()
            return
        before = self._told.get(session, Usage())
        if usage.is_behind(before):
            self._settled = self._settled.plus(before)
        self._told[session] = usage
        self._live = Usage()
        if len(self._told) > _SESSIONS_KEPT:
            self._settled = self._settled.plus(self._told.pop(next(iter(self._told))))

    def count(self, live: Usage) -> None:
        """What was used since the last `tell`, all of it."""
        self._live = live

    def settle(self) -> None:
        """What was counted live was used, and nobody will tell of it: the run is over, or its end told of nothing."""
        self._settled = self._settled.plus(self._live)
        self._live = Usage()

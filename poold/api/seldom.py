"""What may happen very often and is written down seldom, with how often it happened."""

MAX_NAMES = 10_000


class Seldom:
    """Counts by name. Each name is told at most once in `every_ms`, the first time at once."""

    def __init__(self, every_ms: int = 60_000) -> None:
        self._every_ms = every_ms
        self._told: dict[str, tuple[int, int]] = {}  # when it was told last, and how often it happened since

    def count(self, name: str, now_ms: int) -> int:
        """It happened once more. Returns how often since it was told last, or 0 if it is too early to tell again."""
        at_ms, since = self._told.get(name, (now_ms - self._every_ms, 0))
        if now_ms - at_ms < self._every_ms:
            self._told[name] = at_ms, since + 1
            return 0
        if len(self._told) >= MAX_NAMES:
            self._told.clear()
        self._told[name] = now_ms, 0
        return since + 1

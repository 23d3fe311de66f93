"""The end of a list that poold gives only from a number on."""

from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]


def last_rows(fetch: Callable[[int], Rows], count: int) -> Rows:
    """The last `count` rows of all.

    `fetch(after)` gives up to `count` rows with numbers above `after`, in order. The largest `after` that still
    has `count` rows above it is found by halving, so that a list of millions takes a few dozen requests.
    """
    rows = fetch(0)
    if len(rows) < count:
        return rows
    low, high = 0, 1  # with `count` rows above `low`; with fewer above `high`
    while len(found := fetch(high)) == count:
        rows, low, high = found, high, high * 4
    while high - low > 1:
        middle = (low + high) // 2
        found = fetch(middle)
        if len(found) == count:
            rows, low = found, middle
        else:
            high = middle
    return rows

"""Lists that come page after page: for threads and for asyncio."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from warren.models import Page

Row = TypeVar("Row")  # as it is told
Thing = TypeVar("Thing")  # what is made of it


class Listing(Generic[Row, Thing]):
    """Rows of all pages. `incomplete` names the hosts that could not be asked so far."""

    def __init__(self, fetch: Callable[[str | None], Page[Row]], make: Callable[[Row], Thing]) -> None:
        self.incomplete: set[str] = set()
        self._fetch, self._make = fetch, make
        self._rows = self._all()

    def _all(self) -> Iterator[Thing]:
        before = None
        while True:
            page = self._fetch(before)
            self.incomplete |= set(page.incomplete)
            yield from map(self._make, page.rows)
            before = page.next
            if before is None:
                return

    def __iter__(self) -> Iterator[Thing]:
        return self

    def __next__(self) -> Thing:
        return next(self._rows)


class AsyncListing(Generic[Row, Thing]):
    """Rows of all pages. `incomplete` names the hosts that could not be asked so far."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[Page[Row]]], make: Callable[[Row], Thing]) -> None:
        self.incomplete: set[str] = set()
        self._fetch, self._make = fetch, make

    async def __aiter__(self) -> AsyncIterator[Thing]:
        before = None
        while True:
            page = await self._fetch(before)
            self.incomplete |= set(page.incomplete)
            for row in page.rows:
                yield self._make(row)
            before = page.next
            if before is None:
                return

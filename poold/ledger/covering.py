"""Holding back what was committed until the replica has it.

A call of `Replication.cover` returns when all that was committed before it began is in the replica. One is under way at
a time; what is committed meanwhile is collected for the next. So a commit waits for two of them at most, and any number
of commits share one.

Where acknowledgements wait for the replica (`holds`), nobody is told of what it does not have: neither who wrote, nor
who follows, and a follower who reads for another reason reads no further than the replica has got (`events`). A write
that need not be durable is acknowledged at its commit all the same; its events wait.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from contract.errors import WarrenError
from poold.errors import Fenced, LedgerError
from poold.ledger.events import NEWEST
from poold.ledger.writer import Committed, Outcome, acknowledge
from poold.lifetimes import beside, finish

BEGIN_S = 60.0  # so long a store may be away when the daemon starts
END_S = 10.0  # and so long when it stops
RELAXED_S = 1.0  # between two of them where nobody waits for them


@dataclass(frozen=True)
class Replication:
    """The way to a replica. `cover` goes on trying for as long as it takes, and raises nothing of its own."""

    cover: Callable[[], Awaitable[None]]
    holds: bool  # acknowledgements wait for it
    why: Callable[[], str] = lambda: "it does not answer"  # it takes so long
    # Raises `Fenced` if another host may read the replica by now: what it gets from then on counts for nothing.
    check: Callable[[], None] = lambda: None


@dataclass
class Waiting:
    """What one sync covers: as much as waits for it, however many commits those were and however long it takes."""

    since: float
    newest: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    def add(self, committed: Committed) -> None:
        self.outcomes += committed.outcomes
        self.touched |= committed.touched
        self.newest = max(self.newest, committed.newest)


class Covering:
    """What is committed and not yet told. All of it happens in the loop's thread."""

    def __init__(self, replication: Replication, wake: Callable[[set[str]], None]) -> None:
        self._replication = replication
        self._wake = wake
        self._collected: Waiting | None = None
        self._under_way: Waiting | None = None
        self._more = asyncio.Event()
        self._events = 0
        self._fenced: Fenced | None = None  # from then on nobody is told of anything but this

    @property
    def events(self) -> int:
        """Followers are told up to this id."""
        return self._events if self._replication.holds else NEWEST

    @property
    def lag_s(self) -> float:
        """For how long the oldest commit waits that the replica may not have; 0 if it has all."""
        oldest = self._under_way or self._collected
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def add(self, committed: Committed) -> None:
        """A group was committed."""
        if self._fenced is not None:
            _fail(committed.outcomes, self._fenced)
            return
        if self._replication.holds:
            acknowledge(outcome for outcome in committed.outcomes if not outcome[-1])
            committed = replace(committed, outcomes=[outcome for outcome in committed.outcomes if outcome[-1]])
        else:
            self._tell(self._unless_fenced(committed.outcomes), committed.touched)
            committed = replace(committed, outcomes=[], touched=set())
        if self._collected is None:
            self._collected = Waiting(time.monotonic())
        self._collected.add(committed)
        self._more.set()

    def covered(self) -> "asyncio.Future[None]":
        """Done when the replica has all that is committed now, whether acknowledgements wait for it or not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._fenced is not None:
            _fail([(done, None, None, True)], self._fenced)
            return done
        if self._collected is None:
            self._collected = Waiting(time.monotonic())
        self._collected.outcomes.append((done, None, None, True))
        self._more.set()
        return done

    @contextlib.asynccontextmanager
    async def running(self, newest: int) -> AsyncIterator[None]:
        """Cover what is committed during the block. `newest` is the id of the newest event before it.

        What was there before is covered first; if acknowledgements wait for the replica, so does this. Leave the block
        after the last commit: what the replica does not get in time fails then.
        """
        self.add(Committed([], set(), newest, 0.0))
        if self._replication.holds:
            await self._begin()
        try:
            async with beside(self._keep()):
                yield
        finally:
            await finish(self._end())

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._once()
        except TimeoutError:
            hint = f"the store did not take it within {BEGIN_S:.0f} s: {self._replication.why()}"
            raise LedgerError("replicating", "the ledger", hint=hint) from None

    async def _keep(self) -> None:
        """Until this host is fenced: then what waits fails at once, and so does whatever comes. Who is being ended
        waits for its last writes, and must not wait for what never comes.
        """
        try:
            while True:
                await self._more.wait()
                await self._once()
                if not self._replication.holds:
                    await asyncio.sleep(RELAXED_S)
        except Fenced as error:
            self._fenced = error
            self._give_up(error)

    async def _once(self) -> None:
        self._more.clear()
        if self._under_way is None:  # else a call for it was given up
            self._under_way, self._collected = self._collected, None
        self._replication.check()
        await self._replication.cover()
        self._replication.check()  # whoever reads the replica now has all of it
        covered, self._under_way = self._under_way, None
        if covered is not None:
            self._events = max(self._events, covered.newest)
            self._tell(covered.outcomes, covered.touched)

    async def _end(self) -> None:
        """Cover what is left, but do not wait for ever."""
        with contextlib.suppress(TimeoutError, Fenced):
            async with asyncio.timeout(END_S):
                while self._under_way or self._collected:
                    await self._once()
        self._give_up(_unknown())

    def _give_up(self, why: WarrenError) -> None:
        for waiting in filter(None, (self._under_way, self._collected)):
            _fail(waiting.outcomes, why)
        self._under_way = self._collected = None

    def _unless_fenced(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Where nobody waits for the replica, a host that has handed its ledger over acknowledges nothing either."""
        try:
            self._replication.check()
        except Fenced as fenced:
            return [(done, None, error or fenced, durable) for done, _, error, durable in outcomes]
        return outcomes

    def _tell(self, outcomes: list[Outcome], touched: set[str]) -> None:
        acknowledge(outcomes)
        if touched:
            self._wake(touched)


def _fail(outcomes: Iterable[Outcome], why: WarrenError) -> None:
    acknowledge((done, None, error or why, durable) for done, _, error, durable in outcomes)


def _unknown() -> LedgerError:
    hint = "the ledger was closed before the store had it; it is on this host's disk, and counts if this host goes on"
    return LedgerError("replicating", "a write", hint=hint)

"""All leases of the cluster: who lives, who has lapsed, and taking what a lost host had.

Whoever takes a lease does so by one conditional write: of many who try, one wins. What it then carries on is in the
lease (`Taken`), so a taker that dies is taken over with what it had begun. Decision 21 says why nothing is carried on
twice, and nothing by nobody.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from contract.errors import WarrenError
from contract.hosts import Host
from poold.errors import Fenced
from poold.lease.clock import boottime_ns
from poold.lease.keeper import LOOK_S, Keeper
from poold.lease.starting import PREFIX
from poold.lease.terms import Action, Carry, PassOn, S, Seen, Take, is_alive, lapses_ns, left_by, living, plan, see
from poold.lease.written import BadLease, Lease, Taken
from poold.lifetimes import beside
from poold.replica.errors import ReplicaError
from poold.store import Store
from poold.store.errors import Conflict, Corrupt, NoObject, Refused, Unreachable

log = logging.getLogger("poold.lease")

MAX_HOSTS = 1000
AT_ONCE = 8
CHANGE_TRIES = 20  # of a lease whose holder renews it meanwhile
REST_S, LONGEST_REST_S = 2.0, 300.0  # between two tries to carry on what could not be
AWAY_S = 4.0  # at most, if only the store was away: tasks wait


@dataclass(frozen=True)
class Lost:
    """A ledger to be carried on: the newest of its replicas, `ledger/HOST/EPOCH`, from `last` down to `root`.

    Its holder told nobody of anything before the first replica of an epoch was whole. So if there is nothing of the
    newest, the one before has everything; and if there is nothing of any, nothing is lost.
    """

    host: str
    root: int
    last: int


TakeOver = Callable[[Lost], Awaitable[None]]


@dataclass(frozen=True)
class Trouble:
    """A line that could not be carried on yet, and when it is tried again."""

    why: str
    tries: int
    until_ns: int


def rest_s(tries: int, why: Exception | None = None) -> float:
    longest = AWAY_S if isinstance(why, Unreachable | ReplicaError) else LONGEST_REST_S
    return float(min(REST_S * 2 ** min(tries - 1, 30), longest))


class Members:
    """What this host knows of all hosts, and what it does about those that are lost."""

    def __init__(
        self,
        store: Store,
        keeper: Keeper,
        *,
        take_over: TakeOver | None = None,
        jitter: Callable[[], float] = lambda: 0.0,
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        """`take_over` has what was lost in this host's ledger when it returns, durably; it may be called again with
        the same, also after a restart and by who took this host over, and knows from the ledger what is done.
        Without it nothing is taken.
        """
        self._store = store
        self._keeper = keeper
        self._take_over = take_over
        self._jitter = jitter()
        self._now_ns = now_ns
        self._seen: dict[str, Seen] = {}
        self._unreadable: dict[str, str] = {}
        self._failing: set[str] = set()
        self._troubles: dict[tuple[str, Taken], Trouble] = {}

    def living(self) -> dict[str, Host]:
        """The records of the hosts that hold their leases, this one included."""
        return living(self._seen, self._now_ns())

    def open_lines(self) -> frozenset[str]:
        """Hosts of which a ledger was lost that nobody has carried on yet. Before the first look: somebody, perhaps."""
        if not self._seen:
            return frozenset({""})
        now_ns, me = self._now_ns(), self._keeper.lease.host
        lost = {name for name, seen in self._seen.items() if seen.lease.root and not is_alive(seen, now_ns)}
        taken = {name for name, seen in self._seen.items() if seen.lease.taken}
        return frozenset(lost - {me} | taken | self._unreadable.keys())

    def holders(self) -> frozenset[str]:
        """Hosts with a ledger that is theirs."""
        return frozenset(name for name, seen in self._seen.items() if seen.lease.root) | self._unreadable.keys()

    def troubles(self) -> int:
        """How many lines this host has taken and cannot carry on yet."""
        return len(self._troubles)

    def view(self) -> list[dict[str, Any]]:
        """All hosts, by name."""
        now_ns = self._now_ns()
        told = [self._view(seen, now_ns) for seen in self._seen.values()]
        told += [{"host": name, "state": "unreadable", "why": why} for name, why in self._unreadable.items()]
        return sorted(told, key=lambda each: str(each["host"]))

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at all leases during the block, and take what is lost."""
        async with beside(self._watch_forever()), beside(self._act_forever()):
            yield

    async def look(self) -> None:
        """See every lease as it is now. One that cannot be read is told, and left alone."""
        entries = [entry async for entry in self._store.list(PREFIX)]
        if len(entries) > MAX_HOSTS:
            raise BadLease(f"the store has {len(entries)} leases, and may have {MAX_HOSTS}")
        names = {entry.key.removeprefix(PREFIX): entry.tag for entry in entries}
        for gone in (self._seen.keys() | self._unreadable.keys()) - names.keys():
            self._seen.pop(gone, None)
            self._unreadable.pop(gone, None)
        turn = asyncio.Semaphore(AT_ONCE)
        changed = [name for name, tag in names.items() if name not in self._seen or self._seen[name].tag != tag]
        # One that cannot be read now must not cost what is seen of the others: their time is counted from it.
        failed = await asyncio.gather(*(self._tried_to_read(name, turn) for name in changed))
        if errors := [error for error in failed if error is not None]:
            raise ExceptionGroup("some leases cannot be read", errors)

    async def _tried_to_read(self, name: str, turn: asyncio.Semaphore) -> WarrenError | None:
        try:
            await self._read(name, turn)
        except WarrenError as error:
            return error
        return None

    async def act(self) -> bool:
        """Do what there is to be done about what was seen, and what comes of that. Whether all of it was done."""
        done: list[Action] = []
        is_done = True
        while todo := [each for each in self._plan() if each not in done]:
            for action in todo:
                done.append(action)
                is_done &= await self._tried(partial(self._do, action))  # one that fails must not cost the others
        return is_done

    def _plan(self) -> list[Action]:
        if self._take_over is None:
            return []
        return plan(self._keeper.lease, self._seen, self._now_ns(), jitter=self._jitter)

    async def _do(self, action: Action) -> None:
        self._keeper.check()
        match action:
            case Take(seen):
                await self.take(seen)
            case PassOn(seen, taken):
                await self._pass_on(seen.lease.host, taken)
            case Carry(host, taken):
                await self._carry(host, taken)

    async def take(self, seen: Seen) -> bool:
        """Try to take a lease that has lapsed. Whether this host has it now, and so has to carry on what was lost."""
        taken = seen.lease.taken_by(self._keeper.lease.host, self._keeper.epoch)
        host, lapsed_ns = seen.lease.host, lapses_ns(seen)
        late_s = None if lapsed_ns is None else round((self._now_ns() - lapsed_ns) / S, 1)
        try:
            entry = await self._store.replace(f"{PREFIX}{host}", taken.encode(), seen.tag)
        except Conflict:
            return False
        self._seen[host] = see(self._seen.get(host), entry.tag, taken, self._now_ns())
        log.warning("a lost host's lease was taken", extra={"host": host, "epoch": seen.lease.epoch, "late_s": late_s})
        return True

    async def _carry(self, host: str, taken: Taken) -> None:
        """Carry on what was lost, then see to what that host was carrying on itself; only then it is done."""
        if self._take_over is None:
            return
        began_ns = self._now_ns()
        if not await self._has_taken_over(host, taken, self._take_over):
            return
        self._keeper.check()
        # Only now: what its ledger had of others' was written after they were marked, and is seen by this look.
        await self.look()
        if self._unreadable:
            log.warning("a taken lease stays open: others cannot be read", extra={"host": host})
            return
        for each in left_by(host, taken, self._seen):
            await self._pass_on(each.seen.lease.host, each.taken)
        await self._change(host, lambda lease: lease.settled(taken))
        took_s = round((self._now_ns() - began_ns) / S, 1)
        told = {"host": host, "epoch": taken.last, "took_s": took_s}
        log.warning("what a lost host had is carried on here", extra=told)

    async def _has_taken_over(self, host: str, taken: Taken, take_over: TakeOver) -> bool:
        """Whatever goes wrong costs this host nothing: it is told, and tried again later, and the note stays."""
        before = self._troubles.get((host, taken))
        if before is not None and self._now_ns() < before.until_ns:
            return False
        try:
            await take_over(Lost(host, taken.root, taken.last))
        except Fenced:
            raise
        except Exception as error:
            tries = 1 if before is None else before.tries + 1
            why = str(error) if isinstance(error, WarrenError) else f"{type(error).__name__}: {error}"
            again_s = rest_s(tries, error)
            self._troubles[(host, taken)] = Trouble(why, tries, self._now_ns() + int(again_s * S))
            told = {"host": host, "last": taken.last, "why": why, "tries": tries, "again_s": again_s}
            log.error("a lost host cannot be carried on yet", extra=told, exc_info=not isinstance(error, WarrenError))
            return False
        self._troubles.pop((host, taken), None)
        return True

    async def _pass_on(self, host: str, taken: Taken) -> None:
        me = self._keeper.lease
        await self._change(host, lambda lease: lease.passed_on(taken, me.host, me.epoch))

    async def _change(self, host: str, change: Callable[[Lease], Lease]) -> None:
        """Change a lease that others may be writing, too."""
        for _ in range(CHANGE_TRIES):
            blob = await self._store.get(f"{PREFIX}{host}")
            lease = Lease.decode(blob.data, host)
            changed, tag = change(lease), blob.entry.tag
            with contextlib.suppress(Conflict):
                if changed != lease:
                    tag = (await self._store.replace(blob.entry.key, changed.encode(), tag)).tag
                self._seen[host] = see(self._seen.get(host), tag, changed, self._now_ns())
                return
        raise Conflict(f"{PREFIX}{host}", f"was another one {CHANGE_TRIES} times")

    async def _read(self, name: str, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                blob = await self._store.get(f"{PREFIX}{name}")
                lease = Lease.decode(blob.data, name)
            except NoObject:
                return  # just gone
            except (BadLease, Corrupt, Refused) as error:
                if name not in self._unreadable:
                    log.error("a lease cannot be read", extra={"host": name, "why": str(error)})
                self._seen.pop(name, None)
                self._unreadable[name] = str(error)
                return
        self._unreadable.pop(name, None)
        self._seen[name] = see(self._seen.get(name), blob.entry.tag, lease, self._now_ns())

    async def _watch_forever(self) -> None:
        while True:
            await self._tried(self.look)
            await asyncio.sleep(self._rest_s)

    async def _act_forever(self) -> None:
        """Beside the looking: to carry something on takes its time. To see that there is nothing to do takes none, so
        nobody waits for longer than a lease does.
        """
        is_done = True
        while True:
            await asyncio.sleep(min(LOOK_S, self._rest_s) if is_done else self._rest_s)
            is_done = await self.act()

    @property
    def _rest_s(self) -> float:
        return self._keeper.terms.renew_ns / S

    async def _tried(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Whether it was done. What goes wrong is told once, and tried again."""
        is_done = True
        try:
            await work()
        except* (WarrenError, BadLease) as errors:
            whys = {str(error) for error in errors.exceptions}
            if whys - self._failing:
                log.warning("the leases cannot be looked after", extra={"why": "; ".join(sorted(whys))})
            self._failing = whys
            is_done = False
        return is_done

    def _view(self, seen: Seen, now_ns: int) -> dict[str, Any]:
        lapses = lapses_ns(seen)
        troubles = [each.why for (host, _), each in self._troubles.items() if host == seen.lease.host]
        return {
            **seen.lease.view(),
            **({"trouble": "; ".join(troubles)} if troubles else {}),
            "state": seen.lease.state,
            "alive": is_alive(seen, now_ns),
            "lapses_s": None if lapses is None else round(max(0, lapses - now_ns) / S, 1),
        }

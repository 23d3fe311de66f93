"""When who may do what with a lease. Facts in, decisions out; no I/O, and no clock of its own.

All times are nanoseconds of CLOCK_BOOTTIME on the host that decides: it goes on while the host is suspended, and nobody
can set it. No two hosts compare clocks. A holder counts from before it *sent* the last renewal that it knows to have
succeeded, an observer from after it first *saw* the lease as it is now, which is later. So it is enough that an
observer waits longer than the holder goes on, by more than their clocks may run apart. Decision 21 has the proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from contract.hosts import Host
from contract.ring import ranked
from poold.lease.written import Lease, State, Taken

MS = 1_000_000
S = 1_000_000_000

USUAL_HOLD_S = 10  # four renewals may fail, and a poold that is started again in that time loses nothing
RENEWALS = 5  # in the time that a holder goes on
GRACE_NS = 2 * S  # for poold to kill its machines by itself, before its warden does
DEAD_NS = 2 * S  # from the warden's kill to the last instruction of a machine
# Clocks run apart: chronyd may let one run 8.3 % faster or slower for a while, and 1.0834 / 0.9166 < 1.2.
DRIFT = 1.2
HEIR_NS = 15 * S  # so long others leave what a host has left to the heir that it named: it looks every few seconds
STAGGER_NS = 3 * S  # between those who would take the same lease: conditional writes that meet are slow in some stores


@dataclass(frozen=True)
class Terms:
    """The times of one lease. All follow from how long its holder goes on, which is in the lease: hosts with different
    settings agree about each other's leases.
    """

    hold_ns: int

    @classmethod
    def of(cls, lease: Lease) -> "Terms":
        return cls(lease.hold_ms * MS)

    @property
    def renew_ns(self) -> int:
        """Between two renewals."""
        return self.hold_ns // RENEWALS

    @property
    def kill_ns(self) -> int:
        """When the warden kills whatever still runs."""
        return self.hold_ns + GRACE_NS

    @property
    def take_ns(self) -> int:
        """How long a lease has to be seen unchanged before it may be taken. Nothing of its holder runs then."""
        return int((self.kill_ns + DEAD_NS) * DRIFT)


def may_go_on(sent_ns: int, terms: Terms, now_ns: int) -> bool:
    """Whether a holder whose last renewal was sent then may take work, and have machines."""
    return now_ns < sent_ns + terms.hold_ns


# What an observer knows.


@dataclass(frozen=True)
class Seen:
    """A lease as it is since `at_ns`, as far as the observer knows."""

    tag: str
    lease: Lease
    at_ns: int


def see(before: Seen | None, tag: str, lease: Lease, now_ns: int) -> Seen:
    """What is known after a look that ended at `now_ns`."""
    return before if before is not None and before.tag == tag else Seen(tag, lease, now_ns)


def lapses_ns(seen: Seen) -> int | None:
    """From when on the lease may be taken, if it stays as it is. None if there is nothing to take."""
    match seen.lease.state:
        case State.HELD:
            return seen.at_ns + Terms.of(seen.lease).take_ns
        case State.LEFT:
            return seen.at_ns
        case _:
            return None


def is_alive(seen: Seen, now_ns: int) -> bool:
    """Whether the host holds its lease, as far as the observer knows."""
    return seen.lease.state is State.HELD and now_ns < seen.at_ns + Terms.of(seen.lease).take_ns


# Taking over.


class Heir(StrEnum):
    """Who is to carry on a line that a host has taken."""

    TAKER = "taker"  # the host that took it, or whoever takes that host's own line
    WAIT = "wait"  # that host's line is being carried on; who does that sees to this one first
    ANYONE = "anyone"  # that line was carried on, and had nothing of this one: it was taken too late to count


@dataclass(frozen=True)
class Take:
    """Try to take this host's lease, as it was seen."""

    seen: Seen


@dataclass(frozen=True)
class PassOn:
    """Try to become the one who carries on what nobody does."""

    seen: Seen
    taken: Taken


@dataclass(frozen=True)
class Carry:
    """Carry on what is ours to carry on."""

    host: str
    taken: Taken


Action = Take | PassOn | Carry


def heir(taken: Taken, seen: Mapping[str, Seen]) -> Heir:
    """Whose death makes this takeable: see decision 21.

    A taker's lease that was not seen, or was seen before it took this, decides nothing.
    """
    if taken.by not in seen or seen[taken.by].lease.epoch < taken.by_epoch:
        return Heir.WAIT
    lease = seen[taken.by].lease
    if lease.has_in_line(taken.by_epoch):
        return Heir.TAKER
    is_open = any(other.root <= taken.by_epoch <= other.last for other in lease.taken)
    return Heir.WAIT if is_open else Heir.ANYONE


def stagger_ns(host: str, me: str, living: Mapping[str, Host], jitter: float) -> int:
    """How long `me` lets others try first: those before it in the ring's ranking for `host`. `jitter` is 0 to 1.

    Hosts that are being emptied come last.
    """
    weights = {name: record.weight for name, record in living.items() if name != host and not record.draining}
    ranking = ranked(host, weights)
    rank = ranking.index(me) if me in ranking else len(ranking)
    return int((rank + jitter / 2) * STAGGER_NS)


def deference_ns(lease: Lease, me: str, living: Mapping[str, Host], jitter: float) -> int:
    """How long `me` lets others try first for a lease. An heir that was named and lives is the first."""
    rest_ns = stagger_ns(lease.host, me, living, jitter)
    named = living.get(lease.heir) if lease.has_left else None
    if named is None or named.draining:
        return rest_ns
    return 0 if lease.heir == me else HEIR_NS + rest_ns


def living(seen: Mapping[str, Seen], now_ns: int) -> dict[str, Host]:
    """The records of the hosts that hold their leases."""
    return {name: each.lease.record for name, each in seen.items() if is_alive(each, now_ns)}


def plan(me: Lease, seen: Mapping[str, Seen], now_ns: int, *, jitter: float = 0.0) -> list[Action]:
    """What the holder of `me` does about the leases that it sees. What is begun comes before what is new."""
    present = living(seen, now_ns)
    carry: list[Action] = []
    new: list[Action] = []
    for name, each in sorted(seen.items()):
        wait_ns = stagger_ns(name, me.host, present, jitter)
        for taken in each.lease.taken:
            if taken.by == me.host and me.has_in_line(taken.by_epoch):
                carry.append(Carry(name, taken))
            elif heir(taken, seen) is Heir.ANYONE and now_ns >= each.at_ns + wait_ns:
                new.append(PassOn(each, taken))
        lapsed_ns = lapses_ns(each)
        after_ns = deference_ns(each.lease, me.host, present, jitter)
        if name != me.host and lapsed_ns is not None and now_ns >= lapsed_ns + after_ns:
            new.append(Take(each))
    return carry + new


def left_by(host: str, taken: Taken, seen: Mapping[str, Seen]) -> list[PassOn]:
    """What `host` was carrying on when its line, `taken`, was lost. Who carries that on has to take this first."""
    return [
        PassOn(each, other)
        for _, each in sorted(seen.items())
        for other in each.lease.taken
        if other.by == host and taken.root <= other.by_epoch <= taken.last
    ]


# At a start.


class Begin(StrEnum):
    """How a poold begins that has found its host's lease like this."""

    JOIN = "join"  # there is none: this host is new here. What it has is its own
    GO_ON = "go_on"  # in the same epoch: its time is not over, and its machines may run on
    KEEP = "keep"  # in a new epoch with its own ledger: nobody has taken the lease. Its machines are killed
    RESTORE = "restore"  # in a new epoch; the ledger is in the store, and what is here is another's, or nothing
    REJOIN = "rejoin"  # the lease was taken: empty, in a new epoch


@dataclass(frozen=True)
class Mine:
    """What a host knows of itself at its start."""

    holder: str
    boot: str
    root: int | None  # of the ledger in its state folder; None if that never had a lease
    held_epoch: int = 0  # by a poold of this boot
    held_until_ns: int = 0  # as that one knew
    epoch: int | None = None  # the last one that the state folder knows of; None: it is not asked


def at_start(lease: Lease | None, mine: Mine, now_ns: int, *, has_lapsed: bool) -> Begin | None:
    """How to begin, or None: not yet. `has_lapsed` says that the lease was seen unchanged for as long as it takes.

    A poold of this boot whose state folder we have locked is dead, and what it left running is here to be killed. Of
    any other holder we know nothing before its time is over.
    """
    if lease is None:
        return Begin.JOIN if mine.root is None else Begin.KEEP
    if not lease.root:
        return Begin.REJOIN
    is_mine = lease.holder == mine.holder
    # A folder that does not know of the lease's epoch is a copy of before: its ledger lacks what came since.
    has_ledger = is_mine and lease.root == mine.root and (mine.epoch is None or lease.epoch <= mine.epoch)
    if has_ledger and lease.boot == mine.boot and _may_go_on(lease, mine, now_ns):
        return Begin.GO_ON
    if not (has_lapsed or lease.has_left or (is_mine and lease.boot == mine.boot)):
        return None
    return Begin.KEEP if has_ledger else Begin.RESTORE


def _may_go_on(lease: Lease, mine: Mine, now_ns: int) -> bool:
    return not lease.has_left and lease.epoch == mine.held_epoch and now_ns < mine.held_until_ns

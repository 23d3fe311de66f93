"""How a poold gets its host's lease, before it opens its ledger: it clears away what must not be, then it writes."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from contract.errors import WarrenError
from contract.hosts import Host
from poold.errors import ConfigError
from poold.files import sync
from poold.lease import wardens
from poold.lease.clock import boot_id, boottime_ns
from poold.lease.guard import Guard, Targets, Until
from poold.lease.killing import kill
from poold.lease.notes import Notes
from poold.lease.terms import Begin, Mine, S, Seen, Terms, at_start, lapses_ns, see
from poold.lease.written import BadLease, Lease, first
from poold.lifetimes import finish
from poold.store import Store
from poold.store.errors import Conflict, NoObject

log = logging.getLogger("poold.lease")

PREFIX = "leases/"
RETRY_S = 1.0  # with a store that does not answer
ALIVE_CHANGES = 2  # of a lease that we wait for: its holder lives. One may be a renewal that was on its way


@dataclass(frozen=True)
class Held:
    """A lease that this host holds, by a write that was sent at `sent_ns`."""

    lease: Lease
    tag: str
    sent_ns: int

    def until(self) -> Until:
        terms = Terms.of(self.lease)
        return replace(
            Until.nothing(boot_id()),
            epoch=self.lease.epoch,
            hold_ns=self.sent_ns + terms.hold_ns,
            kill_ns=self.sent_ns + terms.kill_ns,
        )


@dataclass(frozen=True)
class Ground:
    """What a lease stands on."""

    store: Store
    guard: Guard
    notes: Notes
    targets: Targets
    record: Host  # as long as there is no better one
    hold_ms: int
    ledger: Path
    now_ns: Callable[[], int] = boottime_ns

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.record.name}"


async def acquire(ground: Ground) -> tuple[Begin, Held]:
    """Hold this host's lease, and how it was got. Waits for the store, and for another holder's time to be over.

    What must not run any more was killed before, and the ledger is set aside if it is not to be gone on with.
    """
    mine = await stand_down(ground.guard, ground.notes, ground.targets, ground.now_ns)
    begin, held = await _Attempts(ground, mine).run()
    await finish(asyncio.to_thread(ground.guard.write, held.until()))
    await wardens.ensure(ground.guard)
    log.info("this host holds its lease", extra={"epoch": held.lease.epoch, "how": begin.value})
    return begin, held


async def stand_down(guard: Guard, notes: Notes, targets: Targets, now_ns: Callable[[], int] = boottime_ns) -> Mine:
    """What this host knows of itself. If its time is over, what runs of it is killed before anybody is asked."""
    mine = await finish(asyncio.to_thread(_stand_down, guard, notes, targets, now_ns))
    await wardens.ensure(guard)  # machines may be running, and we may be a while; or they will, and it takes a while
    return mine


def _stand_down(guard: Guard, notes: Notes, targets: Targets, now_ns: Callable[[], int]) -> Mine:
    guard.prepare(targets)
    noted, until = notes.made(), guard.read()
    root = noted.root or None
    if until is None or until.boot != boot_id() or now_ns() >= until.hold_ns:
        if root is not None:
            _killed(targets)
        guard.write(Until.nothing(boot_id()))
        return Mine(noted.holder, boot_id(), root, epoch=noted.epoch)
    return Mine(noted.holder, boot_id(), root, until.epoch, until.hold_ns, noted.epoch)


class _Attempts:
    """Looks at the lease until it can be had."""

    def __init__(self, ground: Ground, mine: Mine) -> None:
        self._ground = ground
        self._mine = mine
        self._seen: Seen | None = None
        self._changes = 0
        self._told: set[str] = set()

    async def run(self) -> tuple[Begin, Held]:
        while True:
            try:
                done = await self._attempt()
            except Conflict:
                continue  # somebody else wrote; see what
            except WarrenError as error:
                self._tell("the lease cannot be had yet", str(error))
                done = None
            if done is not None:
                return done
            await asyncio.sleep(min(RETRY_S, self._ground.hold_ms / 5000))

    async def _attempt(self) -> tuple[Begin, Held] | None:
        ground = self._ground
        lease, tag = await self._look()
        now_ns = ground.now_ns()
        lapses = None if self._seen is None else lapses_ns(self._seen)
        has_lapsed = lapses is not None and now_ns >= lapses
        begin = at_start(lease, self._mine, now_ns, has_lapsed=has_lapsed)
        if begin is None:
            left_s = 0 if lapses is None else (lapses - now_ns) / S
            self._tell(
                "another poold may hold the lease of this name; waiting for its time to be over", f"{left_s:.0f} s"
            )
            return None
        wanted = await self._wanted(begin, lease)
        await finish(asyncio.to_thread(_clear, ground, begin, wanted))
        self._mine = replace(self._mine, root=_root_of_ledger(begin, wanted), epoch=wanted.epoch)
        sent_ns = ground.now_ns()
        if tag is None:
            entry = await ground.store.create(ground.key, wanted.encode())
        else:
            entry = await ground.store.replace(ground.key, wanted.encode(), tag)
        return begin, Held(wanted, entry.tag, sent_ns)

    async def _look(self) -> tuple[Lease | None, str | None]:
        ground = self._ground
        try:
            blob = await ground.store.get(ground.key)
        except NoObject:
            self._seen = None
            return None, None
        try:
            lease = Lease.decode(blob.data, ground.record.name)
        except BadLease as error:
            raise ConfigError(f"{error}; look at {ground.key} in POOLD_STORE, or set another POOLD_NAME") from None
        before, self._seen = self._seen, see(self._seen, blob.entry.tag, lease, ground.now_ns())
        is_ours = (lease.holder, lease.boot) == (self._mine.holder, self._mine.boot)
        is_beat = before is not None and before.tag != blob.entry.tag and before.lease.epoch == lease.epoch
        self._changes += is_beat and not is_ours
        if self._changes >= ALIVE_CHANGES and lease.root:
            raise ConfigError(
                f"POOLD_NAME={ground.record.name} is held by a poold at {lease.record.address}: give each host its own"
            )
        return lease, blob.entry.tag

    async def _wanted(self, begin: Begin, lease: Lease | None) -> Lease:
        ground, mine = self._ground, self._mine
        if lease is None:
            noted = await asyncio.to_thread(ground.notes.made)
            epoch, root = noted.epoch + 1, mine.root or 0
            return first(
                ground.record.name, mine.holder, mine.boot, ground.hold_ms, ground.record, epoch=epoch, root=root
            )
        goes_on, keeps = begin is Begin.GO_ON, begin in (Begin.GO_ON, Begin.KEEP, Begin.RESTORE)
        held = lease.begun(mine.holder, mine.boot, ground.hold_ms, goes_on=goes_on, keeps_line=keeps)
        return held.renewed(ground.record)

    def _tell(self, what: str, why: str) -> None:
        """Once for each thing that keeps us waiting."""
        if what not in self._told:
            log.warning(what, extra={"key": self._ground.key, "why": why})
        self._told.add(what)


async def restored(ground: Ground, held: Held) -> None:
    """The ledger that was in the store is in the state folder now."""
    await finish(asyncio.to_thread(ground.notes.change, root=held.lease.root))


def _root_of_ledger(begin: Begin, wanted: Lease) -> int | None:
    """Of the ledger that is in the folder, or will be made there."""
    return None if begin is Begin.RESTORE else wanted.root


def _clear(ground: Ground, begin: Begin, wanted: Lease) -> None:
    """What has to be so before the lease says that it is. May be done again and again. Blocks."""
    if begin in (Begin.KEEP, Begin.RESTORE, Begin.REJOIN):
        _killed(ground.targets)
    noted = ground.notes.made()
    if begin in (Begin.RESTORE, Begin.REJOIN):
        aside = ground.ledger.parent / "lost" / f"{wanted.host}-{noted.epoch}"
        set_aside(ground.ledger, aside)
    root = _root_of_ledger(begin, wanted) or 0
    if (noted.root, noted.epoch) != (root, wanted.epoch):
        ground.notes.change(root=root, epoch=wanted.epoch)


def _killed(targets: Targets) -> None:
    killed = kill(targets)
    if killed:
        log.warning("what ran after the lease's end was killed", extra={"processes": len(killed)})


def set_aside(ledger: Path, aside: Path) -> None:
    """Move a ledger with all its files, itself last: as long as it is there, not all was moved. Blocks."""
    beside = [*ledger.parent.glob(f"{ledger.name}-*"), *ledger.parent.glob(f".{ledger.name}-*")]
    for path in [*beside, ledger]:
        if path.exists():
            aside.mkdir(parents=True, exist_ok=True)
            path.rename(aside / path.name)
            log.warning("a ledger that others carry on was set aside", extra={"path": str(aside / path.name)})
    sync(ledger.parent)

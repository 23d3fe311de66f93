"""A world of hosts that a test can do anything to: one true time, a clock for each host that runs as it likes, writes
that arrive late or never, replies that are lost, processes that are stopped for as long as one likes.

The hosts decide by `poold.lease.terms` and nothing else. Of machines the worst is supposed: no poold ever kills one by
itself; only the warden does, and as late as it may. Nobody has a wall clock, so that none can be set.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lease_made import host as record

from poold.lease.terms import (
    DEAD_NS,
    MS,
    Begin,
    Carry,
    Mine,
    PassOn,
    Seen,
    Take,
    Terms,
    at_start,
    lapses_ns,
    left_by,
    may_go_on,
    plan,
    see,
)
from poold.lease.written import Lease, State, Taken, first

HOLD_MS = 1000
Line = tuple[str, int]  # a host, and the epoch in which a ledger of it began


@dataclass
class Object:
    tag: int
    lease: Lease


@dataclass
class Sent:
    """A write on its way: what it says, and who hears of it."""

    key: str
    lease: Lease
    tag: int | None
    heard: Callable[[int | None], None]  # the new tag, or None: a conflict


@dataclass
class Poold:
    """One process. What it knows is gone with it."""

    is_stopped: bool = False
    lease: Lease | None = None
    tag: int = 0
    sent_ns: int = 0
    beat: int = 0  # of the newest renewal that it sent
    beats: dict[int, int] = field(default_factory=dict)  # when it sent which
    is_fenced: bool = False
    is_begun: bool = False
    seen: dict[str, Seen] = field(default_factory=dict)
    waiting: list[Callable[[], None]] = field(default_factory=list)  # replies that a stopped process has not read
    carrying: Iterator[None] | None = None


@dataclass
class Node:
    """A host: its clock, its disk, its kernel."""

    name: str
    rate: float
    offset_ns: int
    holder: str
    boot: str = "0"
    root: int | None = None
    ledger: set[Line] = field(default_factory=set)
    held_epoch: int = 0
    hold_ns: int = 0
    kill_ns: int = 0
    has_machines: bool = False
    runs: set[Line] = field(default_factory=set)  # whose sandboxes may have machines here
    poold: Poold | None = None


class World:
    def __init__(self, rates: list[float]) -> None:
        self.now = 0.0
        self.nodes = {
            name: Node(name, rate, 1000 * number, f"{number:032x}")
            for number, (name, rate) in enumerate(zip("abcdefg", rates, strict=False), 1)
        }
        self.store: dict[str, Object] = {}
        self.replicas: dict[Line, set[Line]] = {}
        self.sent: list[Sent] = []
        self.tags = 0
        self.lines: set[Line] = set()
        self.holders: dict[tuple[str, int], str] = {}
        self.takers: dict[tuple[str, int], str] = {}

    def clock(self, node: Node) -> int:
        return node.offset_ns + int(self.now * node.rate)

    # The store.

    def arrive(self, number: int, *, is_heard: bool) -> None:
        sent = self.sent.pop(number)
        found = self.store.get(sent.key)
        if (None if found is None else found.tag) != sent.tag:
            if is_heard:
                sent.heard(None)
            return
        self._note(found, sent.lease)
        self.tags += 1
        self.store[sent.key] = Object(self.tags, sent.lease)
        if is_heard:
            sent.heard(self.tags)

    def _note(self, found: Object | None, lease: Lease) -> None:
        """The store's own log: nobody holds an epoch that another held, and an epoch is taken once."""
        if lease.root:
            assert self.holders.setdefault((lease.host, lease.epoch), lease.holder) == lease.holder
            self.lines.add((lease.host, lease.root))
        elif found is not None and found.lease.root:
            taker = lease.taken[-1].by
            assert (lease.host, found.lease.epoch) not in self.takers
            self.takers[(lease.host, found.lease.epoch)] = taker

    # Processes.

    def start(self, node: Node) -> None:
        if node.poold is None:
            node.poold = Poold()
            if node.root is not None and self.clock(node) >= node.hold_ns:
                self._killed(node)

    def kill(self, node: Node) -> None:
        node.poold = None

    def reboot(self, node: Node) -> None:
        self.kill(node)
        self._killed(node)
        node.boot = str(int(node.boot) + 1)
        node.held_epoch = node.hold_ns = node.kill_ns = 0

    def lose_disk(self, node: Node) -> None:
        self.reboot(node)
        node.holder = f"{int(node.holder, 16) + 1000:032x}"
        node.root, node.ledger = None, set()

    def _killed(self, node: Node) -> None:
        node.has_machines = False
        node.runs = set()

    def has_machines(self, node: Node) -> bool:
        return node.has_machines and self.clock(node) < node.kill_ns + DEAD_NS

    def be_away(self, node: Node, rounds: int) -> None:
        """The node does nothing, and hears nothing, for so long."""
        if node.poold is not None:
            node.poold.is_stopped = True
        for _ in range(rounds):
            self.be_well()

    def warden(self, node: Node) -> None:
        """It looks when it likes, and it may be late: what it has to do is supposed to be done by `has_machines`."""
        if node.kill_ns and self.clock(node) >= node.kill_ns:
            self._killed(node)
            node.kill_ns = 0
            self.kill(node)

    # The lease's holder.

    def begin(self, node: Node) -> None:
        """One look, and one try."""
        poold = node.poold
        if poold is None or poold.is_stopped or poold.lease is not None or poold.is_begun:
            return
        found, now_ns = self.store.get(node.name), self.clock(node)
        lease, lapses = None, None
        if found is not None:
            lease = found.lease
            poold.seen[node.name] = see(poold.seen.get(node.name), str(found.tag), lease, now_ns)
            lapses = lapses_ns(poold.seen[node.name])
        mine = Mine(node.holder, node.boot, node.root, node.held_epoch, node.hold_ns)
        how = at_start(lease, mine, now_ns, has_lapsed=lapses is not None and now_ns >= lapses)
        if how is None:
            return
        wanted = self._wanted(node, how, lease)
        if how in (Begin.KEEP, Begin.RESTORE, Begin.REJOIN):
            self._killed(node)
        if how in (Begin.RESTORE, Begin.REJOIN):
            node.ledger = set()
        node.root = None if how is Begin.RESTORE else wanted.root
        poold.is_begun = True
        self._send(node, poold, wanted, None if found is None else found.tag, how)

    def _wanted(self, node: Node, how: Begin, lease: Lease | None) -> Lease:
        if lease is None:
            return first(node.name, node.holder, node.boot, HOLD_MS, record(node.name))
        keeps = how in (Begin.GO_ON, Begin.KEEP, Begin.RESTORE)
        return lease.begun(node.holder, node.boot, HOLD_MS, goes_on=how is Begin.GO_ON, keeps_line=keeps)

    def _send(self, node: Node, poold: Poold, wanted: Lease, tag: int | None, how: Begin | None) -> None:
        sent_ns = self.clock(node)

        def heard(new_tag: int | None) -> None:
            def read() -> None:
                if node.poold is not poold:
                    return
                poold.is_begun = False
                if new_tag is not None and not poold.is_fenced:
                    self._hold(node, poold, wanted, new_tag, sent_ns, how)

            poold.waiting.append(read) if poold.is_stopped else read()

        self.sent.append(Sent(node.name, wanted, tag, heard))

    def _hold(  # noqa: PLR0917 — all that a reply tells
        self, node: Node, poold: Poold, lease: Lease, tag: int, sent_ns: int, how: Begin | None
    ) -> None:
        if how is Begin.RESTORE:
            node.ledger = set(self.replicas.get((node.name, lease.root), set()))
            node.root = lease.root
        line = (node.name, lease.root)
        node.ledger.add(line)
        self.replicas.setdefault(line, {line}).update(node.ledger if self._may(node, sent_ns) else ())
        terms = Terms(HOLD_MS * MS)
        poold.lease, poold.tag, poold.sent_ns = lease, tag, sent_ns
        node.held_epoch, node.hold_ns, node.kill_ns = lease.epoch, sent_ns + terms.hold_ns, sent_ns + terms.kill_ns
        if how is not None and self.is_held(node):
            node.has_machines = True
            node.runs = set(node.ledger)

    def _may(self, node: Node, sent_ns: int) -> bool:
        return may_go_on(sent_ns, Terms(HOLD_MS * MS), self.clock(node))

    def is_held(self, node: Node) -> bool:
        """What `check` says."""
        poold = node.poold
        if poold is None or poold.lease is None or poold.is_fenced:
            return False
        poold.is_fenced = not self._may(node, poold.sent_ns)
        return not poold.is_fenced

    def renew(self, node: Node) -> None:
        poold = node.poold
        if poold is None or poold.is_stopped or poold.lease is None or not self.is_held(node):
            return
        found = self.store.get(node.name)
        if found is not None and found.tag != poold.tag:  # a reply was lost, or somebody else wrote
            lease = found.lease
            if (lease.holder, lease.epoch, lease.root) != (node.holder, poold.lease.epoch, poold.lease.root):
                poold.is_fenced = True
                return
            poold.lease, poold.tag = lease, found.tag
            if poold.beats.get(lease.beat, 0) > poold.sent_ns:  # a look is as good as the reply
                self._hold(node, poold, lease, found.tag, poold.beats[lease.beat], None)
        poold.beat = max(poold.beat, poold.lease.beat) + 1
        poold.beats[poold.beat] = self.clock(node)
        self._send(node, poold, replace(poold.lease, beat=poold.beat), poold.tag, None)

    def cont(self, node: Node) -> None:
        if node.poold is not None and node.poold.is_stopped:
            node.poold.is_stopped = False
            waiting, node.poold.waiting = node.poold.waiting, []
            for read in waiting:
                read()

    # Taking over.

    def look(self, node: Node, other: str) -> None:
        poold = node.poold
        if poold is not None and not poold.is_stopped and poold.lease is not None and other in self.store:
            found = self.store[other]
            poold.seen[other] = see(poold.seen.get(other), str(found.tag), found.lease, self.clock(node))

    def act(self, node: Node) -> None:
        """One step of what is under way, or the first of something new."""
        poold = node.poold
        if poold is None or poold.is_stopped or poold.lease is None:
            return
        if poold.carrying is not None:
            if next(poold.carrying, self) is self:
                poold.carrying = None
            return
        todo = plan(poold.lease, poold.seen, self.clock(node)) if self.is_held(node) else []
        for action in todo:
            match action:
                case Take(seen):
                    lease = seen.lease.taken_by(node.name, poold.lease.epoch)
                    self.sent.append(Sent(seen.lease.host, lease, int(seen.tag), lambda _: None))
                case PassOn(seen, taken):
                    self._pass_on(node, poold, seen.lease.host, taken)
                case Carry(host, taken):
                    poold.carrying = self._carry(node, poold, host, taken)
            return

    def _pass_on(self, node: Node, poold: Poold, host: str, taken: Taken) -> None:
        found = self.store[host]
        assert poold.lease is not None
        lease = found.lease.passed_on(taken, node.name, poold.lease.epoch)
        if lease != found.lease:
            self.sent.append(Sent(host, lease, found.tag, lambda _: None))

    def _carry(self, node: Node, poold: Poold, host: str, taken: Taken) -> Iterator[None]:
        """As `Members._carry`; between any two steps anything may happen."""
        assert poold.lease is not None
        line = (node.name, poold.lease.root)
        lost = set(self.replicas.get((host, taken.root), {(host, taken.root)}))
        yield
        if (host, taken.root) not in node.ledger:
            node.ledger |= lost
        yield
        if poold.lease.root != node.root or not self.is_held(node):
            return
        self.replicas[line] |= node.ledger
        if node.has_machines:
            node.runs |= node.ledger
        yield
        for other in self.nodes:
            self.look(node, other)
            yield
        for each in left_by(host, taken, poold.seen):
            while each.taken in self.store[each.seen.lease.host].lease.taken:
                self._pass_on(node, poold, each.seen.lease.host, each.taken)
                yield
        while taken in self.store[host].lease.taken:
            found = self.store[host]
            self.sent.append(Sent(host, found.lease.settled(taken), found.tag, lambda _: None))
            yield

    # What must hold.

    def check(self) -> None:
        """No sandbox has machines on two hosts."""
        running: dict[Line, str] = {}
        for node in self.nodes.values():
            for line in node.runs if self.has_machines(node) else ():
                other = running.setdefault(line, node.name)
                assert other == node.name, f"{line} runs on {other} and on {node.name}"

    def settle(self) -> None:
        """Nothing goes wrong any more. In the end each ledger that there ever was is in exactly one that is held."""
        self._arrive_all()
        for _ in range(400):
            for node in self.nodes.values():
                self.cont(node)
                if node.poold is not None and not self.is_held(node) and (node.poold.lease or node.poold.is_begun):
                    self._killed(node)
                    self.kill(node)
                self.start(node)
            self.be_well(steps=4)
            is_open = any(each.lease.taken or each.lease.state is not State.HELD for each in self.store.values())
            if not is_open and all(self.is_held(node) for node in self.nodes.values()):
                break
        owners: dict[Line, list[str]] = {line: [] for line in self.lines}
        for node in self.nodes.values():
            assert node.poold is not None
            assert node.poold.lease is not None, f"{node.name} never came back"
            assert not self.store[node.name].lease.taken, f"what {node.name} had was never carried on"
            for line in self.replicas[(node.name, node.poold.lease.root)]:
                owners[line].append(node.name)
        assert {line: found for line, found in owners.items() if len(found) != 1} == {}

    def be_well(self, *, steps: int = 1) -> None:
        """For a moment every host that is up renews, looks at all, and does something about it."""
        self.now += HOLD_MS * MS / 7
        for node in self.nodes.values():
            self.begin(node)
            self.renew(node)
            self._arrive_all()
            for other in self.nodes:
                self.look(node, other)
            for _ in range(steps):
                self.act(node)
                self._arrive_all()
        self.check()

    def _arrive_all(self) -> None:
        while self.sent:
            self.arrive(0, is_heard=True)

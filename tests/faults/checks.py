"""What must be true of a host on which nothing is under way. No I/O: each check gives what is wrong, in words."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from contract.states import LIVE, TRANSITIONS, State
from tests.faults.model import Known

OVERHEAD_MB = 160  # what poold counts for a machine besides its memory
IN_A_MACHINES_FOLDER = "saved.tmp"  # half of a saved state
SAVED = "saved"


@dataclass(frozen=True)
class Row:
    """A sandbox in the ledger."""

    id: str
    state: State
    machine: str | None = None
    memory_mb: int = 128
    nonce: str | None = None  # what its creation was marked with
    open_runs: int = 0  # of its usage
    reason: str | None = None


@dataclass(frozen=True)
class Told:
    """An event in the ledger, as far as checks look at it."""

    seq: int
    kind: str
    state: str | None = None
    guest_seq: int | None = None


@dataclass(frozen=True)
class Host:
    """What there is on the host of one poold, found by looking where poold does not, and what poold counts."""

    machines: Mapping[str, int]  # with a process, and its pid
    folders: Mapping[str, Collection[str]]  # of machines, and what is in each
    groups: Collection[str]  # machines with a control group
    pins: Collection[str]  # every mount of a namespace, a slot's twice if it is there twice
    processes: Mapping[int, str]  # all that poold or a child of its started, but for poold itself
    links: Mapping[str, Collection[str]] = field(default_factory=dict)  # by machine: the links in its namespace
    in_run_dir: Collection[str] = ()
    users: Collection[int] = ()  # that machines run as
    proxies: Collection[int] = ()  # the users that proxies stand beside, one for each proxy
    slots: int = 0
    free_slots: int = 0
    budget_mb: int = 0
    left_mb: int = 0
    warm: int = 0
    warm_mb: int = 0


def states(known: Iterable[Known], rows: Mapping[str, Row]) -> Iterator[str]:
    """Every sandbox that a client was told of is in a state that the answers allow."""
    for one in known:
        row = rows.get(one.id)
        if row is None:
            yield f"{one.id} is gone from the ledger"
        elif row.state not in one.allowed():
            allowed = ", ".join(sorted(one.allowed()))
            yield f"{one.id} is {row.state} ({row.reason}), and the answers allow only: {allowed}"


def strangers(rows: Iterable[Row], nonces: Collection[str]) -> Iterator[str]:
    """Every sandbox was asked for, and only once. One that nobody was told of runs or was written off."""
    seen: set[str] = set()
    for row in rows:
        if row.nonce not in nonces:
            yield f"nobody asked for {row.id} ({row.nonce})"
        elif row.nonce in seen:
            yield f"{row.nonce} was asked for once, and {row.id} is a second sandbox"
        seen.add(row.nonce or "")
        if row.state in LIVE - {State.RUNNING}:
            yield f"{row.id} is still {row.state}"
        if row.open_runs != (row.state is State.RUNNING):
            yield f"{row.id} is {row.state} and has {row.open_runs} runs without an end"


def stream(name: str, events: Iterable[Told]) -> Iterator[str]:
    """The events of a sandbox are numbered without a gap, also the guest's own, and its states follow the table."""
    guest_seq, state = 0, State.PENDING
    for expected, event in enumerate(events, 1):
        if event.seq != expected:
            yield f"{name}: event {event.seq} stands where {expected} should"
            return
        if event.guest_seq is not None:
            if event.guest_seq != guest_seq + 1:
                yield f"{name}: the guest's event {event.guest_seq} follows {guest_seq}"
            guest_seq = event.guest_seq
        if event.state is not None and event.kind != "created":
            if event.state not in TRANSITIONS[state].values():
                yield f"{name}: {event.state} (event {event.seq}) cannot follow {state}"
            state = State(event.state)


def machines(rows: Iterable[Row], host: Host) -> Iterator[str]:
    """Running sandboxes and warm machines have a process, a group and a folder; paused ones a folder; nobody else."""
    rows = list(rows)
    running = {row.machine or "": row.id for row in rows if row.state is State.RUNNING}
    paused = {row.machine or "": row.id for row in rows if row.state is State.PAUSED}
    yield from (f"{running[name]} runs and has no process" for name in running.keys() - host.machines.keys())
    others = host.machines.keys() - running.keys()
    if len(others) != host.warm:
        yield f"{len(others)} machines run for nobody ({', '.join(sorted(others))}), and {host.warm} are warm"
    yield from _differ("control groups", set(host.groups), set(host.machines))
    yield from _differ("folders of machines", set(host.folders), {*running, *paused, *others})
    for name, files in host.folders.items():
        if IN_A_MACHINES_FOLDER in files:
            yield f"{name} has half of a saved state"
        if (SAVED in files) != (name in paused):
            has, is_ = "a" if SAVED in files else "no", "is" if name in paused else "is not"
            yield f"{name} has {has} saved state and {is_} paused"


def rest(host: Host, running: Iterable[Row]) -> Iterator[str]:
    """No slot, link, process or file is left over, and poold counts what there is."""
    running = list(running)
    yield from _differ("pins", sorted(host.pins), sorted(str(number) for number in range(host.slots)))
    for name, links in host.links.items():
        yield from _differ(f"links of {name}", sorted(links), ["lo", "tap0"])
    for pid in host.processes.keys() - set(host.machines.values()):
        yield f"process {pid} is nobody's: {host.processes[pid][:200]}"
    yield from _differ("files in the run folder", set(host.in_run_dir), {"netns", "egress", "poold.sock"})
    yield from _differ("proxies", sorted(host.proxies), sorted(host.users))
    free = host.slots - len(running) - host.warm
    if host.free_slots != free:
        yield f"poold counts {host.free_slots} free slots, and there are {free}"
    left = host.budget_mb - sum(row.memory_mb + OVERHEAD_MB for row in running) - host.warm_mb
    if host.left_mb != left:
        yield f"poold counts {host.left_mb} MB that are left, and there are {left}"


def marks(one: Known, acknowledged: Collection[str], shown: Mapping[str, str]) -> Iterator[str]:
    """`shown` are a machine's boot id, and its marks on its drive and in its memory, asked for when those that were
    `acknowledged` had been. Both places have all of them, and nothing that nobody sent, and nothing twice.
    """
    if one.boot not in (None, shown["boot"]):
        yield f"{one.id} was booted again"
    for where in ("drive", "memory"):
        there = shown[where].split()
        if len(set(there)) != len(there):
            yield f"{one.id} has a mark twice in its {where}: {there}"
        if lost := set(acknowledged) - set(there):
            yield f"{one.id} has lost the marks {sorted(lost)} in its {where}, which has {there}"
        if invented := set(there) - one.marks_sent:
            yield f"{one.id} has marks in its {where} that nobody sent: {sorted(invented)}"


def _differ(what: str, there: Collection[str], wanted: Collection[str]) -> Iterator[str]:
    if there != wanted:
        yield f"{what}: there are {sorted(there)}, and there should be {sorted(wanted)}"

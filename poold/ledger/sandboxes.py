"""Questions and changes about sandboxes. A change writes the state, its event and its audit row together."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from contract.errors import BadField, NotFound, WrongState
from contract.models import MAX_PUBLIC_PORTS, Hibernated, Rules, Sandbox, Shape
from contract.network import Network, Within
from contract.states import LIVE, Event, State, step
from contract.workspaces import Workspace
from poold.ledger import audit, events, leftovers, usage
from poold.ledger.driver import sqlite3

ENDED = (State.STOPPED, State.ERROR)


def add(db: sqlite3.Connection, sandbox: Sandbox, *, request: str | None = None) -> None:
    """Write a new sandbox down, before anything is done for it."""
    shape, rules = sandbox.shape, sandbox.rules
    db.execute(
        "INSERT INTO sandboxes (id, state, owner, image, vcpus, memory_mb, disk_mb, metadata, created_ms, expires_ms,"
        " generation, timeout_sec, on_timeout, idle_sec, hibernate_sec, hibernate_kind, paused_sec, auto_resume,"
        " public_ports, network, within, workspace)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sandbox.id,
            sandbox.state,
            sandbox.owner,
            shape.image,
            shape.vcpus,
            shape.memory_mb,
            shape.disk_mb,
            orjson.dumps(sandbox.metadata).decode(),
            sandbox.created_ms,
            sandbox.expires_ms,
            sandbox.generation,
            rules.timeout_sec,
            rules.on_timeout,
            rules.idle_sec,
            rules.hibernate_sec,
            rules.hibernate_kind,
            rules.paused_sec,
            rules.auto_resume,
            orjson.dumps(sandbox.public_ports).decode(),
            orjson.dumps(sandbox.network.view()).decode(),
            orjson.dumps([each.view() for each in sandbox.within]).decode(),
            workspace_text(sandbox.workspace),
        ),
    )
    told = {
        "state": sandbox.state,
        **vars(shape),
        "rules": vars(rules),
        "expires_ms": sandbox.expires_ms,
        "public_ports": sandbox.public_ports,
        "network": sandbox.network.policy,
        **({} if sandbox.workspace is None else {"workspace": sandbox.workspace.view()}),
    }
    _record(db, sandbox, "created", told, action="create", noted=told, now_ms=sandbox.created_ms, request=request)


def take_over(db: sqlite3.Connection, sandbox: Sandbox, *, now_ms: int, request: str | None = None) -> Sandbox:
    """Write down a hibernated sandbox that was another host's. What is in the store is this host's from now on."""
    add(db, sandbox, request=request)
    where = None if sandbox.hibernated is None else orjson.dumps(sandbox.hibernated).decode()
    columns = {"started": sandbox.started_ms, "paused": sandbox.paused_ms, "machine": sandbox.machine, "where": where}
    row = db.execute(
        "UPDATE sandboxes SET started_ms = :started, paused_ms = :paused, machine = :machine, hibernated = :where"
        " WHERE id = :id RETURNING *",
        {**columns, "id": sandbox.id},
    ).fetchone()
    after = _sandbox(row)
    told = {"state": after.state}
    _record(db, after, "taken_over", told, action="take_over", noted=told, now_ms=now_ms, request=request)
    return after


def move(
    db: sqlite3.Connection,
    sandbox_id: str,
    event: Event,
    *,
    now_ms: int,
    machine: str | None = None,
    generation: int | None = None,
    reason: str | None = None,
    expires_ms: int | None = None,
    hibernated: Hibernated | None = None,
    request: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Sandbox:
    """Apply `event`, or raise `WrongState` and change nothing. Returns the sandbox as it is then.

    What is None stays as it is; only a reason does not outlive the next time that the sandbox runs. `detail` is told in
    the event and in the audit row.
    """
    before = get(db, sandbox_id)
    state = step(before.state, event)
    asked = {"machine": machine, "generation": generation, "expires_ms": expires_ms}
    where = None if hibernated is None else orjson.dumps(hibernated).decode()
    facts = {**asked, "id": sandbox_id, "state": state, "reason": reason, "now": now_ms, "hibernated": where}
    after = _sandbox(db.execute(MOVE, facts).fetchone())
    _keep_book(db, before, after, now_ms=now_ms)
    if state is State.RUNNING:
        usage.begin(db, after, now_ms=now_ms)
    elif before.state is State.RUNNING:
        usage.end(db, sandbox_id, now_ms=now_ms)
    if event in (Event.PAUSE, Event.HIBERNATE) and request is not None:
        let_sleep(db, sandbox_id)
    told = {"state": state, "reason": reason, **(detail or {})}
    noted = {"from": before.state, **told, **{name: value for name, value in asked.items() if value is not None}}
    _record(db, after, _kind(before, state), told, action=event, noted=noted, now_ms=now_ms, request=request)
    return after


def let_sleep(db: sqlite3.Connection, sandbox_id: str) -> bool:
    """Somebody asked for it to sleep: a drain that has put it to sleep owes it nothing more. Whether one did."""
    gone = "UPDATE sandboxes SET wanted = NULL WHERE id = ? AND wanted IS NOT NULL RETURNING id"
    return db.execute(gone, (sandbox_id,)).fetchone() is not None


# The first start and the first end are kept. While a paused sandbox is being resumed, `paused_ms` is kept, too:
# a resume that comes to nothing leaves it paused since then, and a start of the daemon can tell that its memory is on
# disk.
MOVE = (
    "UPDATE sandboxes SET state = :state,"
    " machine = coalesce(:machine, machine), generation = coalesce(:generation, generation),"
    " expires_ms = coalesce(:expires_ms, expires_ms),"
    " reason = CASE WHEN :state = 'running' THEN :reason ELSE coalesce(:reason, reason) END,"
    " started_ms = CASE WHEN :state = 'running' THEN coalesce(started_ms, :now) ELSE started_ms END,"
    " paused_ms = CASE WHEN :state IN ('paused', 'hibernated') THEN coalesce(paused_ms, :now)"
    "   WHEN :state IN ('running', 'stopped', 'error') THEN NULL ELSE paused_ms END,"
    " hibernated = CASE WHEN :state IN ('paused', 'running', 'stopped') THEN NULL"
    "   ELSE coalesce(:hibernated, hibernated) END,"
    " ended_ms = CASE WHEN :state IN ('stopped', 'error') THEN coalesce(ended_ms, :now) ELSE ended_ms END"
    " WHERE id = :id RETURNING *"
)


def _keep_book(db: sqlite3.Connection, before: Sandbox, after: Sandbox, *, now_ms: int) -> None:
    """What is in the store is the sandbox's, or it is left over: in the same moment as its state says so."""
    if before.hibernated != after.hibernated:
        if before.hibernated is not None:
            leftovers.add(db, before.hibernated.prefix, now_ms=now_ms)
        if after.hibernated is not None:
            leftovers.drop(db, after.hibernated.prefix)


def set_expiry(
    db: sqlite3.Connection,
    sandbox_id: str,
    expires_ms: int | None,
    timeout_sec: int,
    now_ms: int,
    *,
    on_timeout: str | None = None,
    request: str | None = None,
) -> Sandbox:
    """Give the sandbox another end of its time, or raise `WrongState` if it has ended."""
    state = get(db, sandbox_id).state
    if state in ENDED:
        raise WrongState(f"sandbox {sandbox_id} is {state}: it has no time left to change", state=state)
    row = db.execute(
        "UPDATE sandboxes SET expires_ms = ?, timeout_sec = ?, on_timeout = coalesce(?, on_timeout)"
        " WHERE id = ? RETURNING *",
        (expires_ms, timeout_sec, on_timeout, sandbox_id),
    ).fetchone()
    after = _sandbox(row)
    told: dict[str, Any] = {"expires_ms": expires_ms, "timeout_sec": timeout_sec}
    told |= {} if on_timeout is None else {"on_timeout": on_timeout}
    _record(db, after, "timeout", told, action="timeout", noted=told, now_ms=now_ms, request=request)
    return after


def set_public(
    db: sqlite3.Connection, sandbox_id: str, port: int, *, public: bool, now_ms: int, request: str | None = None
) -> Sandbox:
    """Let everybody reach `port` through a gateway, or only the owner. What is so already is not written again."""
    before = get(db, sandbox_id)
    if before.state in ENDED:
        raise WrongState(f"sandbox {sandbox_id} is {before.state}: its ports lead nowhere", state=before.state)
    ports = sorted({*before.public_ports, port} if public else {*before.public_ports} - {port})
    if ports == list(before.public_ports):
        return before
    if len(ports) > MAX_PUBLIC_PORTS:
        raise BadField("port", port, f"a sandbox has at most {MAX_PUBLIC_PORTS} public ports")
    row = db.execute(
        "UPDATE sandboxes SET public_ports = ? WHERE id = ? RETURNING *", (orjson.dumps(ports).decode(), sandbox_id)
    ).fetchone()
    after = _sandbox(row)
    told = {"port": port, "public": public}
    _record(db, after, "port", told, action="port", noted=told, now_ms=now_ms, request=request)
    return after


def set_network(
    db: sqlite3.Connection, sandbox_id: str, network: Network, *, now_ms: int, request: str | None = None
) -> Sandbox:
    """Give the sandbox another policy, within those that it never gets out of."""
    before = get(db, sandbox_id)
    if before.state in ENDED:
        raise WrongState(f"sandbox {sandbox_id} is {before.state}: it reaches nothing", state=before.state)
    view = network.view()
    row = db.execute(
        "UPDATE sandboxes SET network = ? WHERE id = ? RETURNING *", (orjson.dumps(view).decode(), sandbox_id)
    ).fetchone()
    after = _sandbox(row)
    told = {
        "policy": network.policy,
        "allow": [str(rule) for rule in (*network.allow, *network.allow_addresses)],
        "hold_sec": network.hold_sec,
    }
    _record(db, after, "network", told, action="network", noted=view, now_ms=now_ms, request=request)
    return after


def tell(
    db: sqlite3.Connection,
    sandbox_id: str,
    kind: str,
    data: Mapping[str, Any],
    *,
    at_ms: int,
    guest_seq: int | None = None,
) -> None:
    """Put something that changes nothing, what its guest said for example, at the end of the sandbox's timeline.

    Of one that has ended nothing is told any more: `stopped` is the last event, and after `error` only that may come.
    """
    state = states(db, [sandbox_id])[sandbox_id]
    if state is not None and state not in ENDED:
        events.append(db, sandbox_id, kind, data, at_ms=at_ms, guest_seq=guest_seq)


def get(db: sqlite3.Connection, sandbox_id: str) -> Sandbox:
    row = db.execute("SELECT * FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
    if row is None:
        raise NotFound(f"no sandbox {sandbox_id!r} on this host", sandbox=sandbox_id)
    return _sandbox(row)


def listed(
    db: sqlite3.Connection,
    *,
    states: Iterable[State],
    owner: str | None = None,
    image: str | None = None,
    metadata: Mapping[str, str] | None = None,
    before: tuple[int, str] | None = None,
    limit: int,
) -> list[Sandbox]:
    """Sandboxes that have all that is asked for, newest first, of those older than `before` (when created, and its id).

    `before` need not be a sandbox of this host: a gateway merges the lists of many.
    """
    wanted = sorted(states)
    # The plus keeps SQLite from the index by state: it would have to sort all that it finds there.
    clauses: list[tuple[str, Collection[Any]]] = [(f"+state IN ({', '.join('?' * len(wanted))})", wanted)]
    if State.STOPPED not in wanted:
        clauses.append(("state <> 'stopped'", ()))  # as the index of what is left says it
    if owner is not None:
        clauses.append(("owner = ?", (owner,)))
    if image is not None:
        clauses.append(("image = ?", (image,)))
    if before is not None:
        clauses.append(("(created_ms, id) < (?, ?)", before))
    clauses += [(HAS_METADATA, pair) for pair in (metadata or {}).items()]
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE {' AND '.join(text for text, _ in clauses)}"  # noqa: S608 — marks, constants
        " ORDER BY created_ms DESC, id DESC LIMIT ?",
        [*(value for _, values in clauses for value in values), limit],
    )
    return [_sandbox(row) for row in rows]


HAS_METADATA = "EXISTS (SELECT 1 FROM json_each(metadata) AS pair WHERE pair.key = ? AND pair.value = ?)"


def living(db: sqlite3.Connection, owner: str) -> list[Sandbox]:
    """All of the owner's that have not ended: what counts against its pools."""
    rows = db.execute(
        "SELECT * FROM sandboxes WHERE owner = ? AND state <> 'stopped' AND +state <> 'error' ORDER BY created_ms, id",
        (owner,),
    )
    return [_sandbox(row) for row in rows]


def states(db: sqlite3.Connection, ids: Iterable[str]) -> dict[str, State | None]:
    """The state of each; None for one that this host has never had, or has forgotten."""
    found: dict[str, State | None] = {}
    for one in ids:
        row = db.execute("SELECT state FROM sandboxes WHERE id = ?", (one,)).fetchone()
        found[one] = None if row is None else State(row[0])
    return found


def alive(db: sqlite3.Connection) -> list[Sandbox]:
    """All that may have a machine or memory on this host, oldest first: what a start of the daemon looks after."""
    wanted = sorted({*LIVE, State.PAUSED})
    marks = ", ".join("?" * len(wanted))
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE state IN ({marks}) ORDER BY created_ms, id",  # noqa: S608 — only marks
        wanted,
    )
    return [_sandbox(row) for row in rows]


def hibernating(db: sqlite3.Connection) -> list[Sandbox]:
    """All that are in the store, oldest first."""
    rows = db.execute("SELECT * FROM sandboxes WHERE state = 'hibernated' ORDER BY created_ms, id")
    return [_sandbox(row) for row in rows]


def count_by_state(db: sqlite3.Connection) -> dict[State, int]:
    """How many sandboxes are in each state; 0 where there is none."""
    counted = {State(row[0]): int(row[1]) for row in db.execute("SELECT state, count(*) FROM sandboxes GROUP BY state")}
    return {state: counted.get(state, 0) for state in State}


def _kind(before: Sandbox, state: State) -> str:
    """What a client reads in the stream: the new state, or that it is running again."""
    return "resumed" if state is State.RUNNING and before.started_ms is not None else str(state)


def _record(
    db: sqlite3.Connection,
    sandbox: Sandbox,
    kind: str,
    told: Mapping[str, Any],
    *,
    action: str,
    noted: Mapping[str, Any],
    now_ms: int,
    request: str | None,
) -> None:
    """History: what the sandbox's stream tells, and what the audit log notes."""
    events.append(db, sandbox.id, kind, told, at_ms=now_ms)
    entry = audit.Entry(
        at_ms=now_ms,
        action=f"sandbox.{action}",
        owner=sandbox.owner,
        sandbox=sandbox.id,
        request=request,
        detail=noted,
    )
    audit.add(db, entry)


def _sandbox(row: sqlite3.Row) -> Sandbox:
    return Sandbox(
        id=row["id"],
        state=State(row["state"]),
        shape=Shape(row["image"], row["vcpus"], row["memory_mb"], row["disk_mb"]),
        metadata=orjson.loads(row["metadata"]),
        created_ms=row["created_ms"],
        expires_ms=row["expires_ms"],
        rules=Rules(
            timeout_sec=row["timeout_sec"],
            on_timeout=row["on_timeout"],
            idle_sec=row["idle_sec"],
            hibernate_sec=row["hibernate_sec"],
            hibernate_kind=row["hibernate_kind"],
            paused_sec=row["paused_sec"],
            auto_resume=bool(row["auto_resume"]),
        ),
        owner=row["owner"],
        started_ms=row["started_ms"],
        paused_ms=row["paused_ms"],
        ended_ms=row["ended_ms"],
        machine=row["machine"],
        generation=row["generation"],
        reason=row["reason"],
        public_ports=tuple(orjson.loads(row["public_ports"])),
        network=_network(row["network"]),
        within=_within(row["within"]),
        hibernated=None if row["hibernated"] is None else Hibernated(**orjson.loads(row["hibernated"])),
        workspace=None if row["workspace"] is None else Workspace(**orjson.loads(row["workspace"])),
    )


def workspace_text(workspace: Workspace | None) -> str | None:
    return None if workspace is None else orjson.dumps(workspace.encode()).decode()


@lru_cache(maxsize=1024)
def _network(text: str) -> Network:
    return Network.decode(orjson.loads(text))


@lru_cache(maxsize=1024)
def _within(text: str) -> tuple[Within, ...]:
    return tuple(Within(each["level"], Network.decode(each["network"], "within")) for each in orjson.loads(text))

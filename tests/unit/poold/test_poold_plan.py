"""Recovery's plan: pure, so any rows and any machines will do."""

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from contract.models import Rules, Sandbox, Shape
from contract.states import Event, State, step
from poold.engines import Found
from poold.reconcile import Plan, plan

BASE_UID = 1000
# A sandbox has no machine before it is being started.
STATES = [State.STARTING, State.RUNNING, State.PAUSED]


def sandbox(number: int, state: State, machine: str | None) -> Sandbox:
    return Sandbox(
        id=f"sb-{number}",
        state=state,
        shape=Shape("python", 1, 512, 4096),
        metadata={},
        created_ms=number,
        expires_ms=None,
        rules=Rules(timeout_sec=60),
        machine=machine,
    )


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[Sandbox], list[Found]]:
    """What a daemon may find: machines with and without rows, rows with and without machines."""
    numbers = count()
    rows, found = [], []
    for state, has_trace in draw(st.lists(st.tuples(st.sampled_from(STATES), st.booleans()), max_size=12)):
        number = next(numbers)
        rows.append(sandbox(number, state, f"vm-{number}"))
        if has_trace:
            found.append(draw(machines(f"vm-{number}")))
    rows += [sandbox(next(numbers), State.PENDING, None) for _ in range(draw(st.integers(0, 2)))]
    found += [draw(machines(f"vm-{next(numbers)}")) for _ in range(draw(st.integers(0, 4)))]
    return draw(st.permutations(rows)), draw(st.permutations(found))


@st.composite
def machines(draw: st.DrawFn, name: str) -> Found:
    pid = draw(st.none() | st.integers(2, 1 << 22))
    uid = None if pid is None else draw(st.none() | st.integers(BASE_UID - 2, BASE_UID + 64))
    return Found(name, pid, is_saved=draw(st.booleans()), uid=uid)


def buckets(todo: Plan) -> list[str]:
    """The sandbox of each entry, wherever it is."""
    lost = [row for row, _ in todo.lose]
    return [row.id for row in [*todo.put_back, *lost, *todo.paused, *(action.sandbox for action in todo.adopt)]]


@given(hosts())
def test_every_sandbox_has_exactly_one_fate(host: tuple[list[Sandbox], list[Found]]) -> None:
    rows, found = host
    assert Counter(buckets(plan(rows, found, base_uid=BASE_UID))) == Counter(row.id for row in rows)


@given(hosts())
def test_every_fate_is_one_that_the_ledger_takes(host: tuple[list[Sandbox], list[Found]]) -> None:
    todo = plan(*host, base_uid=BASE_UID)
    for row in todo.put_back:
        assert step(row.state, Event.PUT_BACK) is State.PAUSED
    for row, reason in todo.lose:
        assert step(row.state, Event.FAIL) is State.ERROR
        assert reason
    assert all(action.sandbox.state is State.RUNNING for action in todo.adopt)
    assert all(row.state is State.PAUSED for row in todo.paused)


@given(hosts())
def test_every_machine_is_removed_or_adopted_or_kept_on_disk(host: tuple[list[Sandbox], list[Found]]) -> None:
    rows, found = host
    todo = plan(rows, found, base_uid=BASE_UID)
    adopted = [action.machine_id for action in todo.adopt]
    on_disk = [row.machine for row in [*todo.paused, *todo.put_back]]
    assert Counter([*todo.remove, *adopted, *on_disk]) == Counter(machine.id for machine in found)
    by_id = {machine.id: machine for machine in found}
    assert all(by_id[name or ""].is_saved for name in on_disk)
    # Of what stays on disk, exactly what has a process is halted.
    assert sorted(todo.halt) == sorted(name for name in on_disk if name and by_id[name].pid is not None)
    assert all(by_id[name].pid is not None for name in adopted)


@given(hosts())
def test_no_machine_of_a_sandbox_that_goes_on_is_removed(host: tuple[list[Sandbox], list[Found]]) -> None:
    rows, found = host
    todo = plan(rows, found, base_uid=BASE_UID)
    lost = {row.machine for row, _ in todo.lose}
    for row in rows:
        if row.machine not in lost:
            assert row.machine not in todo.remove
    named = {row.machine for row in rows}
    assert {machine.id for machine in found if machine.id not in named} <= set(todo.remove)


@given(hosts())
def test_an_adopted_machine_keeps_its_slot(host: tuple[list[Sandbox], list[Found]]) -> None:
    rows, found = host
    uids = {machine.id: machine.uid for machine in found}
    for action in plan(rows, found, base_uid=BASE_UID).adopt:
        assert action.sandbox.machine == action.machine_id
        assert action.slot == (uids[action.machine_id] or 0) - BASE_UID >= 0


def test_an_empty_host_needs_nothing() -> None:
    assert plan([], [], base_uid=BASE_UID) == Plan()

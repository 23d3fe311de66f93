"""The checks themselves: each finds what it is there to find, and nothing in a host that is well."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from contract.states import State
from tests.faults import checks
from tests.faults.checks import Host, Row, Told
from tests.faults.model import Change, Known, after, reachable

RUNNING = Row("sb-r", State.RUNNING, "vm-r", 128, "n1", open_runs=1)
PAUSED = Row("sb-p", State.PAUSED, "vm-p", 128, "n2")
STOPPED = Row("sb-s", State.STOPPED, "vm-s", 128, "n3")
ROWS = [RUNNING, PAUSED, STOPPED]
WELL = Host(
    machines={"vm-r": 100, "vm-w": 101},
    folders={"vm-r": {"drive"}, "vm-w": {"drive"}, "vm-p": {"drive", "saved"}},
    groups={"vm-r", "vm-w"},
    pins=["0", "1", "2"],
    processes={100: "qemu-system-x86_64", 101: "qemu-system-x86_64"},
    links={"vm-r": {"lo", "tap0"}, "vm-w": {"lo", "tap0"}},
    in_run_dir={"netns", "egress", "poold.sock"},
    users=[1000, 1001],
    proxies=[1000, 1001],
    slots=3,
    free_slots=1,
    budget_mb=4096,
    left_mb=4096 - 2 * (128 + checks.OVERHEAD_MB),
    warm=1,
    warm_mb=128 + checks.OVERHEAD_MB,
)
STREAM = [
    Told(1, "created", "pending"),
    Told(2, "starting", "starting"),
    Told(3, "running", "running"),
    Told(4, "process", None, guest_seq=1),
    Told(5, "paused", "paused"),
    Told(6, "starting", "starting"),
    Told(7, "resumed", "running"),
    Told(8, "process", None, guest_seq=2),
]


def found_on(host: Host, rows: list[Row] = ROWS) -> list[str]:
    running = [row for row in rows if row.state is State.RUNNING]
    return [*checks.machines(rows, host), *checks.rest(host, running)]


def test_a_host_that_is_well_has_nothing_wrong() -> None:
    assert found_on(WELL) == []
    assert list(checks.stream("sb-r", STREAM)) == []
    assert list(checks.strangers(ROWS, {"n1", "n2", "n3"})) == []
    assert list(checks.states([Known("sb-r")], {"sb-r": RUNNING})) == []


WRONGS: dict[str, tuple[Callable[[Host], Host], str]] = {
    "machine": (lambda host: replace(host, machines={**host.machines, "vm-x": 102}), "2 machines run for nobody"),
    "dead": (lambda host: replace(host, machines={"vm-w": 101}), "sb-r runs and has no process"),
    "group": (lambda host: replace(host, groups={*host.groups, "vm-s"}), "control groups"),
    "no group": (lambda host: replace(host, groups={"vm-w"}), "control groups"),
    "folder": (lambda host: replace(host, folders={**host.folders, "vm-s": set()}), "folders of machines"),
    "no folder": (lambda host: replace(host, folders={"vm-r": set(), "vm-w": set()}), "folders of machines"),
    "half saved": (lambda host: replace(host, folders={**host.folders, "vm-w": {"saved.tmp"}}), "half of a saved"),
    "stale": (lambda host: replace(host, folders={**host.folders, "vm-r": {"saved"}}), "has a saved state and is not"),
    "unsaved": (
        lambda host: replace(host, folders={**host.folders, "vm-p": set()}),
        "has no saved state and is paused",
    ),
    "pin": (lambda host: replace(host, pins=["0", "1", "2", "2"]), "pins"),
    "no pin": (lambda host: replace(host, pins=["0", "2"]), "pins"),
    "link": (lambda host: replace(host, links={"vm-r": {"lo", "tap0", "tap1"}}), "links of vm-r"),
    "process": (
        lambda host: replace(host, processes={**host.processes, 7: "sleep 9"}),
        "process 7 is nobody's: sleep 9",
    ),
    "proxy": (lambda host: replace(host, proxies=[1000, 1001, 1001]), "proxies"),
    "no proxy": (lambda host: replace(host, proxies=[1000]), "proxies"),
    "file": (lambda host: replace(host, in_run_dir={*host.in_run_dir, "x"}), "files in the run folder"),
    "slots": (lambda host: replace(host, free_slots=0), "free slots"),
    "memory": (lambda host: replace(host, left_mb=host.left_mb - 1), "MB that are left"),
    "warm": (lambda host: replace(host, warm=2), "2 are warm"),
}


@pytest.mark.parametrize("name", WRONGS)
def test_what_is_left_over_is_found(name: str) -> None:
    spoil, words = WRONGS[name]
    assert words in "\n".join(found_on(spoil(WELL)))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (STREAM[:3] + STREAM[4:], "event 5 stands where 4 should"),
        ([*STREAM, STREAM[-1]], "event 8 stands where 9 should"),
        ([*STREAM, Told(9, "process", None, guest_seq=4)], "the guest's event 4 follows 2"),
        ([*STREAM, Told(9, "process", None, guest_seq=2)], "the guest's event 2 follows 2"),
        ([*STREAM, Told(9, "resumed", "running")], "running (event 9) cannot follow running"),
        (STREAM[1:], "event 2 stands where 1 should"),
    ],
)
def test_a_stream_with_a_gap_a_duplicate_or_an_impossible_state_is_found(events: list[Told], words: str) -> None:
    assert words in "\n".join(checks.stream("sb-r", events))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (replace(RUNNING, nonce="other"), "nobody asked for sb-r"),
        (replace(RUNNING, nonce=None), "nobody asked for sb-r"),
        (replace(RUNNING, nonce="n2"), "is a second sandbox"),
        (replace(RUNNING, state=State.STARTING, open_runs=0), "sb-r is still starting"),
        (replace(RUNNING, state=State.PENDING, open_runs=0), "sb-r is still pending"),
        (replace(RUNNING, open_runs=0), "has 0 runs without an end"),
        (replace(STOPPED, open_runs=1), "has 1 runs without an end"),
    ],
)
def test_a_sandbox_that_should_not_be_like_that_is_found(row: Row, words: str) -> None:
    assert words in "\n".join(checks.strangers([PAUSED, row], {"n1", "n2", "n3"}))


def test_a_sandbox_that_is_not_where_its_clients_left_it_is_found() -> None:
    one = Known("sb-r")
    assert "gone from the ledger" in "\n".join(checks.states([one], {}))
    for state in set(State) - {State.RUNNING}:
        assert f"sb-r is {state}" in "\n".join(checks.states([one], {"sb-r": replace(RUNNING, state=state)}))


def shown(drive: str = "m1 m2", memory: str = "m1 m2", boot: str = "b") -> dict[str, str]:
    return {"boot": boot, "drive": drive, "memory": memory}


def about(marks: dict[str, str]) -> Iterator[str]:
    one = Known("sb-r", marks_sent={"m1", "m2", "m3"}, marks={"m1", "m2"}, boot="b")
    return checks.marks(one, one.marks, marks)


def test_marks_that_are_lost_doubled_or_invented_are_found() -> None:
    assert list(about(shown())) == []
    assert list(about(shown(drive="m1 m2 m3"))) == [], "one that was not acknowledged may be there"
    assert "lost the marks ['m2'] in its drive" in "\n".join(about(shown(drive="m1")))
    assert "lost the marks ['m2'] in its memory" in "\n".join(about(shown(memory="m1")))
    assert "has a mark twice in its drive" in "\n".join(about(shown(drive="m1 m2 m2")))
    assert "nobody sent: ['m9']" in "\n".join(about(shown(memory="m1 m2 m9")))
    assert "was booted again" in "\n".join(about(shown(boot="c")))


def test_a_change_leads_where_the_table_says() -> None:
    assert after(Change.PAUSE, State.RUNNING) is State.PAUSED
    assert after(Change.RESUME, State.PAUSED) is State.RUNNING
    assert after(Change.DESTROY, State.PAUSED) is State.STOPPED
    assert after(Change.PAUSE, State.STOPPED) is State.STOPPED
    assert reachable({State.RUNNING}, [Change.RESUME]) == {State.RUNNING}
    assert reachable({State.RUNNING}, [Change.RESUME, Change.PAUSE]) == {State.RUNNING, State.PAUSED}
    assert reachable({State.STOPPED}, list(Change)) == {State.STOPPED}


def test_an_answer_is_the_state_and_a_request_that_was_cut_off_may_have_happened() -> None:
    one = Known("sb-r")
    one.begin(Change.PAUSE)
    assert one.allowed() == {State.RUNNING, State.PAUSED}
    one.answered(Change.PAUSE, State.PAUSED)
    assert one.allowed() == {State.PAUSED}
    one.begin(Change.DESTROY)
    one.cut_off(Change.DESTROY)
    assert not one.is_certain
    assert one.allowed() == {State.PAUSED, State.STOPPED}
    one.seen(State.PAUSED)
    assert one.is_certain
    assert one.allowed() == {State.PAUSED}


def test_of_answers_that_overlap_nobody_knows_the_last_but_an_end_is_an_end() -> None:
    one = Known("sb-r", states=frozenset({State.PAUSED}))
    one.begin(Change.RESUME)
    one.begin(Change.PAUSE)
    one.answered(Change.PAUSE, State.PAUSED)
    one.answered(Change.RESUME, State.RUNNING)
    assert one.allowed() == {State.PAUSED, State.RUNNING}
    one.begin(Change.PAUSE)
    one.begin(Change.DESTROY)
    one.answered(Change.DESTROY, State.STOPPED)
    one.answered(Change.PAUSE, None)
    assert one.allowed() == {State.STOPPED}


def test_a_refusal_changes_nothing() -> None:
    one = Known("sb-r")
    one.begin(Change.RESUME)
    one.answered(Change.RESUME, None)
    assert one.allowed() == {State.RUNNING}

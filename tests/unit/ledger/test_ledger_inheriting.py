"""A lost host's ledger is taken in: everything once, under the same numbers, whoever is cut short on the way."""

from collections.abc import Iterator

import pytest

from contract.models import Hibernated
from contract.states import Event, State
from contract.task_states import TaskEvent, TaskState
from contract.workspaces import Workspace
from poold.ledger import audit, care, checkpoints, events, inheriting, leftovers, sandboxes, tasks, workspaces
from poold.ledger.driver import sqlite3
from poold.ledger.inheriting import Former
from poold.ledger.repeats import Repeat, find, merge
from tests.unit.ledger.rows import box, count, memory
from tests.unit.ledger.test_ledger_tasks import task

NOW = 5_000


def lost(old: sqlite3.Connection) -> Former:
    return Former("one", 3, audit.head(old))


def run(db: sqlite3.Connection, number: int) -> str:
    """A sandbox that runs."""
    sandbox = box(number)
    sandboxes.add(db, sandbox)
    sandboxes.move(db, sandbox.id, Event.CLAIM, now_ms=1, machine="vm-1")
    sandboxes.move(db, sandbox.id, Event.READY, now_ms=2)
    return sandbox.id


def take_all(db: sqlite3.Connection, old: sqlite3.Connection, most: int | None = None) -> list[int]:
    """As a takeover does it, cut short after `most` batches."""
    whom = lost(old)
    if not inheriting.begin(db, whom, now_ms=NOW):
        return []
    taken = []
    for at, (kind, ids) in enumerate(inheriting.batches(old)):
        if at == most:
            return taken
        taken.append(inheriting.take(db, old, whom, kind, ids, now_ms=NOW))
    inheriting.take_repeats(db, old, now_ms=NOW)
    inheriting.finish(db, whom, now_ms=NOW)
    return taken


@pytest.fixture
def old() -> Iterator[sqlite3.Connection]:
    """The ledger of a host with one sandbox of each kind and two tasks, one of them over."""
    with memory() as db:
        for number in (1, 2, 3, 4):
            run(db, number)
        sandboxes.move(db, box(2).id, Event.PAUSE, now_ms=3)
        sandboxes.move(db, box(3).id, Event.PAUSE, now_ms=3)
        sandboxes.move(db, box(3).id, Event.HIBERNATE, now_ms=4)
        sandboxes.move(db, box(4).id, Event.STOP, now_ms=3)
        audit.add(db, audit.Entry(at_ms=3, action="egress", sandbox=box(1).id, detail={"name": "example.com"}))
        tasks.add(db, task("tk-aaaaaaaaaaaaaaaa", prompt="p" * 3000), queue=10)
        tasks.move(db, "tk-aaaaaaaaaaaaaaaa", TaskEvent.PLAN, now_ms=2, sandbox=box(1).id)
        tasks.add(db, task("tk-bbbbbbbbbbbbbbbb"), queue=10)
        tasks.move(db, "tk-bbbbbbbbbbbbbbbb", TaskEvent.STOP, now_ms=2)
        merge(db, "ada", [Repeat("key", "asked", box(1).id, 3)], now_ms=3)
        yield db


def test_what_ran_or_was_on_a_disk_there_is_lost_and_says_why(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        for number in (1, 2):
            found = sandboxes.get(db, box(number).id)
            assert found.state is State.ERROR
            assert (found.reason or "").startswith("host_lost: host one is gone")
        assert care.check(db) == []  # also: no run of a lost sandbox is open


def test_a_sandbox_that_is_lost_names_what_was_saved_of_its_workspace(old: sqlite3.Connection) -> None:
    workspaces.put(old, box(1).id, Workspace("my-repl", saved_version=7))
    workspaces.put(old, box(2).id, Workspace("my-repl"))
    workspaces.sweep_later(old, "ada", "my-repl", due_ms=9)
    with memory() as db:
        take_all(db, old)
        inheriting.take_leftovers(db, old)
        lost_ones = [sandboxes.get(db, box(number).id) for number in (1, 2)]
        assert (lost_ones[0].reason or "").endswith("; its workspace my-repl was last saved as version 7")
        assert (lost_ones[1].reason or "").endswith("; its workspace my-repl was not saved by it")
        assert lost_ones[0].view()["workspace"]["saved_version"] == 7
        assert workspaces.due(db, now_ms=10) == [("ada", "my-repl")]


def test_what_is_in_the_store_and_what_is_over_is_as_it_was(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        for number in (3, 4):
            assert sandboxes.get(db, box(number).id) == sandboxes.get(old, box(number).id)


def test_a_task_is_as_it_was_with_all_that_belongs_to_it(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        for name in ("tk-aaaaaaaaaaaaaaaa", "tk-bbbbbbbbbbbbbbbb"):
            assert tasks.get(db, name) == tasks.get(old, name)
            assert tasks.prompt(db, name) == tasks.prompt(old, name)


def test_events_go_on_under_the_next_number_of_their_stream(old: sqlite3.Connection) -> None:
    with memory() as db:
        run(db, 9)  # this host has a history of its own
        take_all(db, old)
        before = events.after(old, "tk-aaaaaaaaaaaaaaaa", 0, 100)
        seq = events.append(db, "tk-aaaaaaaaaaaaaaaa", "task.continued", {}, at_ms=NOW)
        after = events.after(db, "tk-aaaaaaaaaaaaaaaa", 0, 100)
        assert seq == len(before) + 1
        assert [(each.seq, each.kind, each.data) for each in after[:-1]] == [
            (each.seq, each.kind, each.data) for each in before
        ]


def test_audit_rows_come_along_and_say_where_they_stood(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        moved = audit.listed(db, sandbox=box(1).id, action="egress", limit=10)
        (was,) = audit.listed(old, sandbox=box(1).id, action="egress", limit=10)
        assert [each.detail for each in moved] == [
            {"name": "example.com", "of": {"host": "one", "epoch": 3, "seq": was.seq}}
        ]
        assert audit.verify(db).ok


@pytest.mark.parametrize("most", range(6))
def test_a_takeover_that_was_cut_short_anywhere_is_done_again_and_takes_each_once(
    old: sqlite3.Connection, most: int
) -> None:
    with memory() as db:
        first = take_all(db, old, most)
        second = take_all(db, old)
        assert sum(first) + sum(second) == 6
        assert count(db) == 4
        assert count(db, "tasks") == 2
        assert care.check(db) == []
        row = db.execute("SELECT sandboxes, tasks, whole_ms FROM takeovers").fetchone()
        assert tuple(row) == (4, 2, NOW)
        assert take_all(db, old) == []  # all of it is here


def test_what_went_on_here_is_newer_than_what_the_lost_ledger_says(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old, 4)  # the living: three sandboxes and a task
        tasks.move(db, "tk-aaaaaaaaaaaaaaaa", TaskEvent.RUN, now_ms=NOW)
        take_all(db, old)
        assert tasks.get(db, "tk-aaaaaaaaaaaaaaaa").task.state is TaskState.RUNNING


def test_an_idempotency_key_gives_the_same_id_as_before(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        assert find(db, "ada", "key", "asked", now_ms=NOW) == box(1).id


def test_the_living_come_first_and_each_alone(old: sqlite3.Connection) -> None:
    order = list(inheriting.batches(old))
    assert [len(ids) for _, ids in order] == [1, 1, 1, 1, 1, 1]
    assert order[3] == ("task", ["tk-aaaaaaaaaaaaaaaa"])
    assert order[4:] == [("sandbox", [box(4).id]), ("task", ["tk-bbbbbbbbbbbbbbbb"])]


def test_a_sandbox_that_ended_under_a_living_task_comes_before_it(old: sqlite3.Connection) -> None:
    sandboxes.move(old, box(1).id, Event.FAIL, now_ms=4, reason="its machine ended")
    order = list(inheriting.batches(old))
    assert order.index(("sandbox", [box(1).id])) < order.index(("task", ["tk-aaaaaaaaaaaaaaaa"]))
    assert sorted(one for _, ids in order for one in ids) == sorted(
        [*(box(number).id for number in (1, 2, 3, 4)), "tk-aaaaaaaaaaaaaaaa", "tk-bbbbbbbbbbbbbbbb"]
    )


def test_where_the_lost_chain_ended_is_kept(old: sqlite3.Connection) -> None:
    with memory() as db:
        take_all(db, old)
        row = db.execute("SELECT audit_seq, audit_hash FROM takeovers").fetchone()
        assert audit.Head(*row) == audit.head(old)


def test_a_resume_of_files_alone_that_was_cut_short_there_is_hibernated_here(old: sqlite3.Connection) -> None:
    found = Hibernated(f"hibernated/{box(1).id}/1-00112233445566ff/manifest", "0" * 64, 1, 1, "files")
    sandboxes.move(old, box(1).id, Event.HIBERNATE, now_ms=3, hibernated=found)
    sandboxes.move(old, box(1).id, Event.RESUME, now_ms=4, machine="vm-2")
    with memory() as db:
        take_all(db, old)
        here = sandboxes.get(db, box(1).id)
        assert (here.state, here.hibernated) == (State.HIBERNATED, found)
        assert leftovers.listed(db) == []


OTHERS = f"hibernated/{box(9).id}/3-00112233445566ff/"


@pytest.mark.parametrize(
    "key",
    [
        f"{OTHERS}manifest",  # of another sandbox
        f"hibernated/{box(3).id}/manifest",  # all that this one ever had would go with it
        f"hibernated/{box(3).id}/3-00112233445566ff/../manifest",
        f"../hibernated/{box(3).id}/3-00112233445566ff/manifest",
        "leases/one/x",
        "ledger/one/3/manifest",
    ],
)
def test_a_sandbox_that_names_what_is_not_its_own_is_refused(old: sqlite3.Connection, key: str) -> None:
    told = f'{{"key": "{key}", "sha256": "{"0" * 64}", "bytes": 1, "at_ms": 1}}'
    old.execute("UPDATE sandboxes SET hibernated = ? WHERE id = ?", (told, box(3).id))
    with memory() as db:
        inheriting.begin(db, lost(old), now_ms=NOW)
        with pytest.raises(inheriting.BadRow, match="names what is not its own"):
            inheriting.take(db, old, lost(old), "sandbox", [box(3).id], now_ms=NOW)


@pytest.mark.parametrize("name", ["../../etc/passwd", "sb-1", "tk-AAAAAAAAAAAAAAAA", "tk-aaaaaaaaaaaaaaaa/x"])
def test_a_row_whose_id_is_none_is_refused(old: sqlite3.Connection, name: str) -> None:
    with memory() as db:
        inheriting.begin(db, lost(old), now_ms=NOW)
        for kind in ("task", "sandbox"):
            with pytest.raises(inheriting.BadRow, match="is no id"):
                inheriting.take(db, old, lost(old), kind, [name], now_ms=NOW)


def test_a_checkpoint_that_names_what_is_not_its_own_is_refused(old: sqlite3.Connection) -> None:
    name = "tk-aaaaaaaaaaaaaaaa"
    new = checkpoints.Checkpoint(1, None, 1, 0, 0, 0, None, {}, 1, 1, "../../../leases/one", 1)
    checkpoints.add(old, name, new)
    with memory() as db:
        inheriting.begin(db, lost(old), now_ms=NOW)
        with pytest.raises(inheriting.BadRow, match="checkpoint"):
            inheriting.take(db, old, lost(old), "task", [name], now_ms=NOW)


def test_a_task_whose_row_makes_no_sense_is_refused(old: sqlite3.Connection) -> None:
    name = "tk-aaaaaaaaaaaaaaaa"
    old.execute("PRAGMA ignore_check_constraints = ON")
    old.execute("UPDATE tasks SET state = 'nonsense' WHERE id = ?", (name,))
    with memory() as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        inheriting.begin(db, lost(old), now_ms=NOW)
        with pytest.raises(ValueError, match="nonsense"):
            inheriting.take(db, old, lost(old), "task", [name], now_ms=NOW)


def test_only_leftovers_that_can_be_the_lost_hosts_own_are_taken_in(old: sqlite3.Connection) -> None:
    mine = f"hibernated/{box(2).id}/1-00112233445566ff/"
    golden = f"goldens/{'a' * 64}/00112233445566ff/"
    key = f"hibernated/{box(3).id}/2-00112233445566ff/manifest"
    told = f'{{"key": "{key}", "sha256": "{"0" * 64}", "bytes": 1, "at_ms": 1}}'
    refused = [
        *("", "leases/", "ledger/one/3/", "hibernated/", f"hibernated/{box(2).id}/", OTHERS, "escrow/", "goldens/"),
        key.removesuffix("manifest"),  # somebody needs it
    ]
    for prefix in (mine, golden, *refused):
        leftovers.add(old, prefix, now_ms=1)
    old.execute("UPDATE sandboxes SET hibernated = ? WHERE id = ?", (told, box(3).id))
    with memory() as db:
        take_all(db, old)
        left = inheriting.take_leftovers(db, old)
        assert sorted(leftovers.listed(db)) == sorted([mine, golden])
        assert sorted(left) == sorted(refused)


def test_a_takeover_that_lacks_something_is_not_whole_and_goes_on_with_whoever_takes_this_host_over(
    old: sqlite3.Connection,
) -> None:
    with memory() as db, memory() as heir:
        whom = lost(old)
        inheriting.begin(db, whom, now_ms=NOW)
        inheriting.lack(db, whom, {box(1).id: "nonsense"}, now_ms=NOW)
        assert inheriting.unfinished(db) == [("one", 3)]
        assert audit.listed(db, action="takeover.lacks", limit=5)[0].detail["missing"] == {box(1).id: "nonsense"}
        inheriting.lack(db, whom, {box(1).id: "nonsense"}, now_ms=NOW)  # told once
        assert len(audit.listed(db, action="takeover.lacks", limit=5)) == 1
        inheriting.take_unfinished(heir, db)
        assert inheriting.unfinished(heir) == [("one", 3)]
        assert inheriting.in_store(heir) == {"ledger/one/3/"}  # what no sweep removes
        assert inheriting.begin(heir, whom, now_ms=NOW)
        inheriting.finish(heir, whom, now_ms=NOW)
        assert inheriting.unfinished(heir) == []

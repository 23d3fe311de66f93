"""Tasks in the ledger: state, event and audit row together; what was decided outlives whoever decided it."""

from pathlib import Path

import pytest

from contract.errors import NotFound, WrongState
from contract.network import Mode, Network
from contract.task_states import TaskEvent, TaskState
from contract.tasks import Approvals, Caps, Loop, Task, Waiting
from poold.errors import NoRoomToQueue
from poold.ledger import Ledger, artifacts, audit, care, events, questions, retention, steps, tasks, webhooks
from poold.ledger.driver import sqlite3
from poold.ledger.tasks import Row
from tests.unit.ledger.rows import count, memory

ONE = "tk-aaaaaaaaaaaaaaaa"
DAY_MS = 24 * 3600 * 1000


def task(name: str = ONE, created_ms: int = 1000, owner: str = "ada", **more: object) -> Row:
    usual: dict[str, object] = {
        "id": name,
        "state": TaskState.QUEUED,
        "owner": owner,
        "agent": "mock",
        "model": None,
        "prompt": "Do it.",
        "repo": "https://git.example.com/a.git",
        "ref": None,
        "depth": 0,
        "branch": "b",
        "push": False,
        "image": "host",
        "vcpus": 1,
        "memory_mb": 256,
        "disk_mb": 1024,
        "network": Network(Mode.OPEN),
        "secrets": ("A",),
        "caps": Caps(usd=1.5),
        "loop": Loop(),
        "approvals": Approvals(tools=("Bash",)),
        "keep_minutes": 0,
        "webhook": "https://hook.example.com/",
        "metadata": {"a": "b"},
        "retry_of": None,
        "created_ms": created_ms,
    }
    return Row(Task(**{**usual, **more}), key_network=Network(Mode.REGISTRIES))  # type: ignore[arg-type]


def added(db: sqlite3.Connection, row: Row | None = None) -> Row:
    row = row or task()
    tasks.add(db, row, queue=1000)
    return row


def test_a_task_is_found_as_it_was_written() -> None:
    with memory() as db:
        row = added(db, task(prompt="x" * 5000))
        found = tasks.get(db, ONE)
        assert (found.task.prompt, found.task.prompt_chars) == ("x" * 2000, 5000)
        assert tasks.prompt(db, ONE) == "x" * 5000
        shown = {**row.task.view(), "prompt_chars": 5000, "prompt": "x" * 2000}
        assert found.task.view() == shown
        assert found.key_network == Network(Mode.REGISTRIES)


def test_a_change_of_state_is_told_and_audited_with_it() -> None:
    with memory() as db:
        added(db)
        tasks.move(db, ONE, TaskEvent.PLAN, now_ms=2000, told={"sandbox": "sb-1"}, request="rq-1")
        tasks.move(db, ONE, TaskEvent.RUN, now_ms=3000, phase="run")
        after = tasks.move(db, ONE, TaskEvent.COMPLETE, now_ms=4000, result={"summary": "x"})
        assert (after.task.state, after.task.started_ms, after.task.ended_ms) == ("completed", 2000, 4000)
        told = [(event.seq, event.kind, event.by) for event in events.after(db, ONE, 0, 10)]
        kinds = ["task.queued", "task.planning", "task.running", "task.completed"]
        assert told == [(number, kind, "host") for number, kind in enumerate(kinds, 1)]
        rows = audit.listed(db, sandbox=ONE, limit=10)
        assert [row.action for row in rows] == ["task.create", "task.plan", "task.run", "task.complete"]
        assert rows[1].request == "rq-1"
        assert audit.verify(db).ok


def test_what_is_not_allowed_changes_nothing() -> None:
    with memory() as db:
        added(db)
        with pytest.raises(WrongState):
            tasks.move(db, ONE, TaskEvent.PAUSE, now_ms=2000)
        assert (tasks.get(db, ONE).task.state, count(db, "events"), count(db, "audit")) == ("queued", 1, 1)
        with pytest.raises(NotFound):
            tasks.get(db, "tk-bbbbbbbbbbbbbbbb")


def test_the_first_word_on_how_it_ends_counts_and_a_stop_always_does() -> None:
    with memory() as db:
        added(db)
        assert tasks.end(db, ONE, {"event": "fail", "reason": {"code": "cap"}})
        assert not tasks.end(db, ONE, {"event": "complete", "reason": None})
        assert tasks.end(db, ONE, {"event": "stop", "reason": {"code": "stopped"}})
        assert not tasks.end(db, ONE, {"event": "stop", "reason": {"code": "again"}})
        row = tasks.get(db, ONE)
        assert (row.ending, row.task.phase) == ({"event": "stop", "reason": {"code": "stopped"}}, "finish")
        tasks.move(db, ONE, TaskEvent.STOP, now_ms=2)
        assert not tasks.end(db, ONE, {"event": "stop", "reason": None})


def test_one_that_is_to_end_has_no_next_phase() -> None:
    """A stop that comes as a phase ends: what that phase writes last must not take the task back."""
    with memory() as db:
        added(db)
        assert tasks.change(db, ONE, phase="clone").task.phase == "clone"
        tasks.end(db, ONE, {"event": "stop", "reason": None})
        row = tasks.change(db, ONE, phase="run", wall_ms=7)
        assert (row.task.phase, row.task.usage.wall_ms) == ("finish", 7)
        assert tasks.change(db, ONE, phase="claim", ending=None).task.phase == "claim"  # it goes on after all
        tasks.end(db, ONE, {"event": "stop", "reason": None})
        assert tasks.change(db, ONE, phase=tasks.DONE).task.phase == tasks.DONE


def test_of_a_task_that_has_ended_nothing_is_told() -> None:
    with memory() as db:
        added(db)
        tasks.move(db, ONE, TaskEvent.STOP, now_ms=2)
        tasks.tell(db, ONE, "agent.log", {}, at_ms=3, guest_seq=1)
        assert [event.kind for event in events.after(db, ONE, 0, 10)][-1] == "task.stopped"


def test_no_more_wait_for_room_than_may() -> None:
    with memory() as db:
        added(db)
        with pytest.raises(NoRoomToQueue):
            tasks.add(db, task("tk-bbbbbbbbbbbbbbbb"), queue=1)
        assert (count(db, "tasks"), count(db, "prompts")) == (1, 1)


def test_tasks_are_listed_newest_first_and_page_by_page() -> None:
    with memory() as db:
        for number in range(5):
            added(db, task(f"tk-{'abcde'[number] * 16}", created_ms=1000 + number, owner="ada" if number else "bob"))
        tasks.move(db, "tk-cccccccccccccccc", TaskEvent.STOP, now_ms=9)
        first = tasks.listed(db, owner="ada", limit=2)
        assert [each.id[3] for each in first] == ["e", "d"]
        rest = tasks.listed(db, owner="ada", before=(first[-1].created_ms, first[-1].id), limit=9)
        assert [each.id[3] for each in rest] == ["c", "b"]
        assert [each.id[3] for each in tasks.listed(db, states=[TaskState.STOPPED], limit=9)] == ["c"]
        assert tasks.listed(db, agent="claude", limit=9) == []
        assert [row.id[3] for row in tasks.under_way(db)] == ["a", "b", "c", "d", "e"]
        assert [each.id[3] for each in tasks.living(db, "ada")] == ["b", "d", "e"]


def test_a_question_is_asked_once_and_answered_once() -> None:
    with memory() as db:
        added(db)
        asked = Waiting("ap-1", "tool", "may it?", "Bash", {"command": "ls"}, 5)
        assert questions.ask(db, ONE, asked)
        assert not questions.ask(db, ONE, asked)
        assert tasks.get(db, ONE).task.waiting == (asked,)
        questions.answer(db, ONE, "ap-1", "approve", "", now_ms=6)
        questions.answer(db, ONE, "ap-1", "reject", "", now_ms=7)
        assert tasks.get(db, ONE).task.waiting == ()
        assert [(each.id, each.answer) for each in questions.undelivered(db, ONE)] == [("ap-1", "approve")]
        questions.done(db, ONE, "ap-1")
        assert questions.undelivered(db, ONE) == []
        assert not questions.withdraw(db, ONE, "ap-1", now_ms=8)


def test_a_task_asks_only_so_much_at_a_time() -> None:
    with memory() as db:
        added(db)
        asked = [questions.ask(db, ONE, Waiting(f"ap-{number}", "tool", "", None, None, 1)) for number in range(100)]
        assert sum(asked) == questions.MAX_OPEN


def test_no_noise_of_a_guest_keeps_the_host_from_asking() -> None:
    with memory() as db:
        added(db)
        for number in range(100):
            questions.ask(db, ONE, Waiting(f"ap-{number}", "tool", "", None, None, 1))
        for name, kind in (("sp-1", "spend"), ("hp-1", "push")):
            assert questions.ask(db, ONE, Waiting(name, kind, "", None, None, 2))


def test_what_is_said_unasked_is_delivered_in_its_order() -> None:
    with memory() as db:
        added(db)
        assert [questions.instruct(db, ONE, text, now_ms=5) for text in "ab"] == ["in-1", "in-2"]
        assert [(each.id, each.answer_text) for each in questions.undelivered(db, ONE)] == [
            ("in-1", "a"),
            ("in-2", "b"),
        ]
        assert tasks.get(db, ONE).task.waiting == ()


def test_steps_are_written_as_they_come_and_their_costs_add_up() -> None:
    with memory() as db:
        added(db)
        steps.begin(db, ONE, steps.Begun(1, "hm", "Bash", {"command": "ls"}, 5))
        steps.spend(db, ONE, steps.Spent(1, 10, 2, None))
        steps.spend(db, ONE, steps.Spent(1, 1, 1, 0.5))
        steps.end(db, ONE, steps.Ended(1, "out", 3, "/a/file", True, 6))
        (step,) = steps.after(db, ONE, 0, 10)
        assert (step["input_tokens"], step["output_tokens"], step["usd"], step["is_error"]) == (11, 3, 0.5, True)
        assert steps.to_fetch(db, ONE) == [(1, "/a/file")]
        steps.fetched(db, ONE, 1, "step-1.txt")
        assert (steps.to_fetch(db, ONE), steps.after(db, ONE, 0, 1)[0]["output_artifact"]) == ([], "step-1.txt")
        assert steps.after(db, ONE, 1, 10) == []


def test_who_is_to_be_told_is_due_until_they_were_or_nobody_will() -> None:
    with memory() as db:
        ids = [f"tk-{letter * 16}" for letter in "abc"]
        for name in ids:
            row = added(db, task(name, owner="bob" if name == ids[2] else "ada"))
            webhooks.add(db, row.task, now_ms=10)
        assert [each.task for each in webhooks.due(db, 10, per_owner=1)] == [ids[0], ids[2]]
        assert webhooks.due(db, 9, per_owner=9) == []
        webhooks.done(db, f"wh-{'a' * 16}")
        webhooks.failed(db, f"wh-{'b' * 16}", "nobody", 50)
        webhooks.failed(db, f"wh-{'c' * 16}", "nobody", None)
        assert webhooks.waiting(db) == {ids[1]}
        assert [(each.task, each.tries) for each in webhooks.due(db, 50, per_owner=9)] == [(ids[1], 1)]


def test_old_tasks_go_with_all_that_is_theirs_and_their_files_are_noted() -> None:
    with memory() as db:
        for name in (ONE, "tk-bbbbbbbbbbbbbbbb"):
            added(db, task(name))
            steps.begin(db, name, steps.Begun(1, None, "Bash", None, 5))
            questions.instruct(db, name, "x", now_ms=5)
            artifacts.put(db, name, artifacts.Entry("final.patch", "patch", 1, "0" * 64, 5))
            tasks.move(db, name, TaskEvent.STOP, now_ms=5)
        tasks.change(db, ONE, phase=tasks.DONE)  # of the other one something is still to be done
        while not retention.sweep(db, retention.Keep(ended_days=1), now_ms=3 * DAY_MS).done:
            pass
        assert [row.id for row in tasks.under_way(db)] == ["tk-bbbbbbbbbbbbbbbb"]
        for table in ("tasks", "prompts", "steps", "questions", "artifacts"):
            assert count(db, table) == 1, table
        assert events.after(db, ONE, 0, 10) == []
        assert retention.forgotten_files(db) == [ONE]
        retention.removed_files(db, [ONE])
        assert retention.forgotten_files(db) == []
        assert care.check(db) == []


async def test_a_task_is_there_after_the_file_was_opened_again(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        await ledger.write(lambda db: tasks.add(db, task(), queue=9))
        await ledger.write(lambda db: tasks.end(db, ONE, {"event": "stop", "reason": None}))
    async with Ledger.open(tmp_path / "ledger.db") as ledger:
        (row,) = await ledger.read(tasks.under_way)
        assert row.ending == {"event": "stop", "reason": None}

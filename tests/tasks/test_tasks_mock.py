"""The life of a task, from a request to what it leaves behind, in a real microVM through a real gateway."""

import os
from typing import Any

import pytest

from tests.tasks.archive import opened
from tests.tasks.client import ENDS, TASKS, Caller, Task
from tests.tasks.stage import OTHER

PLAN = "Write down what is to be done.\nAnd do it."
WORK = """Work a little.
think this is easy
edit one.txt one
run cat one.txt
append one.txt two
commit Add one
say done with it
"""
# Each of these is told after the one before it.
ORDER = [
    "task.queued",
    "task.planning",
    "sandbox.claimed",
    "task.running",
    "agent.started",
    "agent.tool",
    "agent.ended",
    "task.archived",
    "task.completed",
]


@pytest.fixture(scope="module")
def worked(alice: Caller) -> Task:
    task = alice.task(WORK, metadata={"for": "a test"})
    task.ended()
    return task


def test_a_mock_task_plans_and_commits_and_its_archive_has_both(alice: Caller) -> None:
    task = alice.task(PLAN)
    view = task.ended()
    assert view["phase"] == "done"
    assert view["reason"] is None
    assert view["prompt"] == PLAN
    assert view["prompt_chars"] == len(PLAN)
    with opened(task) as archive:
        assert PLAN in archive.found("AGENT_TASK.md").read_text()
        assert archive.git("status", "--porcelain") == ""
        commits = archive.git("log", "--format=%H").splitlines()
    assert [each["hash"] for each in view["result"]["commits"]] == commits
    assert len(commits) == 1


def test_events_are_told_in_order_without_a_gap_and_end_with_the_end(worked: Task) -> None:
    events = worked.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["kind"] for event in events]
    firsts = [kinds.index(kind) for kind in ORDER]
    assert firsts == sorted(firsts), kinds
    assert kinds[-1] == "task.completed"
    assert [kind for kind in kinds if kind in ENDS] == ["task.completed"]


def test_a_stream_of_events_is_the_page_of_them_and_ends_with_the_task(worked: Task) -> None:
    events = worked.events()
    with worked.follow() as stream:
        assert list(stream) == events
    with worked.follow(resumed=5) as stream:
        assert list(stream) == events[5:]
    with worked.follow(after=len(events) - 1) as stream:
        assert list(stream) == events[-1:]


def test_every_tool_call_is_a_step_with_what_it_was_told_and_what_came_of_it(worked: Task) -> None:
    steps = worked.steps()
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    (ran,) = (step for step in steps if step["arguments"] == {"command": "cat one.txt"})
    assert ran["output"].strip() == "one"
    assert ran["output_bytes"] == len("one\n")
    assert not ran["is_error"]
    assert ran["started_ms"] <= ran["ended_ms"]
    assert worked.view["usage"]["steps"] == len(steps)
    assert any("this is easy" in (step["thought"] or "") for step in steps)


def test_commits_are_by_the_author_that_the_operator_names(worked: Task) -> None:
    with opened(worked) as archive:
        assert archive.found("one.txt").read_text().split() == ["one", "two"]
        assert "Add one" in archive.subjects()
        for who in archive.git("log", "--format=%an <%ae>|%cn <%ce>").splitlines():
            assert who == "Warren Agent <agent@example.com>|Warren Agent <agent@example.com>"


def test_the_final_diff_can_be_read(worked: Task) -> None:
    reply = worked.get("/diff")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert "+one" in reply.body.decode().splitlines()
    assert worked.view["result"]["diff"]["files"] == 2


def test_an_archive_can_be_fetched_in_pieces(worked: Task) -> None:
    whole = worked.get("/archive").body
    name = next(each["name"] for each in worked.get("/artifacts").json["artifacts"] if each["bytes"] == len(whole))
    piece = worked.get(f"/artifacts/{name}", Range="bytes=10-29")
    assert (piece.status, piece.body) == (206, whole[10:30])


def test_tasks_are_listed_newest_first_page_by_page(alice: Caller, worked: Task) -> None:
    newer = alice.task(PLAN, metadata={"for": "a list"})
    newer.ended()
    ids = [task["id"] for task in alice.tasks(limit=1000)]
    assert ids.index(newer.id) < ids.index(worked.id)
    first = alice.call("GET", f"{TASKS}?limit=1").json
    assert [task["id"] for task in first["tasks"]] == ids[:1]
    second = alice.call("GET", f"{TASKS}?limit=1&before={first['next']}").json
    assert [task["id"] for task in second["tasks"]] == ids[1:2]
    assert worked.id in [task["id"] for task in alice.tasks(state="completed", agent="mock", limit=1000)]
    assert worked.id not in [task["id"] for task in alice.tasks(state="failed", limit=1000)]


def test_a_task_is_its_owners_and_nobody_elses(worked: Task, mallory: Caller) -> None:
    for method, what in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/steps"),
        ("GET", "/diff"),
        ("GET", "/artifacts"),
        ("GET", "/archive"),
        ("GET", "/request"),
        ("POST", "/stop"),
        ("POST", "/pause"),
        ("POST", "/retry"),
    ):
        reply = mallory.call(method, worked.path + what, b"{}" if method == "POST" else None)
        assert reply.status == 404, (method, what, reply)
    assert worked.id not in [task["id"] for task in mallory.tasks(limit=1000)]
    assert mallory.ask_task(prompt="Steal.", retry_of=worked.id).status in (400, 404), OTHER


def test_the_same_request_with_the_same_key_is_the_same_task(alice: Caller) -> None:
    headers = {"Idempotency-Key": os.urandom(8).hex()}
    first = alice.ask_task(headers, prompt=PLAN)
    again = alice.ask_task(headers, prompt=PLAN)
    assert (first.status, again.status) == (202, 202)
    assert first.json["id"] == again.json["id"]
    Task(alice, first.json["id"]).ended()


def test_a_retry_is_a_new_task_with_the_same_request(alice: Caller) -> None:
    failed = alice.task("edit a.txt a\nfail no luck today", env={"FLAVOUR": "sour"})
    view = failed.ended("failed")
    assert view["reason"]["code"] == "agent"
    assert "no luck today" in view["reason"]["message"]
    retried = Task(alice, failed.done("retry", prompt="run echo $FLAVOUR > flavour.txt")["id"])
    again = retried.ended()
    assert again["retry_of"] == failed.id
    with opened(retried) as archive:
        assert archive.found("flavour.txt").read_text() == "sour\n"


def test_an_agent_that_ends_without_a_result_has_failed(alice: Caller) -> None:
    task = alice.task("say something\ncrash")
    assert task.ended("failed")["reason"]["code"] == "agent"
    assert task.of("agent.ended")[-1]["outcome"] == "failure"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * ((1 << 20) + 1)}, "prompt"),
        ({"prompt": PLAN, "agent": "nobody"}, "agent"),
        ({"prompt": PLAN, "caps": {"steps": 0}}, "caps.steps"),
        ({"prompt": PLAN, "caps": {"usd": -1}}, "caps.usd"),
        ({"prompt": PLAN, "loop": {"same_diff": -1}}, "loop.same_diff"),
        ({"prompt": PLAN, "agent": "codex", "approvals": {"tools": ["Bash"]}}, "approvals.tools"),
        ({"prompt": PLAN, "repo": "file:///etc"}, "repo"),
        ({"prompt": PLAN, "repo": "ssh://git@git.example.com/a"}, "repo"),
        ({"prompt": PLAN, "push": True}, "push"),
        ({"prompt": PLAN, "secrets": ["NOT_THERE"]}, "secrets"),
        ({"prompt": PLAN, "surprise": 1}, "surprise"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_by_the_name_of_its_field(
    alice: Caller, fields: dict[str, Any], named: str
) -> None:
    reply = alice.ask_task(**fields)
    assert reply.status == 400, reply
    assert named in reply.json["error"]["message"]

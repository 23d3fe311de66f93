"""A person at the wheel: stop, pause, resume, and every kind of question and answer."""

from typing import Any

import pytest

from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task
from tests.tasks.stage import Stage

LONG = "edit begun.txt begun\nsleep 600\nedit late.txt late"
ASK = "edit begun.txt begun\nask Which colour?\nedit late.txt late"
COUNT = "\n".join(f"append count.txt {number}" for number in range(10))
DEPLOY = {"prompt": "tool Deploy to production\nedit late.txt late", "approvals": {"tools": ["Deploy"]}}
REMOVE = {
    "prompt": "run mkdir target; touch target/kept.txt\nrun rm -rf target\nedit late.txt late",
    "approvals": {"commands": ["rm -rf *"]},
}
# All of them begin together; each test has its own.
ASKED: dict[str, dict[str, Any]] = {
    "stop": {"prompt": LONG},
    "pause": {"prompt": f"{COUNT}\nsleep 3\n{COUNT}"},
    "answer": {"prompt": ASK},
    "long wait": {"prompt": ASK, "approvals": {"pause_after_sec": 1}},
    "tool approve": DEPLOY,
    "tool reject": DEPLOY,
    "command approve": REMOVE,
    "command reject": REMOVE,
    "spend": {"prompt": "tokens 100 10 0.06\nrun true\n" * 20, "approvals": {"spend_usd": 0.1}},
    "host": {
        "prompt": "run curl -sS -m 200 https://web.example.com/ -o page.txt\nrun cat page.txt",
        "approvals": {"hosts": True},
    },
    "instruct": {"prompt": ASK},
    "nothing": {"prompt": LONG},
    "destroyed": {"prompt": LONG},
    "killed": {"prompt": "run echo $PPID > before.txt\nask Go on?\nrun echo $PPID > after.txt"},
}
Tasks = dict[str, Task]


@pytest.fixture(scope="module")
def tasks(alice: Caller) -> Tasks:
    return alice.begin(ASKED)


def begun(task: Task) -> Task:
    """The task, once its agent has done something."""
    task.event("agent.tool", phase="end")
    return task


def machine_of(task: Task) -> str:
    """The state of the sandbox that it works in."""
    reply = task.caller.call("GET", f"/v1/sandboxes/{task.view['sandbox']}")
    assert reply.status == 200, reply
    state: str = reply.json["state"]
    return state


def files(task: Task) -> set[str]:
    with opened(task) as archive:
        return {path.name for path in archive.root.rglob("*.txt")}


def test_a_task_that_is_paused_is_its_machine_on_disk_and_goes_on_where_it_was(tasks: Tasks) -> None:
    task = begun(tasks["pause"])
    task.done("pause")
    before = task.until(lambda view: view["state"] == "paused" and machine_of(task) == "paused")["usage"]
    assert task.view["usage"] == before  # nobody works
    task.done("resume")
    task.ended()
    kinds = task.kinds()
    assert kinds.index("task.paused") < kinds.index("task.resumed") < kinds.index("task.completed")
    with opened(task) as archive:
        assert archive.found("count.txt").read_text().split() == 2 * [str(number) for number in range(10)]


def test_a_task_that_is_stopped_keeps_what_it_has_done(alice: Caller, tasks: Tasks) -> None:
    task = begun(tasks["stop"])
    sandbox = task.view["sandbox"]
    assert task.done("stop")["id"] == task.id
    view = task.ended("stopped")
    assert view["reason"]["code"] == "stopped"
    assert files(task) == {"begun.txt"}
    assert task.of("agent.ended")[-1]["outcome"] == "stopped"
    assert alice.call("GET", f"/v1/sandboxes/{sandbox}").json["state"] == "stopped"
    assert task.do("pause").refusal == (409, "wrong_state")


def test_a_question_waits_for_its_answer(tasks: Tasks) -> None:
    task = tasks["answer"]
    asked = task.question("question")
    assert "Which colour?" in asked["text"]
    assert task.say("answer", "ap-999", "red").status == 409
    assert task.say("answer", asked["id"], "blue").status == 200
    task.ended()
    assert task.view["waiting"] == []
    with opened(task) as archive:
        assert "blue" in archive.found("ANSWER.md").read_text()
    assert task.say("answer", asked["id"], "green").status == 409
    (told,) = task.of("approval.answered")
    assert (told["id"], told["kind"]) == (asked["id"], "answer")


def test_a_question_that_waits_long_has_its_machine_saved_and_the_answer_brings_it_back(tasks: Tasks) -> None:
    task = tasks["long wait"]
    asked = task.question("question")
    task.until(lambda view: view["state"] == "paused" and machine_of(task) == "paused")
    assert task.say("answer", asked["id"], "blue").status == 200
    task.ended()
    with opened(task) as archive:
        assert "blue" in archive.found("ANSWER.md").read_text()
    kinds = task.kinds()
    assert kinds.index("sandbox.paused") < kinds.index("sandbox.resumed")


@pytest.mark.parametrize("kind", ["tool", "command"])
@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_what_needs_a_word_is_done_after_it_or_not_at_all(tasks: Tasks, kind: str, answer: str) -> None:
    task = tasks[f"{kind} {answer}"]
    asked = task.question(kind)
    task.until(lambda view: view["state"] == "paused")
    (told,) = task.of("approval.requested")
    assert told["id"] == asked["id"]
    assert task.say(answer, asked["id"]).status == 200
    task.ended()
    (step,) = (step for step in task.steps() if step["tool"] == asked["tool"] and "mkdir" not in str(step["arguments"]))
    assert step["is_error"] == (answer == "reject")
    kept = {"kept.txt"} if (kind, answer) == ("command", "reject") else set()
    assert files(task) == {"late.txt"} | kept


def test_spending_is_asked_about_each_time_that_so_much_more_is_spent(tasks: Tasks) -> None:
    task = tasks["spend"]
    first = task.question("spend")
    assert task.say("approve", first["id"]).status == 200
    second = task.until(lambda view: [each for each in view["waiting"] if each["id"] != first["id"]])["waiting"][-1]
    assert second["kind"] == "spend"
    assert task.say("reject", second["id"]).status == 200
    view = task.ended("stopped")
    assert view["reason"]["code"] == "stopped"
    assert 0.2 <= view["usage"]["usd"] < 0.6  # its machine was on disk before it had spent 1.2


def test_a_host_that_the_policy_refuses_is_asked_about(tasks: Tasks) -> None:
    task = tasks["host"]
    asked = task.question("host")
    assert "web.example.com" in asked["text"]
    assert task.say("approve", asked["id"]).status == 200
    task.ended()
    assert "WARREN-INTERNET" in task.steps()[-1]["output"]


def test_an_instruction_reaches_an_agent_that_works(tasks: Tasks) -> None:
    task = tasks["instruct"]
    asked = task.question("question")
    assert task.say("instruct", text="edit steered.txt by hand").status == 200
    assert task.say("answer", asked["id"], "blue").status == 200
    task.ended()
    assert files(task) == {"begun.txt", "late.txt", "steered.txt"}


def test_an_answer_to_nothing_is_refused(tasks: Tasks) -> None:
    task = begun(tasks["nothing"])
    assert task.say("approve", "ap-1").status == 409
    assert task.say("answer", "ap-1", "yes").status == 409
    assert task.do("input", kind="shout", text="hey").status == 400
    assert task.do("input", kind="instruct").status == 400
    task.done("stop")
    task.ended("stopped")


def test_a_task_whose_sandbox_is_destroyed_has_failed(alice: Caller, tasks: Tasks) -> None:
    task = begun(tasks["destroyed"])
    assert alice.call("DELETE", f"/v1/sandboxes/{task.view['sandbox']}").status == 200
    assert task.ended("failed")["reason"]["code"] == "machine"


def test_a_task_whose_sandbox_is_paused_is_paused_and_comes_back_with_it(alice: Caller) -> None:
    task = begun(alice.task("edit begun.txt begun\nsleep 5\nedit late.txt late"))
    assert alice.post(f"/v1/sandboxes/{task.view['sandbox']}/pause").status == 200
    task.until(lambda view: view["state"] == "paused")
    task.done("resume")
    task.ended()
    assert files(task) == {"begun.txt", "late.txt"}


def test_a_question_is_answerable_after_poold_was_killed_and_the_agent_goes_on_where_it_was(
    stage: Stage, tasks: Tasks
) -> None:
    task = tasks["killed"]
    asked = task.question("question")
    stage.kill_poold()
    stage.start_poold()
    assert task.view["waiting"] == [asked]
    assert task.say("answer", asked["id"], "yes, go on").status == 200
    task.ended()
    with opened(task) as archive:
        assert "yes, go on" in archive.found("ANSWER.md").read_text()
        assert archive.found("before.txt").read_text() == archive.found("after.txt").read_text()  # the same process
    assert task.kinds().count("agent.started") == 1

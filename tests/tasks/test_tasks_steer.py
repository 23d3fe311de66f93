"""A person at the wheel: stop, pause, resume, and every kind of question and answer."""

import pytest

from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task
from tests.tasks.stage import Stage

LONG = "edit begun.txt begun\nsleep 600\nedit late.txt late"
ASK = "edit begun.txt begun\nask Which colour?\nedit late.txt late"


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


def test_a_task_that_is_stopped_keeps_what_it_has_done(alice: Caller) -> None:
    task = begun(alice.task(LONG))
    sandbox = task.view["sandbox"]
    assert task.done("stop")["id"] == task.id
    view = task.ended("stopped")
    assert view["reason"]["code"] == "stopped"
    assert files(task) == {"begun.txt"}
    assert task.of("agent.ended")[-1]["outcome"] == "stopped"
    assert alice.call("GET", f"/v1/sandboxes/{sandbox}").json["state"] == "stopped"
    assert task.do("pause").refusal == (409, "wrong_state")
    assert task.done("stop")["state"] == "stopped"  # as it was


def test_a_task_that_is_paused_is_its_machine_on_disk_and_goes_on_where_it_was(alice: Caller) -> None:
    task = begun(alice.task("\n".join(f"append count.txt {number}\nsleep 0.2" for number in range(25))))
    task.done("pause")
    view = task.until(lambda view: view["state"] == "paused")
    assert machine_of(task) == "paused"
    before = view["usage"]
    assert task.view["usage"] == before  # nobody works
    task.done("resume")
    task.ended()
    kinds = task.kinds()
    assert kinds.index("task.paused") < kinds.index("task.resumed") < kinds.index("task.completed")
    with opened(task) as archive:
        assert archive.found("count.txt").read_text().split() == [str(number) for number in range(25)]


def test_a_question_waits_for_its_answer(alice: Caller) -> None:
    task = alice.task(ASK)
    asked = task.question("question")
    assert "Which colour?" in asked["text"]
    assert task.say("answer", "ap-999", "red").refusal[0] == 409
    assert task.say("answer", asked["id"], "blue").status == 200
    task.ended()
    assert task.view["waiting"] == []
    with opened(task) as archive:
        assert "blue" in archive.found("ANSWER.md").read_text()
    assert task.say("answer", asked["id"], "green").refusal[0] == 409
    (told,) = task.of("approval.answered")
    assert told["id"] == asked["id"]


def test_a_question_that_waits_long_has_its_machine_saved_and_the_answer_brings_it_back(alice: Caller) -> None:
    task = alice.task(ASK, approvals={"pause_after_sec": 1})
    asked = task.question("question")
    task.until(lambda view: view["state"] == "paused" and machine_of(task) == "paused")
    task.event("sandbox.paused")
    assert task.say("answer", asked["id"], "blue").status == 200
    task.ended()
    with opened(task) as archive:
        assert "blue" in archive.found("ANSWER.md").read_text()
    assert "sandbox.resumed" in task.kinds()


@pytest.mark.parametrize(
    ("prompt", "approvals", "kind"),
    [
        ("tool Deploy to production\nedit late.txt late", {"tools": ["Deploy"]}, "tool"),
        ("run rm -rf target\nedit late.txt late", {"commands": ["rm -rf *"]}, "command"),
    ],
)
@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_what_needs_a_word_is_done_after_it_or_not_at_all(
    alice: Caller, prompt: str, approvals: dict[str, list[str]], kind: str, answer: str
) -> None:
    task = alice.task(f"run mkdir -p target && touch target/kept.txt\n{prompt}", approvals=approvals)
    asked = task.question(kind)
    assert task.view["state"] == "paused"
    (told,) = task.of("approval.requested")
    assert told["id"] == asked["id"]
    assert task.say(answer, asked["id"]).status == 200
    task.ended()
    step = task.steps()[-2]
    assert step["is_error"] == (answer == "reject")
    if kind == "command":
        assert files(task) == ({"late.txt"} if answer == "approve" else {"late.txt", "kept.txt"})


def test_spending_is_asked_about_each_time_that_so_much_more_is_spent(alice: Caller) -> None:
    prompt = "\n".join(f"tokens 100 10 0.06\nedit step.txt {number}" for number in range(5))
    task = alice.task(prompt, approvals={"spend_usd": 0.1})
    first = task.question("spend")
    assert task.say("approve", first["id"]).status == 200
    second = task.until(lambda view: [each for each in view["waiting"] if each["id"] != first["id"]])["waiting"][-1]
    assert second["kind"] == "spend"
    assert task.say("reject", second["id"]).status == 200
    view = task.ended("failed")
    assert (view["reason"]["code"], view["reason"]["cap"]) == ("cap", "spend_usd")
    assert 0.2 <= view["usage"]["usd"] <= 0.31


def test_a_host_that_the_policy_refuses_is_asked_about(alice: Caller) -> None:
    fetch = "run curl -sS -m 100 https://web.example.com/ -o page.txt"
    task = alice.task(f"{fetch}\nrun cat page.txt", approvals={"hosts": True})
    asked = task.question("host")
    assert "web.example.com" in asked["text"]
    assert task.say("approve", asked["id"]).status == 200
    task.ended()
    assert "WARREN-INTERNET" in task.steps()[-1]["output"]


def test_an_instruction_reaches_an_agent_that_works(alice: Caller) -> None:
    task = begun(alice.task("\n".join(f"append count.txt {number}\nsleep 0.2" for number in range(30))))
    assert task.say("instruct", text="edit steered.txt by hand").status == 200
    task.ended()
    assert "steered.txt" in files(task)


def test_an_answer_to_nothing_is_refused(alice: Caller) -> None:
    task = begun(alice.task(LONG))
    try:
        assert task.say("approve", "ap-1").refusal[0] == 409
        assert task.say("answer", "ap-1", "yes").refusal[0] == 409
        assert task.do("input", kind="shout", text="hey").status == 400
        assert task.do("input", kind="instruct").status == 400
    finally:
        task.done("stop")
        task.ended("stopped")


def test_a_question_is_answerable_after_poold_was_killed_and_the_agent_goes_on_where_it_was(
    stage: Stage, alice: Caller
) -> None:
    task = alice.task("run echo $PPID > before.txt\nask Go on?\nrun echo $PPID > after.txt")
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


def test_a_task_whose_sandbox_is_destroyed_has_failed(alice: Caller) -> None:
    task = begun(alice.task(LONG))
    assert alice.call("DELETE", f"/v1/sandboxes/{task.view['sandbox']}").status == 200
    assert task.ended("failed")["reason"]["code"] == "machine"


def test_a_task_whose_sandbox_is_paused_is_paused_and_comes_back_with_it(alice: Caller) -> None:
    task = begun(alice.task("edit begun.txt begun\nsleep 4\nedit late.txt late"))
    sandbox = task.view["sandbox"]
    assert alice.post(f"/v1/sandboxes/{sandbox}/pause").status == 200
    task.until(lambda view: view["state"] == "paused")
    task.done("resume")
    task.ended()
    assert files(task) == {"begun.txt", "late.txt"}

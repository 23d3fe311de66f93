"""Tasks in the Python client, for threads and for asyncio: what is sent, what is read, when it is sent again."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.sdk_replies import ID, KEY, ROW, sse
from tests.sdk.sdk_stage import Stage, open_stage, refusal, reply, stream
from tests.sdk.sdk_tasks import AT_MS, DIFF, TASK, Stand, open_stand
from warren import AsyncWarren, Network, Retries, TaskFailed, Unreachable, Warren, WrongState, aio_tasks, tasks
from warren.calls import Reply
from warren.errors import Corrupted, ProtocolError
from warren.flows import TASK_EVENTS, Following
from warren.task_calls import artifact, browse, create
from warren.task_models import TaskInfo, read_task, read_view
from warren.tasks import Looks

ROW_OF_A_TASK = {"id": TASK, "state": "running", "agent": "mock", "created_ms": AT_MS}
QUICK = Retries(attempts=5, first_s=0.01, longest_s=0.02)


def happens(stand: Stand) -> None:
    stand.tell("task.queued")
    stand.tell("task.running")
    stand.tell("agent.message", {"text": "hello"}, by="guest")
    stand.tell("task.completed", by="guest")  # who believes a guest ends here
    stand.tell("agent.ended", {"outcome": "success"}, by="guest")
    stand.tell("task.completed")
    stand.tell("sandbox.lost")  # behind the end: nobody waits for it


@pytest.fixture
def stand() -> Iterator[Stand]:
    with open_stand(happens) as stand:
        yield stand


@pytest.fixture
def warren(stand: Stand) -> Iterator[Warren]:
    with Warren(stand.url, KEY, retries=QUICK) as warren:
        yield warren


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


def event(seq: int, kind: str = "agent.log", by: str = "host") -> bytes:
    return sse(kind, {"seq": seq, "kind": kind, "at_ms": 1, "by": by, "data": {}}, seq)


# What is asked for


def test_a_task_is_asked_for_with_what_was_said_and_nothing_else(stand: Stand, warren: Warren) -> None:
    task = warren.tasks.create(
        "mend it", agent="mock", repo="https://e.com/r.git", caps={"usd": 1.5}, network=Network("list")
    )
    assert (task.id, task.state, task.info.usage.tokens) == (TASK, "queued", 12_345)
    network = {"policy": "list", "allow": [], "allow_addresses": [], "hold_sec": 0, "limits": {}}
    asked = {"prompt": "mend it", "agent": "mock", "repo": "https://e.com/r.git", "caps": {"usd": 1.5}}
    assert stand.asked[0] == ("POST", "/api/v1/tasks", {**asked, "network": network})
    task.retry(prompt="again")
    assert stand.asked[-1] == ("POST", f"/api/v1/tasks/{TASK}/retry", {"prompt": "again"})
    assert len(set(stand.keys)) == 2


def test_a_create_that_got_no_answer_is_sent_again_with_the_same_key(stage: Stage) -> None:
    stage.play(refusal(503, "draining"), b"", reply(202, ROW_OF_A_TASK))
    with Warren(stage.url, KEY, retries=QUICK) as warren:
        assert warren.tasks.create("x", agent="mock").id == TASK
    keys = [asked.headers["idempotency-key"] for asked in stage.asked]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert create("x", "mock", {}, "mine").headers == {"Idempotency-Key": "mine"}


@pytest.mark.parametrize(("act", "times"), [("stop", 3), ("approve", 3), ("pause", 1), ("resume", 1), ("instruct", 1)])
def test_only_what_does_no_harm_twice_is_sent_twice(stage: Stage, act: str, times: int) -> None:
    words = {"approve": ["ap-1"], "instruct": ["do more"]}.get(act, [])
    with Warren(stage.url, KEY, retries=Retries(attempts=3, first_s=0.01)) as warren:
        task = tasks.Task(warren._line, read_task(ROW_OF_A_TASK))
        stage.play(refusal(503, "host_unreachable"))
        with pytest.raises(Exception, match="host_unreachable"):
            getattr(task, act)(*words)
    assert len(stage.asked) == times


def test_what_a_person_says_is_sent_with_the_question(stand: Stand, warren: Warren) -> None:
    task = warren.tasks.get(TASK)
    task.approve("ap-1")
    task.reject("ap-2", "not so")
    task.answer("ap-3", "yes")
    task.instruct("more tests")
    assert [body for _, path, body in stand.asked if path.endswith("/input")] == [
        {"kind": "approve", "id": "ap-1", "text": ""},
        {"kind": "reject", "id": "ap-2", "text": "not so"},
        {"kind": "answer", "id": "ap-3", "text": "yes"},
        {"kind": "instruct", "text": "more tests"},
    ]


def test_what_nobody_asks_is_refused_as_a_wrong_state(stage: Stage) -> None:
    stage.play(refusal(409, "not_waiting"))
    with Warren(stage.url, KEY) as warren, pytest.raises(WrongState) as refused:
        tasks.Task(warren._line, read_task(ROW_OF_A_TASK)).approve("ap-9")
    assert refused.value.code == "not_waiting"


# Events


def test_events_are_told_once_over_breaks_until_the_hosts_last_one(stand: Stand, warren: Warren) -> None:
    stand.breaks = [1, 3]
    task = warren.tasks.create("x", agent="mock")
    seen = [(event.seq, event.kind, event.by) for event in task.events()]
    assert [number for number, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[3] == (4, "task.completed", "guest")
    assert seen[5] == (6, "task.completed", "host")
    assert [event.seq for event in task.events(after=4, follow=False)] == [5, 6]


def test_a_following_ends_with_the_last_event_and_not_with_a_guests_word_for_it() -> None:
    following = Following(TASK_EVENTS, TASK, 0, Retries())
    assert [each.seq for each in following.feed(event(1) + event(2, "task.failed", "guest"))] == [1, 2]
    assert not following.is_over
    assert [each.seq for each in following.feed(event(3, "task.failed") + event(4))] == [3]
    assert following.is_over


def test_events_of_a_task_that_goes_on_are_asked_for_again_and_then_given_up(stage: Stage) -> None:
    def gateway(asked: Any) -> bytes:
        return stream(is_whole=True) if "/events" in asked.target else reply(200, ROW_OF_A_TASK)

    stage.play(gateway)
    with Warren(stage.url, KEY, retries=Retries(attempts=3, first_s=0.01)) as warren, pytest.raises(Unreachable):
        list(tasks.Task(warren._line, read_task(ROW_OF_A_TASK)).events())
    assert sum("/events" in asked.target for asked in stage.asked) == 3


# Waiting


def test_who_waits_gets_the_end(stand: Stand, warren: Warren) -> None:
    info = warren.tasks.create("x", agent="mock").wait(30, check=True)
    assert (info.state, info.ok, info.is_over) == ("completed", True, True)
    assert info.result is not None
    stand.state, stand.row = "failed", {"reason": {"code": "cap", "message": "it may have 3 steps"}}
    with pytest.raises(TaskFailed, match=f"{TASK} is failed: it may have 3 steps") as failed:
        warren.tasks.get(TASK).wait(check=True)
    assert failed.value.info.reason is not None


def test_nobody_waits_for_longer_than_they_want() -> None:
    now = [0.0]
    looks, info = Looks(1.0, clock=lambda: now[0]), read_task(ROW_OF_A_TASK)
    waited = []
    with pytest.raises(TimeoutError, match=f"{TASK} is running after 1 s"):  # noqa: PT012 — it is raised at some point
        while True:
            waited.append(looks.wait_s(info))
            now[0] += waited[-1]
    assert sum(waited) == pytest.approx(1.0)
    assert waited[1] > waited[0]


# Files


def test_steps_artifacts_and_the_diff_are_as_they_were_told(stand: Stand, warren: Warren, tmp_path: Path) -> None:
    stand.files["log.txt"] = b"all of it"
    task = warren.tasks.get(TASK)
    assert [(step.number, step.tool) for step in task.steps()] == [(1, "Bash")]
    diff = task.diff()
    assert (diff.data, diff.is_truncated) == (DIFF, False)
    (found,) = task.artifacts()
    assert task.download(found, tmp_path / "log").bytes == 9
    assert (tmp_path / "log").read_bytes() == b"all of it"


def test_an_archive_that_is_not_what_the_host_said_is_not_kept(stand: Stand, warren: Warren, tmp_path: Path) -> None:
    stand.files["archive"], stand.state = b"good", "completed"
    for data, is_good in ((b"good", True), (b"bad", False)):
        sha256 = hashlib.sha256(b"good").hexdigest()
        stand.files["archive"] = data
        stand.row = {"result": {"archive": {"bytes": 4, "sha256": sha256, "files": 1}}}
        target = tmp_path / f"{is_good}.tar.zst"
        if is_good:
            assert warren.tasks.get(TASK).archive(target).sha256 == sha256
        else:
            with pytest.raises(Corrupted):
                warren.tasks.get(TASK).archive(target)
        assert [path.name for path in tmp_path.iterdir()] == ["True.tar.zst"]


def test_a_cut_diff_says_so() -> None:
    from warren.task_calls import diff

    assert diff(TASK).read(Reply(200, {"warren-truncated": "true"}, b"x")).is_truncated


def test_a_name_stays_one_part_of_the_path() -> None:
    assert artifact(TASK, "../x?y").path.endswith("/artifacts/..%2Fx%3Fy")


# What is read


def test_questions_are_read_however_many_there_are() -> None:
    question = {"id": "ap-1", "kind": "tool", "text": "t", "new": 1}
    for told, ids in ((None, []), (question, ["ap-1"]), ([question, {**question, "id": "ap-2"}], ["ap-1", "ap-2"])):
        assert [each.id for each in read_task({**ROW_OF_A_TASK, "waiting": told}).waiting] == ids
    with pytest.raises(ProtocolError):
        read_task({"id": TASK})


# The browser


def test_the_browser_of_a_sandbox_shows_a_page(stage: Stage) -> None:
    page = {
        "title": "T",
        "url": "http://x/",
        "text": "words",
        "status": 200,
        "console": ["e"],
        "screenshot": "iVBORw0K",
    }
    stage.play(reply(200, ROW), reply(200, page), reply(200, {**page, "value": 3}), reply(200, {}))
    with Warren(stage.url, KEY) as warren:
        browser = warren.get(ID).browser
        view = browser.open("http://x/", full_page=True)
        assert (view.title, view.console, view.screenshot) == ("T", ("e",), b"\x89PNG\r\n")
        assert browser.evaluate("1 + 2").value == 3
        browser.close()
    assert [asked.target for asked in stage.asked[1:]] == [
        f"/v1/sandboxes/{ID}/browser/{what}" for what in ("open", "evaluate", "close")
    ]
    assert json.loads(stage.asked[1].body) == {"url": "http://x/", "full_page": True}
    assert not browse(ID, "click", {}).is_repeatable


def test_a_screenshot_that_is_none_is_told() -> None:
    assert read_view({"title": "T", "screenshot": None}).screenshot == b""
    for wrong in ("%%%", 7, {"a": 1}):
        with pytest.raises(ProtocolError):
            read_view({"screenshot": wrong})


# asyncio


def test_both_clients_have_the_same_methods() -> None:
    for threads, aio in ((tasks.Tasks, aio_tasks.AsyncTasks), (tasks.Task, aio_tasks.AsyncTask)):
        for name, method in inspect.getmembers(threads, inspect.isfunction):
            other = getattr(aio, name, None)
            if not name.startswith("_"):
                assert list(inspect.signature(method).parameters) == list(inspect.signature(other).parameters), name
    assert {name for name in vars(tasks.Browser) if name[0] != "_"} == {
        name for name in vars(aio_tasks.AsyncBrowser) if name[0] != "_"
    }


def test_a_task_in_asyncio(stand: Stand, tmp_path: Path) -> None:
    stand.breaks = [2]
    stand.files["log.txt"] = b"all of it"

    async def main() -> TaskInfo:
        async with AsyncWarren(stand.url, KEY, retries=QUICK) as warren:
            task = await warren.tasks.create("x", agent="mock")
            assert [event.seq async for event in task.events()] == [1, 2, 3, 4, 5, 6]
            assert [each.id async for each in warren.tasks.list(state=["running", "paused"])] == [TASK]
            assert [step.number async for step in task.steps()] == [1]
            assert (await task.diff()).data == DIFF
            (found,) = await task.artifacts()
            await task.download(found, tmp_path / "log")
            for act in (task.stop, task.pause, task.resume):
                await act()
            await task.approve("ap-1")
            assert (await task.retry(agent="claude")).id == TASK
            return await task.wait(30, check=True)

    assert asyncio.run(main()).ok
    assert (tmp_path / "log").read_bytes() == b"all of it"

"""Tasks from the client and the command to a real gateway, a real host and a real agent's program: the mock."""

import json
import shutil
from pathlib import Path

import pytest

from tests.sdk.conftest import Cli
from tests.terminal import open_screen
from warren import NotFound, TaskFailed, Warren, WrongState

PROMPT = "Write it down.\nedit hello.txt hello\nrun echo printed\nrun false\ntokens 1000 50 0.25\nsay It is done."


def test_a_task_is_done_followed_and_carried_away(warren: Warren, tmp_path: Path) -> None:
    task = warren.tasks.create(PROMPT, agent="mock", metadata={"why": "test"}, caps={"steps": 50})
    events = list(task.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert (events[-1].kind, events[-1].by) == ("task.completed", "host")
    info = task.wait(60, check=True)
    assert (info.metadata, info.caps["steps"], info.usage.tokens, info.usage.usd) == ({"why": "test"}, 50, 1050, 0.25)
    assert "+hello\n" in task.diff().text
    steps = list(task.steps())
    assert [step.number for step in steps] == list(range(1, info.usage.steps + 1))
    assert [step.is_error for step in steps if step.arguments == {"command": "false"}] == [True]
    assert warren.tasks.get(task.id).state == "completed"
    assert task.id in [each.id for each in warren.tasks.list(state="completed", agent="mock")]
    patch = next(each for each in task.artifacts() if each.kind == "patch")
    assert task.download(patch, tmp_path / "patch").bytes == patch.bytes
    assert task.archive(tmp_path / "archive").bytes > 0
    assert list(task.events(after=len(events))) == []


def test_a_question_is_answered_and_what_nobody_asked_is_refused(warren: Warren) -> None:
    task = warren.tasks.create("ask Which one?", agent="mock")
    asked = next(event for event in task.events() if event.kind == "approval.requested")
    (question,) = task.refresh().waiting
    assert (question.id, question.text) == (asked.data["id"], "Which one?")
    with pytest.raises((WrongState, NotFound)):
        task.answer("ap-99", "this one")
    task.answer(question.id, "this one")
    assert task.wait(60).ok
    assert "+this one" in task.diff().text


def test_one_that_fails_says_why_and_is_tried_again(warren: Warren) -> None:
    task = warren.tasks.create("fail I cannot", agent="mock")
    with pytest.raises(TaskFailed, match="I cannot") as failed:
        task.wait(60, check=True)
    assert failed.value.info.reason is not None
    again = task.retry(prompt="say I can")
    assert again.info.retry_of == task.id
    assert again.wait(60).ok


def test_one_that_is_stopped_stays_stopped(warren: Warren) -> None:
    task = warren.tasks.create("sleep 600", agent="mock")
    next(event for event in task.events() if event.kind == "agent.started")
    task.stop()
    assert task.wait(60).state == "stopped"
    assert task.stop().state == "stopped"


def test_the_command_runs_one_for_people_and_for_programs(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", PROMPT, "--agent", "mock")
    assert done.code == 0, done.err
    for words in ("✎ hello.txt  ✓", "$ false  exit 1", "● It is done.", "✓ completed", " tokens · $0.25", "◆ "):
        assert words in done.out, done.out
    told = cli("run", "fail no", "--agent", "mock", "--json")
    assert told.code == 1
    *events, last = [json.loads(line) for line in told.out.splitlines()]
    assert (events[-1]["kind"], last["task"]["state"]) == ("task.failed", "failed")
    if shutil.which("zstd") is not None:
        task = done.out.split()[1]
        found = cli("tasks", "archive", task, "--extract", str(tmp_path / "here"))
        assert found.code == 0, found.err
        assert [path.read_text() for path in (tmp_path / "here").rglob("hello.txt")] == ["hello\n"]


def test_a_person_answers_at_a_terminal(environment: dict[str, str]) -> None:
    words = ("run", "ask Which one?\nsay Thanks.", "--agent", "mock")
    with open_screen("warren.cli", *words, environment=environment) as screen:
        screen.sees(rb"ap-\d+ asks: Which one\?")
        screen.sees(rb"your answer: ")
        screen.types(b"this one\n")
        screen.sees(rb"answered by anna")
        screen.sees(rb"Thanks\.")
        assert screen.ends() == 0
    assert b"ANSWER.md" in screen.shown

"""`warren run` at a terminal: a timeline with a live line below it, questions that are asked there, ways to leave."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import SDK
from tests.sdk.sdk_replies import KEY
from tests.sdk.sdk_tasks import TASK, Stand, open_stand
from tests.terminal import Screen, open_screen

CTRL_C, CTRL_D = b"\x03", b"\x04"
COMMAND = {"command": "rm -rf build"}
LEAVE = rb"\[s\]top the task"
BACK = f"come back with: warren tasks follow {TASK}".encode()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WARREN_", "XDG_", "NO_COLOR"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(SDK), "TZ": "UTC", "WARREN_API_KEY": KEY, "TERM": "xterm"}


@contextlib.contextmanager
def watching(
    script: Callable[[Stand], None], environment: dict[str, str], columns: int = 100
) -> Iterator[tuple[Stand, Screen]]:
    """A person before a task that has just been made: for how long it has run is shown, and takes its room."""
    with open_stand(script, began_ms=round(1000 * (time.time() - 60))) as stand:
        person = {**environment, "WARREN_URL": stand.url}
        with open_screen("warren.cli", "run", "x", "--agent", "mock", environment=person, columns=columns) as screen:
            yield stand, screen


def asks(stand: Stand) -> None:
    stand.tell("task.running")
    said = stand.ask("ap-1", "command", "", tool="Bash", arguments=COMMAND)
    stand.tell("agent.message", {"text": f"I was told {said['kind']} {said['text']}!"}, by="guest")
    stand.tell("task.completed")


def runs(stand: Stand) -> None:
    """Until somebody stops it."""
    stand.tell("task.running")
    with contextlib.suppress(AssertionError):
        stand.wait_for("POST", "/stop")
        stand.tell("task.stopped")


def shown(screen: Screen) -> list[str]:
    """The lines that stay: what was written over is not in them, nor are colours."""
    text = re.sub(rb"\x1b\[[0-9;]*m", b"", screen.shown).decode()
    return [line.rpartition("\r\x1b[K")[2].rstrip("\r") for line in text.split("\n")]


@pytest.mark.parametrize(
    ("typed", "kind", "text"),
    [(b"y\n", "approve", ""), (b"No\n", "reject", ""), (b"move it to /tmp\n", "reject", "move it to /tmp")],
    ids=["yes", "no", "something else"],
)
def test_what_it_asks_is_asked_here(environment: dict[str, str], typed: bytes, kind: str, text: str) -> None:
    with watching(asks, environment) as (stand, screen):
        screen.sees(rb"ap-1 wants to run: rm -rf build")
        screen.sees(rb"ap-1: \[y\]es, \[n\]o, or what to do instead: ")
        screen.types(typed)
        screen.sees(rb"I was told ")
        assert screen.ends() == 0
    assert stand.wait_for("POST", "/input") == {"kind": kind, "id": "ap-1", "text": text}
    assert shown(screen)[-5:-1] == [
        "✓ completed  1m23s · 2 steps · 12.3k tokens · $0.42",
        "± 2 files changed +10 −3",
        "◆ 1f3a9c2d44 Mend the test",
        f"  warren tasks diff {TASK}",
    ]


def test_what_was_typed_before_a_question_does_not_answer_it(environment: dict[str, str]) -> None:
    def asks_late(stand: Stand) -> None:
        stand.tell("task.queued")
        stand.wait_for("GET", "/typed")
        asks(stand)

    with watching(asks_late, environment) as (stand, screen):
        screen.sees("⠋|⠙|⠹|⠸".encode())
        screen.types(b"y\n")
        time.sleep(0.2)  # the kernel has it by then; nothing tells when
        with stand.changed:
            stand.asked.append(("GET", "/typed", {}))
            stand.changed.notify_all()
        screen.sees(rb"what to do instead: ")
        assert not any(path.endswith("/input") for _, path, _ in stand.asked)
        screen.types(b"n\n")
        assert screen.ends() == 0
    assert stand.wait_for("POST", "/input")["kind"] == "reject"


def test_an_answer_that_somebody_else_gave_takes_the_question_back(environment: dict[str, str]) -> None:
    with watching(asks, environment) as (stand, screen):
        screen.sees(rb"what to do instead: ")
        with stand.changed:
            stand.asked.append(("POST", "/input", {"kind": "approve", "id": "ap-1", "text": "elsewhere"}))
            stand.changed.notify_all()
        screen.sees(rb"ap-1 approved by anna")
        assert screen.ends() == 0
    assert not any("what to do instead" in line for line in shown(screen))


def test_who_ends_the_keyboard_is_told_how_to_answer_later(environment: dict[str, str]) -> None:
    with watching(asks, environment) as (stand, screen):
        screen.sees(rb"what to do instead: ")
        screen.types(CTRL_D)
        screen.sees(f"answer later: warren tasks approve {TASK} ap-1".encode())
        with stand.changed:
            stand.asked.append(("POST", "/input", {"kind": "approve", "id": "ap-1", "text": ""}))
            stand.changed.notify_all()
        assert screen.ends() == 0


def test_control_c_asks_and_stops_if_that_is_wanted(environment: dict[str, str]) -> None:
    with watching(runs, environment) as (stand, screen):
        screen.sees(rb"running")
        screen.types(CTRL_C)
        screen.sees(LEAVE)
        screen.types(b"s\n")
        assert screen.ends() == 5
    assert any(path.endswith("/stop") for _, path, _ in stand.asked)
    assert any(line.startswith("■ stopped") for line in shown(screen))


def test_who_goes_on_after_control_c_sees_the_rest(environment: dict[str, str]) -> None:
    with watching(runs, environment) as (stand, screen):
        screen.sees(rb"running")
        screen.types(CTRL_C)
        screen.sees(LEAVE)
        screen.types(b"\n")
        screen.shown = b""
        screen.sees("⠋|⠙|⠹|⠸".encode())
        stand.tell("task.completed")
        assert screen.ends() == 0


@pytest.mark.parametrize("typed", [b"l\n", CTRL_C], ids=["l", "control-C"])
def test_who_leaves_is_told_how_to_come_back(environment: dict[str, str], typed: bytes) -> None:
    with watching(runs, environment) as (stand, screen):
        screen.sees(rb"running")
        screen.types(CTRL_C)
        screen.sees(LEAVE)
        screen.types(typed)
        screen.sees(BACK)
        assert screen.ends() == 130
    assert not any(path.endswith("/stop") for _, path, _ in stand.asked)


@pytest.mark.parametrize("columns", [30, 60, 100])
def test_no_line_is_wider_than_the_terminal(environment: dict[str, str], columns: int) -> None:
    def talks(stand: Stand) -> None:
        stand.tell("task.running")
        stand.tell("agent.thought", {"text": "a long thought 日本語 " * 20}, by="guest")
        tool = {"call": "1", "tool": "Bash", "kind": "command", "arguments": {"command": "echo " + "x" * 200}}
        stand.tell("agent.tool", {**tool, "phase": "start"}, by="guest")
        stand.wait_for("GET", "/seen")
        stand.tell("agent.tool", {**tool, "phase": "end", "output": "y" * 200, "duration_ms": 5}, by="guest")
        stand.tell("task.completed")

    with watching(talks, environment, columns) as (stand, screen):
        screen.sees(b"1 step")
        with stand.changed:
            stand.asked.append(("GET", "/seen", {}))
            stand.changed.notify_all()
        assert screen.ends() == 0
    text = re.sub(rb"\x1b\[[0-9;]*m", b"", screen.shown).decode()
    lines = [part for line in text.split("\n") for part in re.split(r"\r\x1b\[K|\r", line)]
    # Each of these characters takes two columns.
    widths = [len(line) + sum(character in "日本語" for character in line) for line in lines]
    assert max(widths) <= columns

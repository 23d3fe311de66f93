"""`warren run` and `warren tasks` away from any terminal: what is asked for, printed, and how it ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import SDK, Cli, runner
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import open_stage, reply
from tests.sdk.sdk_tasks import DIFF, TASK, Stand, open_stand
from tests.sdk.test_sdk_tree import DEVICE, FILE, LINK, tar_of

LIMIT_S = 60.0
EVIL = "\x1b]0;evil\x07\x1b[2J"


def works(stand: Stand) -> None:
    stand.tell("task.running")
    stand.tell("agent.message", {"text": f"I begin.{EVIL}\nand go on"}, by="guest")
    start = {"phase": "start", "call": "1", "tool": "Bash", "kind": "command", "arguments": {"command": f"make{EVIL}"}}
    stand.tell("agent.tool", start, by="guest")
    end = {"phase": "end", "call": "1", "tool": "Bash", "kind": "command", "is_error": True, "exit_code": 2}
    stand.tell("agent.tool", {**end, "output": f"no rule{EVIL}", "duration_ms": 12}, by="guest")
    stand.tell("task.completed")


def ends_as(state: str) -> Callable[[Stand], None]:
    def script(stand: Stand) -> None:
        stand.row = {"reason": {"code": "stopped", "message": "somebody said so"}}
        stand.tell(f"task.{state}")

    return script


@pytest.fixture
def cli(alone: dict[str, str], tmp_path: Path) -> Cli:
    """As the one of all tests, without a gateway of its own."""
    return runner(alone, tmp_path)


@pytest.fixture
def stand() -> Iterator[Stand]:
    with open_stand(works) as stand:
        yield stand


# warren run


def test_what_was_typed_becomes_a_task(cli: Cli, stand: Stand) -> None:
    words = (
        "--agent mock --repo https://e.com/r.git --ref v1 --branch b --push --model m --image i --memory 512 --vcpus 2"
    )
    words += " --env A=1 --env MINE --secret TOKEN --cap-steps 5 --cap-usd 0.5 --cap-tokens 9 --cap-wall 2h --keep 3"
    words += " --approve-tool Bash --approve-command rm* --approve-push --allow example.com --metadata k=v --detach"
    done = cli(
        "run",
        "mend it",
        *words.split(),
        "--webhook",
        "https://hook",
        WARREN_URL=stand.url,
        MINE="2",
        WARREN_WEBHOOK_SECRET="s",
    )
    assert (done.code, done.out, done.err) == (0, f"{TASK}\n", "")
    assert stand.asked[0][2] == {
        "prompt": "mend it",
        "agent": "mock",
        "repo": "https://e.com/r.git",
        "ref": "v1",
        "branch": "b",
        "push": True,
        "model": "m",
        "image": "i",
        "memory_mb": 512,
        "vcpus": 2,
        "env": {"A": "1", "MINE": "2"},
        "secrets": ["TOKEN"],
        "caps": {"steps": 5, "usd": 0.5, "tokens": 9, "wall_sec": 7200},
        "keep_minutes": 3,
        "approvals": {"tools": ["Bash"], "commands": ["rm*"], "push": True},
        "network": {"allow": [{"host": "example.com"}]},
        "webhook": {"url": "https://hook", "secret": "s"},
        "metadata": {"k": "v"},
    }


def test_a_prompt_comes_from_a_file_or_from_standard_input(cli: Cli, stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("from a file")
    for name, data in (("prompt", b""), ("-", b"from a file")):
        words = ("run", "--agent", "mock", "--detach", "--prompt-file", name)
        assert cli(*words, stdin=data, WARREN_URL=stand.url).code == 0
    assert [body["prompt"] for how, _, body in stand.asked if how == "POST"] == ["from a file"] * 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--agent", "mock"], "say what to do"),
        (["x", "--agent", "mock", "--prompt-file", "y"], "say what to do"),
        ([" ", "--agent", "mock"], "the prompt is empty"),
        (["x"], "--agent"),
        (["x", "--agent", "nobody"], "'nobody'"),
        (["x", "--agent", "mock", "--cap-usd", "much"], "must be a number of dollars such as 2.50, got 'much'"),
        (["x", "--agent", "mock", "--env", "NOT_MINE"], "the name of a variable that you have, got 'NOT_MINE'"),
        (["--agent", "mock", "--prompt-file", "-"], "- is not text in UTF-8"),
    ],
)
def test_what_cannot_be_meant_is_told_and_nothing_is_made(cli: Cli, stand: Stand, words: list[str], told: str) -> None:
    done = cli("run", *words, stdin=b"\xff", WARREN_URL=stand.url)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert stand.asked == []


def test_a_pipe_gets_plain_lines_and_the_end(cli: Cli, stand: Stand) -> None:
    done = cli("run", "x", "--agent", "mock", WARREN_URL=stand.url)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        f"▸ {TASK} mock",
        "22:13:21  · running",
        "22:13:22  ● I begin.]0;evil[2J",
        "            and go on",
        "22:13:24  $ make]0;evil[2J  exit 2 · 12ms · no rule]0;evil[2J",
        "",
        "✓ completed  1m23s · 2 steps · 12.3k tokens · $0.42",
        "± 2 files changed +10 −3",
        "◆ 1f3a9c2d44 Mend the test",
        f"  warren tasks diff {TASK}",
    ]


def test_a_program_gets_an_event_a_line_and_the_task(cli: Cli, stand: Stand) -> None:
    stand.breaks = [2]
    done = cli("run", "x", "--agent", "mock", "--json", WARREN_URL=stand.url)
    *events, last = [json.loads(line) for line in done.out.splitlines()]
    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5]
    assert last["task"]["state"] == "completed"
    assert "\x1b" not in done.out


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("failed", 1), ("stopped", 5)])
def test_the_exit_code_says_how_it_ended(cli: Cli, state: str, code: int) -> None:
    with open_stand(ends_as(state)) as stand:
        done = cli("run", "x", "--agent", "mock", WARREN_URL=stand.url)
        assert done.code == code
        assert f"{state}: somebody said so" in done.out
        assert cli("tasks", "follow", TASK, "--json", WARREN_URL=stand.url).code == code


def test_without_a_person_it_says_how_to_answer(cli: Cli) -> None:
    def asks(stand: Stand) -> None:
        stand.tell("task.running")
        stand.ask("ap-1", "command", "", arguments={"command": "rm -rf build"})
        stand.tell("task.completed")

    with open_stand(asks) as stand:
        environment = {"WARREN_URL": stand.url, "WARREN_API_KEY": KEY, "PYTHONPATH": str(SDK)}
        words = [sys.executable, "-m", "warren.cli", "run", "x", "--agent", "mock"]
        with subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while f"warren tasks approve {TASK} ap-1" not in process.stdout.readline():
                assert process.poll() is None
            assert cli("tasks", "approve", TASK, "-m", "fine", WARREN_URL=stand.url).out == f"{TASK} ap-1\n"
            assert "✓ ap-1 approved by anna" in process.stdout.read()
        assert process.returncode == 0
        assert stand.wait_for("POST", "/input") == {"kind": "approve", "id": "ap-1", "text": "fine"}


# warren tasks


def test_tasks_are_listed_shown_and_found_by_their_first_characters(cli: Cli, stand: Stand) -> None:
    stand.row = {"prompt": f"mend\nit{EVIL}", "metadata": {"k": "v"}}
    table = cli("tasks", "ls", WARREN_URL=stand.url).out.splitlines()
    assert table[0].split() == ["ID", "STATE", "AGENT", "STEPS", "TOKENS", "COST", "TOOK", "CREATED", "PROMPT"]
    assert table[1].startswith(f"{TASK}  queued  mock       2   12.3k  $0.42  1m23s  ")
    assert table[1].endswith("mend it]0;evil[2J")
    assert cli("tasks", "ls", "-q", WARREN_URL=stand.url).out == f"{TASK}\n"
    assert cli("tasks", "ls", "--json", WARREN_URL=stand.url).json["tasks"][0]["id"] == TASK
    shown = cli("tasks", "show", TASK[3:7], WARREN_URL=stand.url)
    assert f"id          {TASK}\n" in shown.out.replace("metadata k", "metadata")
    assert cli("tasks", "show", "nothing", WARREN_URL=stand.url).code == 4


def test_tasks_are_steered(cli: Cli, stand: Stand) -> None:
    for act in ("stop", "pause", "resume"):
        assert cli("tasks", act, TASK, WARREN_URL=stand.url).out == f"{TASK} queued\n"
        assert stand.asked[-1][1] == f"/api/v1/tasks/{TASK}/{act}"
    assert cli("tasks", "instruct", TASK, "more tests", WARREN_URL=stand.url).code == 0
    assert cli("tasks", "answer", TASK, "ap-1", "yes", WARREN_URL=stand.url).code == 0
    stand.waiting = [{"id": "ap-7", "kind": "question", "text": "?"}]
    assert cli("tasks", "answer", TASK, "maybe", WARREN_URL=stand.url).code == 0
    said = [body for _, path, body in stand.asked if path.endswith("/input")]
    assert said == [
        {"kind": "instruct", "text": "more tests"},
        {"kind": "answer", "id": "ap-1", "text": "yes"},
        {"kind": "answer", "id": "ap-7", "text": "maybe"},
    ]
    assert cli("tasks", "retry", TASK, "--prompt", "again", "-d", WARREN_URL=stand.url).out == f"{TASK}\n"
    assert stand.asked[-1][2] == {"prompt": "again"}


def test_who_approves_nothing_is_told(cli: Cli, stand: Stand) -> None:
    none = cli("tasks", "approve", TASK, WARREN_URL=stand.url)
    assert (none.code, none.err) == (2, f"warren: {TASK} asks nothing now; see `warren tasks show {TASK}`\n")
    stand.waiting = [{"id": f"ap-{number}", "kind": "tool"} for number in (1, 2)]
    assert "asks several things (ap-1, ap-2): say which" in cli("tasks", "reject", TASK, WARREN_URL=stand.url).err


def test_a_diff_in_a_pipe_is_byte_for_byte_what_it_is(cli: Cli, stand: Stand) -> None:
    assert cli("tasks", "diff", TASK, WARREN_URL=stand.url).out.encode("utf-8", "surrogateescape") == DIFF
    assert cli("tasks", "diff", TASK, "--json", WARREN_URL=stand.url).json["is_truncated"] is False


def test_steps_are_a_table(cli: Cli, stand: Stand) -> None:
    rows = [line.split() for line in cli("tasks", "steps", TASK, WARREN_URL=stand.url).out.splitlines()]
    assert rows == [["STEP", "TOOL", "TOOK", "OUTPUT", "WHAT"], ["1", "Bash", "1.2s", "2", "make", "test"]]


# Files


def test_an_artifact_is_carried_here(cli: Cli, stand: Stand, tmp_path: Path) -> None:
    stand.files["log.txt"] = b"all"
    assert cli("tasks", "get", TASK, "log.txt", WARREN_URL=stand.url).out == "log.txt  3 B\n"
    assert (tmp_path / "log.txt").read_bytes() == b"all"
    assert cli("tasks", "get", TASK, "log.txt", "-o", "-", WARREN_URL=stand.url).out == "all"
    assert cli("tasks", "get", TASK, "none", WARREN_URL=stand.url).code == 4
    stand.files["../evil"] = b"x"
    refused = cli("tasks", "get", TASK, "../evil", WARREN_URL=stand.url)
    assert (refused.code, refused.err) == (2, "warren: '../evil' is no name for a file here; say where to: -o FILE\n")


def packed(tar: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=tar, capture_output=True, check=True).stdout


needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd makes the archives of this test")


@needs_zstd
def test_an_archive_is_unpacked_into_its_folder_and_nowhere_else(cli: Cli, stand: Stand, tmp_path: Path) -> None:
    stand.files["archive"] = packed(
        tar_of(
            ("./good/file", b"good", "", FILE),
            ("../evil", b"evil", "", FILE),
            ("dev", None, "", DEVICE),
            (f"out{EVIL}", None, "/etc/passwd", LINK),
            ("good/inside", None, "file", LINK),
        )
    )
    done = cli("tasks", "archive", TASK, "--extract", "here", WARREN_URL=stand.url)
    assert done.code == 0, done.err
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("here", "here/good", "here/good/file", "here/good/inside")
    ]
    assert len([line for line in done.err.splitlines() if line.startswith("warren: left out: ")]) == 3
    assert "\x1b" not in done.err


@needs_zstd
def test_an_archive_that_is_damaged_is_told(cli: Cli, stand: Stand) -> None:
    whole = packed(tar_of(("a", os.urandom(100_000), "", FILE)))
    for damaged in (b"no archive", whole[: len(whole) // 2], packed(b"\x01" * 1000)):
        stand.files["archive"] = damaged
        done = cli("tasks", "archive", TASK, "--extract", "here", WARREN_URL=stand.url)
        assert done.code == 1
        assert "the archive" in done.err
        assert "Traceback" not in done.err


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python reads zstd itself")
def test_without_zstd_it_says_what_helps_and_carries_nothing(cli: Cli, stand: Stand, tmp_path: Path) -> None:
    stand.files["archive"] = b"x"
    done = cli("tasks", "archive", TASK, "--extract", "here", WARREN_URL=stand.url, PATH=str(tmp_path))
    assert done.code == 1
    assert done.err.startswith("warren: nothing here can read zstd; install the program zstd")
    assert not any(path.endswith("/archive") for _, path, _ in stand.asked)
    assert cli("tasks", "archive", TASK, WARREN_URL=stand.url).out == f"{TASK}.tar.zst  1 B\n"


@needs_zstd
def test_a_file_of_holes_takes_no_room(cli: Cli, stand: Stand, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
    (source / "first").write_bytes(b"twice")
    os.link(source / "first", source / "second")
    tar = subprocess.run(
        ["tar", "--sparse", "--format=posix", "-cf", "-", "."], cwd=source, capture_output=True, check=True
    ).stdout
    stand.files["archive"] = packed(tar)
    done = cli("tasks", "archive", TASK, "--extract", "here", WARREN_URL=stand.url)
    assert (done.code, done.err) == (0, "")
    found = (tmp_path / "here" / "sparse").stat()
    assert (found.st_size, found.st_blocks < 10_000) == ((1 << 40) + 3, True)
    assert (tmp_path / "here" / "second").read_bytes() == b"twice"


# Completion, and the browser


def test_words_of_tasks_are_completed(cli: Cli, stand: Stand) -> None:
    stand.waiting = [{"id": "ap-7", "kind": "question", "text": "?"}]
    stand.files["log.txt"] = b""
    asked = {
        ("tasks", "a"): "answer\napprove\narchive\nartifacts\n",
        ("tasks", "show", "tk"): f"{TASK}\n",
        ("tasks", "approve", TASK, ""): "ap-7\n",
        ("tasks", "get", TASK, "l"): "log.txt\n",
        ("tasks", "ls", "--state", "running,pa"): "running,paused\n",
        ("run", "--agent", "c"): "claude\ncodex\ncursor\n",
    }
    for words, found in asked.items():
        assert cli("__complete", "--", *words, WARREN_URL=stand.url).out == found


def test_a_page_is_shown_and_nothing_of_it_is_obeyed(cli: Cli, tmp_path: Path) -> None:
    page = {
        "title": f"T{EVIL}",
        "url": "http://x/",
        "text": f"words{EVIL}\nmore",
        "status": 200,
        "console": [f"e{EVIL}"],
    }
    with open_stage() as stage:
        stage.play(reply(200, ROW), reply(200, {**page, "screenshot": "iVBORw0K"}))
        done = cli("browse", ID, "http://x/", "--screenshot", "shot.png", WARREN_URL=stage.url)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "title       T]0;evil[2J",
        "address     http://x/",
        "status      200",
        "screenshot  shot.png (6 B)",
        "",
        "words]0;evil[2J",
        "more",
        "console: e]0;evil[2J",
    ]
    assert (tmp_path / "shot.png").read_bytes() == b"\x89PNG\r\n"

"""The real Claude Code and the real Codex, in a microVM, against models that follow a script; Cursor by a stand-in.

What a model says is scripted, so nothing that an agent says of itself proves anything: it is judged by the files and
the commit that it leaves, by every step that was written down, and by figures that are what the server told it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.gitserver import GitServer, git
from tests.models.anthropic import AnthropicModel
from tests.models.openai import OpenAIModel
from tests.models.script import ScriptedModel
from tests.tasks import scripts
from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task
from tests.tasks.places import git_server
from tests.tasks.stage import PRICES, Stage

GIT = "https://agents-git.example.com"
LIMIT_S = 900.0  # a large program in an emulated machine
M = TypeVar("M", bound=ScriptedModel)
CURSOR = Path(__file__).with_name("cursor_stand_in.py")
FIGURES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@pytest.fixture(scope="module")
def gits(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(stage.places, tmp_path_factory.mktemp("git"), "agents-git.example.com") as server:
        server.make("calc", scripts.FILES)
        yield server


@contextlib.contextmanager
def serving(stage: Stage, name: str, kind: type[M], script: Any) -> Iterator[M]:
    """A model under `name` during the block."""
    model = stage.places.made(lambda: kind(script, "0.0.0.0"))
    with model, stage.places.encrypted(name, model.port):
        yield model


def is_mended(task: Task, gits: GitServer) -> None:
    """The files and the commit are there."""
    with opened(task) as archive:
        assert archive.found("calc.py").read_text() == scripts.MENDED
        assert archive.found("NOTES.md").read_text() == scripts.NOTES
        assert archive.subjects()[-1] == "Mend add"
        assert archive.git("status", "--porcelain") == ""
        assert archive.git("diff", "--name-only", str(gits.head("calc")), "HEAD").split() == ["NOTES.md", "calc.py"]
        assert archive.git("log", "-1", "--format=%an <%ae>") == "Warren Agent <agent@example.com>"


def has_used(task: Task, model: ScriptedModel, usd: float) -> None:
    """Tokens are those that the server told, and dollars what they cost."""
    usage = task.view["usage"]
    assert {name: usage[name] for name in FIGURES} == {name: getattr(model.used, name) for name in FIGURES}
    assert usage["usd"] == pytest.approx(usd, abs=1e-6)
    steps = task.steps()
    assert usage["steps"] == len(steps)


def price(model: ScriptedModel, prices: dict[str, float]) -> float:
    spent: float = sum(getattr(model.used, f"{kind}_tokens") * usd for kind, usd in prices.items())
    return spent / 1_000_000


def tools(task: Task) -> list[tuple[str | None, bool]]:
    return [(step["tool"], step["is_error"]) for step in task.steps()]


def test_claude_code_does_what_its_model_says(stage: Stage, alice: Caller, gits: GitServer) -> None:
    key = "sk-ant-" + os.urandom(16).hex()
    with serving(stage, "claude-api.example.com", AnthropicModel, scripts.claude()) as model:
        task = alice.task(
            "Mend add.",
            agent="claude",
            model=scripts.CLAUDE_MODEL,
            repo=f"{GIT}/calc.git",
            env={"ANTHROPIC_BASE_URL": "https://claude-api.example.com", "ANTHROPIC_API_KEY": key},
        )
        view = task.ended(limit_s=LIMIT_S)
        is_mended(task, gits)
        assert tools(task) == [
            ("Write", False),
            ("Bash", True),
            ("Read", False),
            ("Edit", False),
            ("Bash", False),
            ("Bash", False),
            (None, False),
        ]
        has_used(task, model, price(model, scripts.CLAUDE_PRICES))
        assert {asked.headers["x-api-key"] for asked in model.turns_asked} == {key}
    assert not view["usage"]["usd_is_estimate"]
    assert view["result"]["summary"] == scripts.SAID
    assert "FAILED" in task.steps()[1]["output"]
    assert task.steps()[4]["output"].strip().endswith("OK")
    assert key not in str(task.events())


def test_codex_does_what_its_model_says(stage: Stage, alice: Caller, gits: GitServer) -> None:
    with serving(stage, "codex-api.example.com", OpenAIModel, scripts.codex()) as model:
        task = alice.task(
            "Mend add.",
            agent="codex",
            model=scripts.CODEX_MODEL,
            repo=f"{GIT}/calc.git",
            env={"OPENAI_BASE_URL": "https://codex-api.example.com/v1", "OPENAI_API_KEY": "x"},
        )
        view = task.ended(limit_s=LIMIT_S)
        is_mended(task, gits)
        assert tools(task) == [
            ("command_execution", False),
            ("command_execution", True),
            ("file_change", False),
            ("command_execution", False),
            ("command_execution", False),
            (None, False),
        ]
        has_used(task, model, price(model, PRICES[scripts.CODEX_MODEL]))
    assert view["usage"]["usd_is_estimate"]  # it tells no dollars: these are the operator's prices
    assert view["result"]["summary"] == scripts.SAID


def test_claude_code_asks_before_it_does_what_needs_a_word(stage: Stage, alice: Caller, gits: GitServer) -> None:
    """Poold is killed while it waits. The answer finds the same process, which goes on."""
    with serving(stage, "asking-api.example.com", AnthropicModel, scripts.claude()) as model:
        task = alice.task(
            "Mend add.",
            agent="claude",
            model=scripts.CLAUDE_MODEL,
            repo=f"{GIT}/calc.git",
            env={"ANTHROPIC_BASE_URL": "https://asking-api.example.com", "ANTHROPIC_API_KEY": "x"},
            approvals={"commands": ["git *"]},
        )
        asked = task.question("command", LIMIT_S)
        assert scripts.COMMIT in asked["text"]
        stage.kill_poold()
        stage.start_poold()
        assert task.say("approve", asked["id"]).status == 200
        task.ended(limit_s=LIMIT_S)
        is_mended(task, gits)
        has_used(task, model, price(model, scripts.CLAUDE_PRICES))
    assert task.kinds().count("agent.started") == 1


def test_an_api_that_refuses_fails_the_task_with_its_words(stage: Stage, alice: Caller, gits: GitServer) -> None:
    with serving(stage, "refusing-api.example.com", OpenAIModel, [scripts.refusal()] * 20):
        task = alice.task(
            "Mend add.",
            agent="codex",
            model=scripts.CODEX_MODEL,
            repo=f"{GIT}/calc.git",
            env={"OPENAI_BASE_URL": "https://refusing-api.example.com/v1", "OPENAI_API_KEY": "x"},
        )
        view = task.ended("failed", limit_s=LIMIT_S)
    assert view["reason"]["code"] == "agent"
    assert scripts.REFUSED in view["reason"]["message"]


def test_cursor_is_understood_by_its_documented_words(alice: Caller, gits: GitServer, tmp_path: Path) -> None:
    """Its CLI is on no registry: an executable in the repository prints what its documentation says that it prints."""
    tree = tmp_path / "tree"
    git("clone", "-q", gits.path("calc"), tree)
    (tree / "tools").mkdir()
    program = tree / "tools" / "cursor-agent"
    program.write_bytes(CURSOR.read_bytes())
    program.chmod(0o755)
    gits.publish("calc", tree, "cursor")
    path = f"{scripts.WORKSPACE}/tools:/usr/local/bin:/usr/bin:/bin"
    task = alice.task(
        "Mend add.",
        agent="cursor",
        image="minimal",
        repo=f"{GIT}/calc.git",
        ref="cursor",
        env={"PATH": path, "CURSOR_API_KEY": "x"},
    )
    view = task.ended()
    assert tools(task) == [("read", False), ("write", False), ("shell", False), (None, False)]
    assert view["session"] == "cursor-session"
    assert view["result"]["summary"] == scripts.SAID
    assert {name: view["usage"][name] for name in FIGURES[:2]} == {"input_tokens": 1234, "output_tokens": 56}
    with opened(task) as archive:
        assert archive.found("calc.py").read_text() == scripts.MENDED
        assert archive.subjects()[-1] == "Mend add"

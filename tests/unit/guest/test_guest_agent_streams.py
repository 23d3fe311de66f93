"""Adapters against streams that the real CLIs printed, against lines that Cursor documents, and against anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warren_guest.agents import acts, values
from warren_guest.agents.adapter import Adapter, Answer, Assignment
from warren_guest.agents.claude import Claude
from warren_guest.agents.codex import Codex
from warren_guest.agents.cursor import Cursor
from warren_guest.agents.mock import Mock
from warren_guest.agents.rules import Rules
from warren_guest.agents.usage import Usage
from warren_guest.errors import RefusedError

from tests.unit.guest.client import Client
from tests.unit.guest.run_client import RunClient

RECORDED = Path(__file__).parent / "recorded"
MAKERS: list[Callable[[Assignment], Adapter]] = [Claude, Codex, Cursor, Mock]


def told(adapter: Adapter, name: str) -> list[acts.Act]:
    """Every act of a recorded stream, all of whose lines must be known."""
    found: list[acts.Act] = []
    for line in (RECORDED / name).read_bytes().splitlines():
        parsed = values.parse(line)
        assert parsed is not None
        meant = adapter.read(parsed)
        assert meant is not None, line
        found += meant
    return found


def of(kind: type[Any], found: list[acts.Act]) -> list[Any]:
    return [act for act in found if isinstance(act, kind)]


def sent(act: acts.Act) -> dict[str, Any]:
    assert isinstance(act, acts.Send)
    loaded: dict[str, Any] = json.loads(act.data)
    return loaded


def test_claude_as_it_was_recorded() -> None:
    found = told(Claude(Assignment("do it", rules=Rules(commands=("rm -rf *",)))), "claude.jsonl")
    assert [(act.tool, act.kind, act.command) for act in of(acts.ToolStart, found)] == [
        ("Write", "edit", None),
        ("Bash", "command", "rm -rf a.txt; exit 4"),
        ("AskUserQuestion", "other", None),
    ]
    ends = of(acts.ToolEnd, found)
    assert [(act.is_error, act.exit_code) for act in ends] == [(False, None), (True, 4), (False, None)]
    assert [act.fields["text"] for act in of(acts.Tell, found)] == ["Hm.", "I write it.", "Done."]
    assert [(act.kind, act.text) for act in of(acts.Ask, found)] == [
        ("command", "rm -rf a.txt; exit 4"),
        ("question", "Which?"),
    ]
    (used,) = of(acts.Used, found)
    assert used.usage.usd > 0
    assert Usage(400, 50, 5, 7, used.usage.usd) == used.usage
    live = [act.usage for act in of(acts.Using, found)]
    assert live == [Usage(100, 20, 5, 7), Usage(200, 30, 5, 7), Usage(300, 40, 5, 7), Usage(400, 50, 5, 7)]
    assert found[-2:] == [acts.Finished(is_success=True, result="Done."), acts.CloseInput()]
    (session,) = of(acts.SessionIs, found)
    assert session.version == "2.1.325"


def test_what_claude_may_do_is_answered_at_once_with_the_same_input() -> None:
    request = {"subtype": "can_use_tool", "tool_name": "Write", "input": {"file_path": "a"}}
    (act,) = Claude(Assignment("x")).read({"type": "control_request", "request_id": "r", "request": request}) or ()
    answer = sent(act)["response"]
    assert answer["request_id"] == "r"
    assert answer["response"] == {"behavior": "allow", "updatedInput": {"file_path": "a"}}


def test_a_question_that_claude_takes_back_cannot_be_answered() -> None:
    claude = Claude(Assignment("x", rules=Rules(tools=("Write",))))
    request = {"subtype": "can_use_tool", "tool_name": "Write", "input": {}}
    (ask,) = claude.read({"type": "control_request", "request_id": "r", "request": request}) or ()
    assert isinstance(ask, acts.Ask)
    assert list(claude.read({"type": "control_cancel_request", "request_id": "r"}) or ()) == [acts.Withdraw("r")]
    assert list(claude.answer("r", Answer("approve"))) == []


def test_claude_stays_until_a_message_that_was_sent_late_is_read() -> None:
    claude = Claude(Assignment("x"))
    replay = {"type": "user", "isReplay": True, "message": {"content": "x"}}
    result = {"type": "result", "is_error": False, "result": "one"}
    list(claude.read(replay) or ())
    list(claude.instruct("more"))
    assert acts.CloseInput() not in list(claude.read(result) or ())
    list(claude.read(replay) or ())
    assert list(claude.quiet()) == [], "it works on what it has just read"
    assert acts.CloseInput() in list(claude.read(result) or ())


def test_claude_that_never_says_that_it_read_a_message_is_not_waited_for() -> None:
    """It does not replay its own commands (`/clear`)."""
    claude = Claude(Assignment("/clear"))
    assert list(claude.quiet()) == []
    list(claude.read({"type": "result", "is_error": False, "result": ""}) or ())
    assert list(claude.quiet()) == [acts.CloseInput()]


def test_claude_is_made_to_ask_when_there_are_rules() -> None:
    assert "--settings" not in Claude(Assignment("x")).command().args
    args = Claude(Assignment("x", rules=Rules(("Read", "no tool ((", ""), ("rm *",)))).command().args
    settings = json.loads(args[args.index("--settings") + 1])
    assert settings["permissions"] == {"ask": ["Bash", "Monitor", "Read"]}
    assert settings["disableAllHooks"] is True
    assert settings["apiKeyHelper"] == ""
    assert "--strict-mcp-config" in args


def test_a_result_of_claude_that_is_an_error_is_a_failure_whatever_its_subtype() -> None:
    line = {"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 401"}
    assert acts.Finished(is_success=False, error="API Error: 401") in list(Claude(Assignment("x")).read(line) or ())
    line = {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["a", "b"]}
    assert acts.Finished(is_success=False, error="a\nb") in list(Claude(Assignment("x")).read(line) or ())


def test_codex_as_it_was_recorded() -> None:
    found = told(Codex(Assignment("do it")), "codex.jsonl")
    starts, ends = of(acts.ToolStart, found), of(acts.ToolEnd, found)
    assert [(act.tool, act.kind) for act in starts] == [("command_execution", "command"), ("file_change", "edit")]
    assert "cat a.txt" in starts[0].command
    assert [(act.is_error, act.exit_code) for act in ends] == [(True, 3), (False, None)]
    assert ends[0].output == "hi\n"
    assert ends[1].output.startswith("add ")
    assert [act.fields["text"] for act in of(acts.Tell, found)] == ["Hm.", "I look.", "Done."]
    assert found[-3:] == [
        acts.Used(Usage(300, 40, 50)),
        acts.Finished(is_success=True, result="Done."),
        acts.CloseInput(),
    ]


def test_a_retry_of_codex_is_not_its_end() -> None:
    codex = Codex(Assignment("x"))
    (note,) = codex.read({"type": "error", "message": "Reconnecting... 1/5"}) or ()
    assert isinstance(note, acts.Tell)
    end = list(codex.read({"type": "turn.failed", "error": {"message": "no key"}}) or ())
    assert end[0] == acts.Finished(is_success=False, error="no key")


def test_the_key_of_codex_is_not_in_its_arguments() -> None:
    env = {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": 'http://x/"v1'}
    command = Codex(Assignment("the prompt", "m", "session-1", env)).command()
    assert "sk-secret" not in str(command.args)
    assert r'model_providers.warren.base_url="http://x/\"v1"' in command.args
    assert command.args[:2] == ("exec", "resume")
    assert command.args[-3:] == ("--", "session-1", "-")
    assert command.stdin == b"the prompt"


CURSOR = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "model": "Model 5", "apiKeySource": "env"},
    {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "go"}]}},
    {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "I read."}]}},
    {
        "type": "tool_call",
        "subtype": "started",
        "call_id": "c1",
        "tool_call": {"readToolCall": {"args": {"path": "a"}}},
    },
    {
        "type": "tool_call",
        "subtype": "completed",
        "call_id": "c1",
        "tool_call": {"readToolCall": {"args": {"path": "a"}, "result": {"success": {"content": "text of a"}}}},
    },
    {
        "type": "tool_call",
        "subtype": "started",
        "call_id": "c2",
        "tool_call": {"shellToolCall": {"args": {"command": "false"}}},
    },
    {
        "type": "tool_call",
        "subtype": "completed",
        "call_id": "c2",
        "tool_call": {"shellToolCall": {"result": {"failure": {"exitCode": 1, "stdout": "out", "stderr": "err"}}}},
    },
    {"type": "result", "subtype": "success", "is_error": False, "result": "Done.", "session_id": "s-1"},
]


async def test_cursors_documented_lines_over_the_wire(fresh_guest: Client, tmp_path: Path) -> None:
    """Cursor's own program cannot be had without an account: a program with its name prints what it documents."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{json.dumps(line)}\n" for line in CURSOR))
    program = tmp_path / "agent"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/given\ncat {lines}\n')
    program.chmod(0o755)
    host = RunClient(fresh_guest)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = await host.whole("x" * 120_000, agent="cursor", model="m-1", env=env)
    assert (ended["outcome"], ended["result"]) == ("success", "Done.")
    assert host.tools() == [("read", False), ("shell", True)]
    (shell,) = host.told("agent.tool", phase="end", tool="shell")
    assert (shell["kind"], shell["command"], shell["exit_code"], shell["output"]) == ("command", "false", 1, "out\nerr")
    given = (tmp_path / "given").read_text().splitlines()
    assert given[:5] == ["-p", "--force", "--trust", "--output-format", "stream-json"]
    assert given[-4:] == ["--model", "m-1", "--", "x" * 120_000]


async def test_a_cli_that_ends_without_its_result_line_is_a_failure(fresh_guest: Client, tmp_path: Path) -> None:
    program = tmp_path / "cursor-agent"
    program.write_text("#!/bin/sh\necho 'not logged in' >&2\nexit 7\n")
    program.chmod(0o755)
    host = RunClient(fresh_guest)
    ended = await host.whole("go", agent="cursor", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (ended["outcome"], ended["exit_code"], ended["output_tail"]) == ("failure", 7, "not logged in\n")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = [
    *("system", "assistant", "user", "stream_event", "control_request", "control_cancel_request", "result"),
    *("thread.started", "turn.completed", "turn.failed", "item.started", "item.completed", "error", "tool_call"),
    *("thinking", "permission", "question", "tool_start", "tool_end", "usage", "session"),
]
FIELDS = [
    *("subtype", "message", "content", "event", "request", "request_id", "item", "usage", "error", "errors", "text"),
    *("tool_call", "call_id", "session_id", "thread_id", "modelUsage", "total_cost_usd", "result", "is_error", "id"),
    *("arguments", "tool", "kind", "input_tokens", "exit_code", "input", "tool_name", "type"),
]
shapes = st.dictionaries(st.sampled_from(FIELDS), anything | st.deferred(lambda: shapes), max_size=5)


@pytest.mark.parametrize("make", MAKERS)
@given(kind=st.sampled_from(WORDS), line=shapes)
def test_no_line_of_whatever_shape_breaks_an_adapter(
    make: Callable[[Assignment], Adapter], kind: str, line: dict[str, Any]
) -> None:
    adapter = make(Assignment("x", rules=Rules(("Bash",), ("*",))))
    for act in adapter.read({**line, "type": kind}) or ():
        if isinstance(act, acts.Ask):
            list(adapter.answer(act.key, Answer("answer", "yes")))
        if isinstance(act, acts.Used | acts.Using):
            assert min(value for value in act.usage.facts().values() if isinstance(value, int | float)) >= 0


@pytest.mark.parametrize("make", [Codex, Cursor])
def test_an_agent_that_cannot_be_instructed_says_so(make: Callable[[Assignment], Adapter]) -> None:
    with pytest.raises(RefusedError) as refused:
        make(Assignment("x")).instruct("more")
    assert refused.value.code == "not_possible"

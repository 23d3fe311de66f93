"""The parts of runs that need no process: totals, rules, texts, lines, questions."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warren_guest.agents.adapter import Answer, Assignment
from warren_guest.agents.changes import _Sums
from warren_guest.agents.claude import Claude
from warren_guest.agents.rules import Rules
from warren_guest.agents.usage import Meter, Usage
from warren_guest.agents.values import count, parse, usd
from warren_guest.errors import RefusedError
from warren_guest.run import Run
from warren_guest.run_log import LIMIT, RunLog
from warren_guest.run_questions import OPEN_LIMIT, Questions
from warren_guest.run_texts import LINE_LIMIT, TEXT_LIMIT, Line, Lines, clip, clip_arguments
from warren_guest.runs import ASKED_LIMIT, Runs


def test_the_last_word_of_each_session_counts_once() -> None:
    meter = Meter()
    meter.tell("a", Usage(100, 10, usd=1.0))
    meter.tell("a", Usage(150, 15, usd=1.5))
    meter.tell("b", Usage(7, 7))
    assert meter.total == Usage(157, 22, usd=1.5)
    meter.tell("a", Usage(160, 16, usd=1.6))
    assert meter.total == Usage(167, 23, usd=1.6)


def test_a_session_that_counts_from_the_start_again_adds_to_what_it_told() -> None:
    meter = Meter()
    meter.tell("a", Usage(100, 10, usd=1.0))
    meter.tell("a", Usage(5, 1, usd=0.1))
    assert meter.total == Usage(105, 11, usd=1.1)


def test_what_was_counted_live_is_part_of_what_is_told_and_kept_if_nothing_is() -> None:
    meter = Meter()
    meter.count(Usage(10, 1))
    meter.count(Usage(30, 3))
    assert meter.total == Usage(30, 3)
    meter.tell("a", Usage(30, 3, usd=0.5))
    assert meter.total == Usage(30, 3, usd=0.5)
    meter.count(Usage(5, 5))
    meter.settle()
    meter.settle()
    assert meter.total == Usage(35, 8, usd=0.5)


@pytest.mark.parametrize(
    ("tool", "command", "kind"),
    [
        ("Bash", "rm -rf /", "command"),
        ("Bash", "rm -rf a\nb", "command"),
        ("Bash", "sudo rm -rf /", "tool"),
        ("Bash", "true && rm -rf /", "command"),
        ("Bash", "cd a; rm  -rf 'b c'", "command"),
        ("Bash", " rm\t-rf a", "command"),
        ("Bash", "rm \\\n-rf a", "command"),
        ("Bash", "echo $(rm -rf a)", "command"),
        ("Bash", "bash -c 'rm -rf a'", "command"),
        ("Bash", "echo x\nrm -rf a", "command"),
        ("Bash", "x" * 100_000, "command"),
        ("Bash", ";a;b" * 10_000, "tool"),
        ("bash", "ls", "tool"),
        ("Bash", "echo rm", "tool"),
        ("Write", None, None),
        ("Read", None, None),
    ],
)
def test_rules_ask_by_the_command_line_by_each_of_its_commands_or_by_the_tool(
    tool: str, command: str | None, kind: str | None
) -> None:
    assert Rules(("Bash",), ("rm -rf *",)).asks(tool, command) == kind


def test_claude_must_ask_for_tools_by_their_own_names() -> None:
    args = Claude(Assignment("x", rules=Rules(tools=("bash", "mcp__x__y")))).command().args
    settings = json.loads(args[args.index("--settings") + 1])
    assert set(settings["permissions"]["ask"]) >= {"Bash", "mcp__x__y"}
    assert settings["disableAllHooks"] is True


@given(st.text(max_size=400), st.integers(1, 200))
def test_a_clipped_text_is_a_beginning_that_fits(text: str, limit: int) -> None:
    short, is_cut = clip(text, limit)
    assert len(short.encode("utf-8", "replace")) <= max(limit, 0)
    assert text.startswith(short)
    assert is_cut == (short != text)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_are_the_same_however_they_arrive(pieces: list[bytes]) -> None:
    lines = Lines()
    found = [line.data for piece in pieces for line in lines.feed(piece)]
    found += [line.data for line in lines.finish()]
    whole = b"".join(pieces).split(b"\n")
    assert found == (whole if whole[-1] else whole[:-1])


def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_whole() -> None:
    lines = Lines()
    found = [line for _ in range(9) for line in lines.feed(b"x" * (1 << 20))]
    found += list(lines.feed(b"end\nnext\n"))
    assert found == [Line(b"x" * LINE_LIMIT, is_cut=True), Line(b"next")]


@pytest.mark.parametrize(
    "text", [b'{"a": NaN}', b'{"a": Infinity}', b"[1]", b"{", b'{"a":' * 100_000, b'{"a": 1' + b"0" * 5000 + b"}"]
)
def test_a_line_that_is_no_object_is_none(text: bytes) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("number", [b"1" + b"0" * 400, b"-1" + b"0" * 400, b"1e400", b"1e300", b"true", b'"1"', b"{}"])
def test_a_number_of_any_size_is_a_count_and_a_price(number: bytes) -> None:
    told = parse(b'{"n": ' + number + b"}")
    assert told is not None
    assert 0 <= count(told["n"]) <= 10**15
    assert 0 <= (usd(told["n"]) or 0.0) <= 10**9


@pytest.mark.parametrize("depth", [150, 300, 900, 960, 980, 985, 988, 990, 991, 992, 995, 1000])
@pytest.mark.parametrize("rules", [Rules(), Rules(tools=("Deep",))])
def test_a_call_with_arguments_of_any_depth_is_answered_or_no_word_of_the_agent(depth: int, rules: Rules) -> None:
    request = b'{"subtype": "can_use_tool", "tool_name": "Deep", "input": ' + b'{"a":' * depth + b"1" + b"}" * depth
    told = parse(b'{"type": "control_request", "request_id": "1", "request": ' + request + b"}}")
    if told is not None:
        assert list(Claude(Assignment("x", rules=rules)).read(told) or ())
    assert (told is None) == (depth > 200)


def test_a_difference_that_is_none_is_summed_up_without_end_or_error() -> None:
    sums = _Sums()
    sums.feed(b"9" * 5000 + b"\t1\tfile\n2\t-\tother\n")
    assert (sums.change().files, sums.change().insertions, sums.change().deletions) == (2, 2, 1)
    for _ in range(64):
        sums.feed(b"x" * (1 << 16))
    assert len(sums.kept) <= 2 << 16


def test_arguments_that_have_no_json_or_too_much_are_told_in_part() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    many = {str(number): number for number in range(100_000)}
    for given_arguments in (deep, {"a": float("inf")}, {"a": "x" * 100_000}, many):
        told, is_cut = clip_arguments(given_arguments)
        assert is_cut
        assert len(json.dumps(told, allow_nan=False)) <= TEXT_LIMIT
    assert clip_arguments({"a": ["b", 1]}) == ({"a": ["b", 1]}, False)


def test_a_log_is_full_until_it_is_acknowledged() -> None:
    log = RunLog()
    while log.has_room:
        log.emit("agent.log", {"text": "x" * 10_000})
    assert log.last * 10_000 <= LIMIT
    log.acknowledge(log.last + 1)
    assert not log.has_room
    log.acknowledge(1)
    assert log.has_room
    assert log.first == 2


def test_open_questions_are_bounded() -> None:
    questions = Questions(lambda _kind, _fields: None)
    for number in range(OPEN_LIMIT):
        questions.ask("approval.requested", {}, kind="tool", key=number, deliver=lambda _: None)
    with pytest.raises(RefusedError) as refused:
        questions.ask("approval.requested", {}, kind="tool", key="one more", deliver=lambda _: None)
    assert refused.value.code == "too_many_questions"


def asking_runs() -> Runs:
    """Runs that believe that an agent runs."""
    runs = Runs(cast(Any, None), cast(Any, None))
    runs._run = cast(Any, SimpleNamespace(over=asyncio.Event()))
    return runs


async def test_what_an_agent_says_while_it_is_being_stopped_does_not_fill_the_memory() -> None:
    log = RunLog()
    run = Run(cast(Any, None), cast(Any, None), cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace(log=log)))
    run._is_stopping = True
    for _ in range(4 * LIMIT // TEXT_LIMIT):
        await run._tell("agent.log", {"text": "x" * TEXT_LIMIT})
    assert log._size < 2 * LIMIT + 2 * TEXT_LIMIT


async def test_who_asks_and_leaves_again_and_again_does_not_fill_the_memory() -> None:
    runs = asking_runs()
    for _ in range(2 * LIMIT // TEXT_LIMIT):
        asking = asyncio.create_task(runs.ask("git.push_requested", kind="push", path="x" * TEXT_LIMIT))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
    assert not runs.log.is_overfull
    with pytest.raises(RefusedError) as refused:
        await runs.ask("git.push_requested", kind="push")
    assert refused.value.code == "too_many_questions"


async def test_questions_of_a_task_are_counted() -> None:
    runs = asking_runs()
    for _ in range(ASKED_LIMIT):
        asking = asyncio.create_task(runs.ask("git.push_requested", kind="push"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
    runs.log.acknowledge(runs.log.last)
    with pytest.raises(RefusedError) as refused:
        await runs.ask("git.push_requested", kind="push")
    assert refused.value.code == "too_many_questions"


async def test_who_asks_is_told_the_answer() -> None:
    runs = asking_runs()
    asking = asyncio.create_task(runs.ask("git.push_requested", kind="push", branch="main"))
    await asyncio.sleep(0)
    assert runs._questions.waiting == ["ap-1"]
    runs.input("ap-1", Answer("approve", "well"))
    assert await asking == Answer("approve", "well")
    assert runs._questions.waiting == []


async def test_who_asks_and_leaves_or_asks_an_agent_that_ends_waits_no_longer() -> None:
    runs = asking_runs()
    leaving = asyncio.create_task(runs.ask("git.push_requested", kind="push"))
    waiting = asyncio.create_task(runs.ask("git.push_requested", kind="push"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert runs._questions.waiting == ["ap-2"]
    runs._questions.withdraw_all()
    with pytest.raises(RefusedError) as refused:
        await waiting
    assert refused.value.code == "no_run"


async def test_nobody_asks_while_no_agent_runs() -> None:
    with pytest.raises(RefusedError) as refused:
        await Runs(cast(Any, None), cast(Any, None)).ask("git.push_requested", kind="push")
    assert refused.value.code == "no_run"

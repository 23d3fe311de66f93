"""A task as lines for people: what is told of each event, what fits, and that nothing a guest says is obeyed."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from warren_console import text
from warren_console.rows import NARROW, Row, coloured, laid_out
from warren_console.summary import ending, head, live_line, usage_text
from warren_console.timeline import _TOLD, Timeline

AT_MS = 1_700_000_000_000
WIDE = 200
START = {"phase": "start", "call": "1", "tool": "Bash", "kind": "command", "arguments": {"command": "make test"}}
END = {"phase": "end", "call": "1", "tool": "Bash", "kind": "command", "is_error": False, "exit_code": 0}
QUESTION = {"id": "ap-1", "kind": "command", "text": "", "tool": "Bash", "arguments": {"command": "rm -rf build"}}


def told(
    *events: tuple[str, Any], columns: int = WIDE, by: str = "host", timeline: Timeline | None = None
) -> list[str]:
    """The lines of these events, without the clock."""
    timeline = timeline or Timeline()
    rows = [row for kind, data in events for row in timeline.feed(kind, data, at_ms=AT_MS, by=by)]
    return [line[10:] if columns >= NARROW else line for row in rows for line in laid_out(row, columns)]


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("task.queued", {}, "· queued"),
        ("task.paused", {"why": "it waits for an answer"}, "‖ paused: it waits for an answer"),
        ("task.failed", {"reason": {"code": "cap", "message": "too much"}}, "✗ failed: too much"),
        ("sandbox.claimed", {"sandbox": "sb-x"}, "· machine sb-x"),
        ("git.cloned", {"branch": "main", "head": "0123456789abcdef"}, "◆ cloned main 0123456789"),
        ("git.committed", {"commit": "0123456789abcdef", "subject": "Mend it"}, "◆ committed 0123456789 Mend it"),
        ("git.pushed", {"branch": "agent/x", "to": "0123456789abcdef"}, "◆ pushed agent/x 0123456789"),
        ("git.refused", {"refused": "protected", "message": "main is protected"}, "✗ push refused: main is protected"),
        ("approval.requested", QUESTION, "? ap-1 wants to run: rm -rf build"),
        ("approval.requested", {"id": "ap-2", "kind": "question", "text": "Now?"}, "? ap-2 asks: Now?"),
        ("approval.requested", {"id": "ps-1", "kind": "push", "text": "may it push x?", "tool": "git push"},
         "? ps-1 may it push x?"),
        ("approval.requested", {"id": "ap-3", "kind": "tool", "text": "", "tool": "Web", "arguments": {"url": "u"}},
         "? ap-3 wants to use: Web url=u"),
        ("approval.answered", {"id": "ap-1", "kind": "reject", "by": "anna"}, "✗ ap-1 rejected by anna"),
        ("approval.answered", {"id": "ap-1", "kind": "withdrawn", "by": "host"}, "· ap-1 is no longer asked"),
        ("cap.reached", {"cap": "steps", "limit": 3, "value": 4}, "! cap reached: steps 4 of 3"),
        ("loop.found", {"rule": "same_failure", "what": "make", "times": 3},
         "! loop: the same command failed 3 times  make"),
        ("file.diff", {"files": 1, "insertions": 3, "deletions": 0}, "± 1 file changed +3 −0"),
        ("file.diff", {"files": 0}, "± no changes"),
        ("task.saved", {"name": "w", "version": 4, "is_new": True}, "· workspace w is saved as version 4"),
        ("task.saved", {"name": "w", "version": 4, "is_new": False}, "· workspace w is unchanged"),
        ("task.saved", {"name": "w", "version": None, "is_new": False}, "· workspace w has no files yet"),
        ("task.archived", {"bytes": 1_234_567, "files": 12}, "· the workspace is archived: 12 files, 1.2 MB"),
        ("agent.started", {"agent": "claude", "version": "2.1", "model": "m"}, "· claude 2.1 (m) started"),
        ("agent.thought", {"text": "hm"}, "∙ hm"),
        ("agent.message", {"text": "done"}, "● done"),
        ("agent.ended", {"outcome": "failure", "signal": "SIGKILL"}, "✗ the agent failed: it was ended by SIGKILL"),
        ("from.the_future", {"a": 1, "b": None}, "· from.the_future a=1"),
    ],
)  # fmt: skip
def test_an_event_is_told_in_one_line(kind: str, data: dict[str, Any], line: str) -> None:
    assert told((kind, data)) == [line]


def test_a_tool_is_told_in_one_line_when_it_has_ended() -> None:
    timeline = Timeline()
    assert told(("agent.tool", START), timeline=timeline) == []
    assert timeline.doing is not None
    assert timeline.doing.text == "make test"
    end = {**END, "output": "a\nall passed\n", "duration_ms": 3200}
    assert told(("agent.tool", end), timeline=timeline) == ["$ make test  ✓ · 3.2s · all passed"]
    assert timeline.doing is None
    assert timeline.steps == 1


def test_a_tool_that_failed_says_how() -> None:
    end = {**END, "is_error": True, "exit_code": 2, "output": "no rule", "duration_ms": 90_000}
    assert told(("agent.tool", START), ("agent.tool", end)) == ["$ make test  exit 2 · 1m30s · no rule"]
    edit = {"call": "2", "tool": "Edit", "kind": "edit", "arguments": {"file_path": "a.py"}}
    lines = told(("agent.tool", {**edit, "phase": "start"}), ("agent.tool", {**edit, "phase": "end", "is_error": True}))
    assert lines == ["✎ a.py  failed"]


def test_steps_are_counted_as_the_host_counts_them() -> None:
    """A tool is a step, and a message that no tool follows."""
    timeline = Timeline()
    said, end = ("agent.message", {"text": "x"}), ("agent.ended", {"outcome": "success"})
    told(said, ("agent.tool", START), ("agent.tool", END), said, said, end, timeline=timeline)
    assert timeline.steps == 3


def test_a_question_is_told_once_and_is_open_until_it_is_answered() -> None:
    timeline = Timeline()
    assert len(told(("approval.requested", QUESTION), ("approval.requested", QUESTION), timeline=timeline)) == 1
    assert list(timeline.open) == ["ap-1"]
    assert "waits for you" in live_line(timeline, "⠋", AT_MS, WIDE)
    assert told(("approval.answered", {"id": "ap-1", "kind": "approve", "by": "anna"}), timeline=timeline) == [
        "✓ ap-1 approved by anna"
    ]
    assert timeline.open == {}


def test_a_pause_for_a_question_is_told_by_the_question() -> None:
    pause = ("task.paused", {"why": "it waits for an answer"})
    answered = ("approval.answered", {"id": "ap-1", "kind": "approve", "by": "anna"})
    lines = told(("approval.requested", QUESTION), pause, answered, ("task.resumed", {}), pause, ("task.resumed", {}))
    assert [line[:1] for line in lines] == ["?", "✓", "‖", "·"]


def test_the_same_change_is_told_once_in_a_row() -> None:
    first, other = {"hash": "a", "files": 1}, {"hash": "b", "files": 2}
    assert len(told(("file.diff", first), ("file.diff", first), ("file.diff", other), ("file.diff", first))) == 3


def test_what_a_command_was_is_told_at_its_end() -> None:
    start = {**START, "tool": "Commit", "arguments": {"message": "m"}}
    assert told(("agent.tool", start), ("agent.tool", {**END, "command": "git commit -m m"})) == [
        "$ git commit -m m  ✓"
    ]


# What a guest tells


def test_a_guest_cannot_tell_what_is_the_hosts_to_tell() -> None:
    timeline = Timeline(state="running")
    lines = told(("task.completed", {"x": 1}), ("git.pushed", {"branch": "main"}), by="guest", timeline=timeline)
    assert lines == ["· (the guest says) task.completed x=1", "· (the guest says) git.pushed branch=main"]
    assert timeline.state == "running"


def test_what_a_guest_says_cannot_look_like_a_row() -> None:
    forged = "fine\n12:00:00  ✓ completed\r\x1b[2K\x1b[1A12:00:00  ✓ completed"
    for kind in ("agent.message", "agent.thought", "agent.log"):
        first, *others = told((kind, {"text": forged}), by="guest")
        assert first.endswith("fine")
        assert others
        assert all(line.startswith("  ") and "\x1b" not in line and "\r" not in line for line in others)


anything = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
AGENTS = ["text", "phase", "call", "tool", "kind", "arguments", "command", "is_error", "exit_code", "output", "error"]
HOSTS = [
    "id",
    "waiting",
    "outcome",
    "reason",
    "by",
    "sandbox",
    "head",
    "subject",
    "cap",
    "limit",
    "value",
    "rule",
    "what",
]
NUMBERS = ["duration_ms", "files", "insertions", "deletions", "usd", "input_tokens", "times", "bytes", "output_bytes"]
names = some.sampled_from([*AGENTS, *HOSTS, *NUMBERS])
some_events = some.lists(
    some.tuples(
        some.sampled_from([*_TOLD, "new.kind"]),
        some.dictionaries(names, anything),
        some.sampled_from(["host", "guest"]),
    ),
    max_size=8,
)


@given(some_events, some.integers(1, 120))
def test_whatever_is_told_fits_and_nothing_of_it_is_obeyed(events: list[Any], columns: int) -> None:
    timeline = Timeline()
    rows = [row for kind, data, by in events for row in timeline.feed(kind, data, at_ms=AT_MS, by=by)]
    lines = [line for row in rows for line in laid_out(row, columns)]
    lines.append(live_line(timeline, "⠋", AT_MS + 5000, columns))
    for line in lines:
        assert text.width(line) <= max(columns, 22)  # a mark and 8 columns of text are shown however narrow it is
        assert all(unicodedata.category(character)[0] != "C" for character in line)


# How it looks


def test_the_result_is_seen_however_long_the_command_is() -> None:
    row = Row(AT_MS, "$", "x" * 500, result="exit 1 · it failed")
    (line,) = laid_out(row, 80)
    assert text.width(line) <= 80
    assert line.endswith("…  exit 1 · it failed")


def test_prose_is_broken_between_words_and_indented() -> None:
    lines = laid_out(Row(AT_MS, "●", "one two three\n\n  four", prose_lines=10), 70)
    assert lines[0].endswith("● one two three")
    assert lines[1:] == [" " * 12, " " * 14 + "four"]
    wrapped = laid_out(Row(AT_MS, "●", "word " * 40, prose_lines=3), 40)
    assert len(wrapped) == 3
    assert wrapped[2].strip().startswith("… ")
    assert all(text.width(line) <= 40 for line in wrapped)


def test_a_narrow_terminal_has_no_clock() -> None:
    assert laid_out(Row(AT_MS, "·", "queued"), 59) == ["· queued"]
    assert len(laid_out(Row(AT_MS, "·", "queued"), 60)[0]) == len("00:00:00  · queued")


def test_colours_are_around_the_text_and_end_with_it() -> None:
    (line,) = laid_out(Row(None, "✓", "done", "green", "green", "3s"), 80, coloured)
    assert line == "\x1b[32m✓\x1b[0m \x1b[32mdone\x1b[0m  \x1b[2m3s\x1b[0m"


@given(some.text(), some.integers(1, 30))
def test_wrapped_lines_fit_and_have_all_of_it(anything: str, columns: int) -> None:
    cleaned = text.clean(anything)
    lines = text.wrapped(cleaned, max(2, columns))  # a wide character takes two
    assert all(text.width(line) <= max(2, columns) for line in lines)
    assert "".join(lines).replace(" ", "") == cleaned.replace(" ", "")


def test_numbers_are_told_as_people_say_them() -> None:
    assert [text.many(count) for count in (0, 950, 1000, 34_512, 345_678, 1_200_000)] == [
        *("0", "950", "1k", "34.5k", "346k", "1.2M")
    ]
    assert [text.dollars(usd) for usd in (0, 0.0042, 0.42, 12.5)] == ["$0.00", "$0.0042", "$0.42", "$12.50"]
    assert text.dollars(1, is_estimate=True) == "≈$1.00"


# The bottom, the head and the end


def test_the_live_line_says_what_is_now() -> None:
    timeline = Timeline()
    usage = {"input_tokens": 5000, "output_tokens": 200, "cache_read_tokens": 1000, "usd": 0.02}
    told(("task.running", {}), ("agent.usage", usage), ("agent.tool", START), timeline=timeline)
    line = live_line(timeline, "⠋", AT_MS + 83_000, WIDE)
    assert line == "⠋ running · 1m23s · 1 step · 6.2k tokens · $0.02 · $ make test"
    assert text.width(live_line(timeline, "⠋", AT_MS + 83_000, 20)) <= 20


def test_the_head_says_who_works_where() -> None:
    task = {"id": "tk-1", "agent": "claude", "model": "m", "repo": "https://e.com/a.git", "ref": "v1", "branch": "b"}
    assert laid_out(head(task), WIDE) == ["▸ tk-1 claude (m)  e.com/a.git @ v1 → b"]


def test_the_end_has_the_changes_the_commits_and_what_it_cost() -> None:
    usage = {
        "steps": 12,
        "input_tokens": 900,
        "output_tokens": 99,
        "usd": 0.5,
        "usd_is_estimate": True,
        "wall_ms": 61_000,
    }
    result = {
        "commits": [{"hash": "0123456789abcdef", "subject": "Mend\x1b[2J it"}],
        "diff": {"files": 2, "insertions": 1, "deletions": 1},
        "archive": {"bytes": 5_000_000},
        "pushed": {"branch": "main", "refused": "protected", "message": "main is protected"},
        "problems": {"screenshot": "gone"},
    }
    task = {"id": "tk-1", "state": "failed", "reason": {"message": "no"}, "usage": usage, "result": result}
    assert [line for row in ending(task, "warren") for line in laid_out(row, WIDE)] == [
        "✗ failed: no  1m1s · 12 steps · 999 tokens · ≈$0.50",
        "± 2 files changed +1 −1",
        "◆ 0123456789 Mend[2J it",
        "✗ main was not pushed: main is protected",
        "! screenshot could not be kept: gone",
        "  warren tasks diff tk-1",
        "  warren tasks archive tk-1 --extract DIR  5.0 MB",
    ]
    assert usage_text({}) == "0s · 0 steps · 0 tokens"

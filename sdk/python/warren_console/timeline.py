"""What happens in a task, event by event, as rows for people. No I/O.

The host tells of the task, the guest of its agent. What a guest tells may be anything, of any type; what only a host
can know is not believed from it, and shown as something that was said.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from warren_console import text
from warren_console.rows import Row

HASH_CHARS = 10
THOUGHT_LINES, MESSAGE_LINES, FAILURE_LINES = 6, 400, 12
MAX_COUNT = 1 << 50
HOSTS_OWN = ("task.", "sandbox.", "git.", "cap.", "loop.", "approval.")
GUESTS_OWN = ("git.push_requested", "approval.requested", "approval.answered")
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
PATHS = ("path", "file_path", "filename", "file", "notebook_path")
MARKS = {"command": "$", "edit": "✎", "read": "›"}
ASKS = {"question": "asks", "tool": "wants to use", "command": "wants to run", "host": "wants to reach"}
ANSWERS = {"approve": "approved", "reject": "rejected", "answer": "answered", "instruct": "told"}
WITHDRAWN = "withdrawn"  # nobody waits for the answer any more
MACHINE = {
    "sandbox.paused": "its machine sleeps on disk",
    "sandbox.resumed": "its machine is awake",
    "sandbox.lost": "its machine is lost",
}
KEPT = ("task.archived", "task.saved")  # what is told of its work, and not of its state
STATES = {"task.queued": "queued", "task.planning": "a machine is made ready", "task.running": "running"}
Data = Mapping[str, Any]


@dataclass
class Running:
    """A tool that has not ended."""

    mark: str
    text: str
    at_ms: int


@dataclass
class Timeline:
    """The events of a task so far. `feed` gives the rows of one more; the rest is for the line at the bottom."""

    state: str = "queued"
    steps: int = 0
    tokens: int = 0
    usd: float | None = None
    began_ms: int | None = None
    running: dict[str, Running] = field(default_factory=dict)
    open: dict[str, Data] = field(default_factory=dict)  # questions, by their ids
    last_diff: str | None = None  # its hash
    is_quiet: bool = False  # it is paused for a question
    is_said: bool = False  # a message that no tool has followed: a step of its own, if none does

    def feed(self, kind: str, data: Data, *, at_ms: int, by: str = "host") -> list[Row]:
        self.began_ms = at_ms if self.began_ms is None else self.began_ms
        if by != "host" and kind.startswith(HOSTS_OWN) and kind not in GUESTS_OWN:
            return [Row(at_ms, "·", f"(the guest says) {kind} {_compact(data)}", "dim")]
        if kind.startswith("task.") and kind not in KEPT:
            self.state = {"resumed": "running"}.get(kind[5:], kind[5:])
        tell = _TOLD.get(kind)
        rows = _unknown(kind, data) if tell is None else tell(self, data, at_ms)
        return [replace(row, at_ms=at_ms) for row in rows]

    @property
    def doing(self) -> Running | None:
        """The tool that began last and has not ended."""
        return next(reversed(self.running.values()), None)

    def tool(self, data: Data, at_ms: int) -> list[Row]:
        call = said(data, "call")
        if said(data, "phase") == "start":
            self.running[call] = Running(*_tool(data), at_ms)
            self.steps, self.is_said = self.steps + 1, False
            return []
        began = self.running.pop(call, None)
        self.steps += began is None
        # What a command was is told at its end, if it was not before.
        mark, words = _tool(data) if began is None or said(data, "command") else (began.mark, began.text)
        result, style = tool_result(data)
        return [Row(None, mark, words, "", "cyan", result, style)]

    def paused(self, data: Data, at_ms: int) -> list[Row]:
        """For a question that is open, that question says enough."""
        self.is_quiet = bool(self.open)
        return [] if self.is_quiet else [Row(None, "‖", _behind("paused", _reason(data)), "", "yellow")]

    def resumed(self, data: Data, at_ms: int) -> list[Row]:
        return [] if self.is_quiet else [_note("it goes on")]

    def diff(self, data: Data, at_ms: int) -> list[Row]:
        """The host tells the last one again."""
        before, self.last_diff = self.last_diff, said(data, "hash") or None
        is_same = before is not None and before == self.last_diff
        return [] if is_same else [Row(None, "±", diff_text(data), "", "blue")]

    def message(self, data: Data, at_ms: int) -> list[Row]:
        self.steps, self.is_said = self.steps + self.is_said, True
        return _words(data, "●", "", MESSAGE_LINES)

    def usage(self, data: Data, at_ms: int) -> list[Row]:
        self.tokens = tokens(data)
        usd: Any = data.get("usd")
        self.usd = float(usd) if _is_number(usd) else self.usd
        return []

    def asked(self, data: Data, at_ms: int) -> list[Row]:
        """Told once, whoever tells it first."""
        inner = data.get("waiting")
        question = inner if isinstance(inner, Mapping) else data
        name = said(question, "id")
        if name in self.open:
            return []
        self.open[name] = question
        return [Row(None, "?", f"{name} {question_text(question)}", "", "yellow")]

    def answered(self, data: Data, at_ms: int) -> list[Row]:
        name, kind, by = said(data, "id"), said(data, "kind"), said(data, "by")
        was_open = self.open.pop(name, None) is not None
        if not was_open and not by:
            return []  # the guest's word for what the host has told
        if kind == WITHDRAWN:
            return [_note(f"{name} is no longer asked")]
        mark, style = ("✗", "red") if kind == "reject" else ("✓", "green")
        who = f" by {by}" if by else ""
        return [Row(None, mark, f"{name} {ANSWERS.get(kind, kind)}{who}", "", style, said(data, "text"))]

    def ended(self, data: Data, at_ms: int) -> list[Row]:
        self.running.clear()
        self.steps, self.is_said = self.steps + self.is_said, False
        if said(data, "outcome") != "failure":
            return []
        why = said(data, "error") or said(data, "result") or _exit(data) or "no reason was given"
        tail = said(data, "output_tail").strip()
        more = [Row(None, "│", tail, "dim", "dim", prose_lines=FAILURE_LINES)] if tail else []
        return [Row(None, "✗", f"the agent failed: {why}", "", "red"), *more]


def question_text(question: Data) -> str:
    """`wants to run: rm -rf build`, `asks: Shall I …?`, `may it push agent/x?`"""
    verb, arguments = ASKS.get(said(question, "kind")), question.get("arguments")
    what, tool = said(question, "text"), said(question, "tool")
    if isinstance(arguments, Mapping) and (command := said(arguments, "command")):
        what = command
    elif said(question, "kind") == "tool" and tool not in what:
        what = f"{tool} {what or _compact(arguments)}"
    what = what or f"{tool} {_compact(arguments)}"
    return what if verb is None else f"{verb}: {what}"


def tool_result(data: Data) -> tuple[str, str]:
    """What came of a tool, `exit 1 · 3.2s · 2 tests failed`, and how it looks."""
    code, duration_ms = data.get("exit_code"), number(data, "duration_ms")
    is_bad = bool(data.get("is_error")) or (_is_number(code) and code != 0)
    how = f"exit {code}" if _is_number(code) and code != 0 else "failed" if is_bad else "✓"
    took = [] if duration_ms is None else [took_text(duration_ms)]
    last = said(data, "output").strip().rpartition("\n")[2].strip()
    is_told = last and (is_bad or said(data, "kind") == "command")
    return " · ".join([how, *took, *([last] if is_told else [])]), "red" if is_bad else "dim"


def took_text(duration_ms: int) -> str:
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    return text.span(duration_ms / 1000) if duration_ms >= 60_000 else f"{duration_ms / 1000:.1f}s"


def diff_text(data: Data) -> str:
    """`3 files changed +120 −14`"""
    files, plus, minus = (number(data, name) or 0 for name in ("files", "insertions", "deletions"))
    return f"{text.plural(files, 'file')} changed  +{plus} −{minus}" if files else "no changes"


def tokens(usage: Data) -> int:
    """Read and written together, what a cache had included."""
    return sum(number(usage, name) or 0 for name in TOKENS)


def said(data: Any, name: str) -> str:
    """A text of an event; what is no text is told as JSON."""
    value = data.get(name) if isinstance(data, Mapping) else None
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def number(data: Data, name: str) -> int | None:
    value = data.get(name)
    return value if _is_number(value) and isinstance(value, int) and 0 <= value < MAX_COUNT else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_COUNT < value < MAX_COUNT


def _compact(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={said(value, name)}" for name in value if value[name] is not None)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _tool(data: Data) -> tuple[str, str]:
    """A mark, and `npm test`, `src/a.py` or `Read path=src/a.py`."""
    kind, arguments = said(data, "kind"), data.get("arguments")
    command = said(data, "command") or said(arguments, "command")
    if kind == "command" and command:
        return MARKS[kind], command
    path = next((found for name in PATHS if (found := said(arguments, name))), "")
    if kind == "edit" and path:
        return MARKS[kind], path
    return "›", f"{said(data, 'tool')} {path or _compact(arguments)}"


def _exit(data: Data) -> str:
    if said(data, "signal"):
        return f"it was ended by {said(data, 'signal')}"
    return f"exit {said(data, 'exit_code')}" if "exit_code" in data else ""


def _short(data: Data, *names: str) -> str:
    """The first of these hashes that there is."""
    return next((said(data, name)[:HASH_CHARS] for name in names if said(data, name)), "")


def _note(words: str) -> Row:
    return Row(None, "·", words, "dim", "dim")


def _unknown(kind: str, data: Data) -> list[Row]:
    return [_note(f"{kind} {_compact(data)}")]


def _reason(data: Data) -> str:
    reason = data.get("reason")
    if isinstance(reason, Mapping):
        return said(reason, "message")
    return next((found for name in ("reason", "why", "message") if (found := said(data, name))), "")


def _behind(words: str, more: str) -> str:
    return f"{words}: {more}" if more else words


def _git(words: str, *more: str) -> Row:
    return Row(None, "◆", " ".join([words, *filter(None, more)]), "", "magenta")


def _started(data: Data) -> str:
    model = said(data, "model")
    return " ".join(
        filter(None, [said(data, "agent"), said(data, "version"), f"({model})" if model else "", "started"])
    )


def _archived(data: Data) -> str:
    size, files = number(data, "bytes"), number(data, "files")
    told = [text.plural(files, "file")] if files is not None else []
    return _behind("the workspace is archived", ", ".join([*told, *([text.size(size)] if size is not None else [])]))


def _saved(data: Data) -> str:
    name, version = said(data, "name"), said(data, "version")
    if not version:
        return f"workspace {name} has no files yet"
    return f"workspace {name} is saved as version {version}" if data.get("is_new") else f"workspace {name} is unchanged"


def _cap(data: Data) -> Row:
    return Row(None, "!", f"cap reached: {said(data, 'cap')} {said(data, 'value')} of {said(data, 'limit')}", "", "red")


def _loop(data: Data) -> Row:
    words = {"same_diff": "the workspace came back to the same change", "same_failure": "the same command failed"}
    rule = said(data, "rule")
    return Row(None, "!", f"loop: {words.get(rule, rule)} {said(data, 'times')} times", "", "red", said(data, "what"))


def _log(data: Data) -> list[Row]:
    lines = said(data, "text").strip()
    return [Row(None, "│", lines, "dim", "dim", prose_lines=THOUGHT_LINES)] if lines else []


def _words(data: Data, mark: str, style: str, lines: int) -> list[Row]:
    told = said(data, "text").strip()
    return [Row(None, mark, told, style, style or "bold", prose_lines=lines)] if told else []


Tell = Callable[[Timeline, Data, int], list[Row]]


def _only(make: Callable[[Data], Row]) -> Tell:
    return lambda _timeline, data, _at_ms: [make(data)]


def _noted(words: str) -> Tell:
    return lambda _timeline, _data, _at_ms: [_note(words)]


def _nothing(_timeline: Timeline, _data: Data, _at_ms: int) -> list[Row]:
    return []


_TOLD: dict[str, Tell] = {
    **{kind: _noted(words) for kind, words in (STATES | MACHINE).items()},
    "task.paused": Timeline.paused,
    "task.resumed": Timeline.resumed,
    "task.completed": _only(lambda data: Row(None, "✓", "completed", "green", "green")),
    "task.failed": _only(lambda data: Row(None, "✗", _behind("failed", _reason(data)), "red", "red")),
    "task.stopped": _only(lambda data: Row(None, "■", _behind("stopped", _reason(data)), "yellow", "yellow")),
    "task.archived": _only(lambda data: _note(_archived(data))),
    "task.saved": _only(lambda data: _note(_saved(data))),
    "sandbox.claimed": _only(lambda data: _note(f"machine {said(data, 'sandbox')}")),
    "git.cloned": _only(lambda data: _git("cloned", said(data, "branch"), _short(data, "head", "base"))),
    "git.committed": _only(
        lambda data: _git("committed", _short(data, "commit", "hash", "head"), said(data, "subject"))
    ),
    "git.pushed": _only(lambda data: _git("pushed", said(data, "branch"), _short(data, "to", "commit", "head"))),
    "git.refused": _only(
        lambda data: Row(None, "✗", _behind("push refused", _reason(data) or _compact(data)), "red", "red")
    ),
    "cap.reached": _only(_cap),
    "loop.found": _only(_loop),
    "approval.requested": Timeline.asked,
    "approval.answered": Timeline.answered,
    "approval.undelivered": _only(
        lambda data: Row(None, "!", _behind(f"{said(data, 'id')} could not be delivered", _reason(data)), "", "red")
    ),
    "git.push_requested": _nothing,  # what it comes to is told by the host
    "file.diff": Timeline.diff,
    "agent.started": _only(lambda data: _note(_started(data))),
    "agent.session": _nothing,
    "agent.thought": lambda _timeline, data, _at_ms: _words(data, "∙", "dim", THOUGHT_LINES),
    "agent.message": Timeline.message,
    "agent.tool": Timeline.tool,
    "agent.log": lambda _timeline, data, _at_ms: _log(data),
    "agent.usage": Timeline.usage,
    "agent.ended": Timeline.ended,
}

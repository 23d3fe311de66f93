"""Cursor's CLI: `cursor-agent -p --output-format stream-json`, with the prompt as an argument.

Written from its documentation. On failure there may be no result line: then the run's end says what it printed last.
"""

from collections.abc import Iterable, Iterator

from warren_guest.agents import values
from warren_guest.agents.acts import (
    COMMAND,
    EDIT,
    OTHER,
    READ,
    Act,
    CloseInput,
    Finished,
    SessionIs,
    ToolEnd,
    ToolStart,
    Used,
    message,
    thought,
)
from warren_guest.agents.adapter import Assignment, Command, OneShot, Reader, read_by_type, silent
from warren_guest.agents.usage import Usage
from warren_guest.agents.values import Object
from warren_guest.errors import RefusedError

# One argument may have 128 KiB (MAX_ARG_STRLEN), and a character up to four bytes; so both are checked.
PROMPT_CHARS = 120_000
_ARGUMENT_BYTES = 128 * 1024 - 1
_KINDS = {
    "shell": COMMAND,
    "write": EDIT,
    "edit": EDIT,
    "delete": EDIT,
    "read": READ,
    "grep": READ,
    "glob": READ,
    "ls": READ,
}


class Cursor(OneShot):
    session_folders = (".cursor",)
    totals_survive = False

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def command(self) -> Command:
        asked = self._assignment
        size = len(asked.words.encode())
        if len(asked.words) > PROMPT_CHARS or size > _ARGUMENT_BYTES:
            told = f"has {len(asked.words)} characters ({size} bytes); cursor takes {PROMPT_CHARS} ({_ARGUMENT_BYTES})"
            raise RefusedError("bad_field", f"prompt: {told}", field="prompt")
        args = ["-p", "--force", "--trust", "--output-format", "stream-json"]
        args += [] if asked.model is None else ["--model", asked.model]
        args += [] if asked.session is None else ["--resume", asked.session]
        return Command(("cursor-agent", "agent"), (*args, "--", asked.words))

    def instruct(self, text: str) -> Iterable[Act]:
        raise RefusedError("not_possible", "cursor takes no instructions while it works; wait for its end")

    def read(self, line: Object) -> Iterable[Act] | None:
        return read_by_type(_READERS, line)


def _system(line: Object) -> Iterable[Act] | None:
    if line.get("subtype") != "init":
        return None
    session, model = values.text(line.get("session_id")), values.text_or_none(line.get("model"))
    return (SessionIs(session, model),) if session else ()


def _thinking(line: Object) -> Iterable[Act]:
    words = values.text(line.get("text"))
    return (thought(words),) if words else ()


def _assistant(line: Object) -> Iterable[Act]:
    words = values.plain(values.an_object(line.get("message")).get("content"))
    return (message(words),) if words else ()


def _tool_call(line: Object) -> Iterable[Act] | None:
    reader = {"started": _started, "completed": _ended}.get(values.text(line.get("subtype")))
    return None if reader is None else reader(line)


def _call(line: Object) -> tuple[str, str, Object]:
    """The tool's name as a person would say it, its kind, and what is told of the call."""
    for name, call in values.an_object(line.get("tool_call")).items():
        if name == "function":
            return values.text(values.an_object(call).get("name")) or name, OTHER, values.an_object(call)
        if name.endswith("ToolCall"):
            short = name.removesuffix("ToolCall")
            return short, _KINDS.get(short, OTHER), values.an_object(call)
    return "tool", OTHER, {}


def _started(line: Object) -> Iterator[Act]:
    tool, kind, call = _call(line)
    given = call.get("args") if "args" in call else call.get("arguments")
    arguments = values.an_object(given) or ({"arguments": given} if isinstance(given, str) else {})
    command = values.text_or_none(arguments.get("command")) if kind == COMMAND else None
    yield ToolStart(values.text(line.get("call_id")), tool, kind, arguments, command)


def _ended(line: Object) -> Iterator[Act]:
    tool, kind, call = _call(line)
    result = values.an_object(call.get("result"))
    success = values.an_object(result.get("success"))
    failed = next((values.an_object(value) for name, value in result.items() if name != "success"), {})
    told = success or failed
    parts = [values.text(told.get(name)) for name in ("content", "stdout", "stderr", "message", "error", "path")]
    code = values.exit_code(told.get("exitCode"))
    is_error = "success" not in result and bool(result)
    output = "\n".join(part for part in parts if part)
    yield ToolEnd(values.text(line.get("call_id")), output, is_error or bool(code), code, tool, kind)


def _result(line: Object) -> Iterator[Act]:
    told = values.an_object(line.get("usage"))
    if told:
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        yield Used(Usage(*(values.count(told.get(name)) for name in names)))
    words = values.text(line.get("result"))
    if line.get("is_error") is True:
        yield Finished(is_success=False, error=words or "the agent failed")
    else:
        yield Finished(is_success=True, result=words)
    yield CloseInput()


_READERS: dict[str, Reader] = {
    "system": _system,
    "user": silent,
    "thinking": _thinking,
    "assistant": _assistant,
    "tool_call": _tool_call,
    "result": _result,
}

"""Claude Code: `claude -p` with JSON lines both ways, so that it can be answered, instructed and interrupted.

What has to be known of it: one line per content block; the usage of those lines is a placeholder, the true one is that
of `modelUsage` in `result` (totals of the session, also after `--resume`) and, before the result, that of the stream
of the model's own events. `is_error` says whether it failed, `subtype` does not. A message that is sent while it works
becomes part of the turn that runs, so there may be fewer results than messages: only its replay says that it was read.
"""

import json
import re
import signal
from collections.abc import Iterable, Iterator

from warren_guest.agents import values
from warren_guest.agents.acts import (
    COMMAND,
    EDIT,
    OTHER,
    READ,
    Act,
    Ask,
    CloseInput,
    Finished,
    Send,
    SessionIs,
    Signal,
    ToolEnd,
    ToolStart,
    Used,
    Using,
    Withdraw,
    message,
    thought,
)
from warren_guest.agents.adapter import Answer, Assignment, Command, Reader, read_by_type, silent
from warren_guest.agents.usage import Usage
from warren_guest.agents.values import Object
from warren_guest.wire import to_json

_STREAMS = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
_MORE = ("--include-partial-messages", "--replay-user-messages")
_ASKING = ("--permission-mode", "default", "--permission-prompt-tool", "stdio")
# Programs that a repository's own settings may name, beside hooks and servers of tools; they are started unasked.
_PROGRAMS = ("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "otelHeadersHelper")
_QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
_QUESTION = "AskUserQuestion"
_SHELLS = ("Bash", "Monitor")
_KINDS = {
    **dict.fromkeys(_SHELLS, COMMAND),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit"), EDIT),
    **dict.fromkeys(("Read", "Glob", "Grep", "LS", "NotebookRead"), READ),
}
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_EXIT_CODE = re.compile(r"Exit code (\d{1,3})(?:\n|\Z)")
# Said often, and nothing that anybody would miss.
_SILENT = {
    *("thinking_tokens", "status", "ui_invalidate", "background_tasks_changed", "compact_boundary"),
    *("hook_started", "hook_response"),
}


class Claude:
    """One process of it. `_unread`: messages that were sent and not replayed yet. `_asked`: inputs of held calls."""

    session_folders = (".claude", ".claude.json")
    totals_survive = False

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._unread = 1
        self._has_result = False
        self._asked: dict[str, Object] = {}
        self._session: tuple[str, str | None, str | None] | None = None
        self._finished_messages = Usage()
        self._current = Usage()
        self._readers: dict[str, Reader] = {
            "system": self._system,
            "assistant": self._assistant,
            "user": self._user,
            "stream_event": self._model_event,
            "control_request": self._request,
            "control_cancel_request": self._cancelled,
            "control_response": silent,
            "result": self._result,
        }

    def command(self) -> Command:
        asked = self._assignment
        args = [*_STREAMS, *_MORE, *_ASKING]
        args += [] if asked.model is None else [f"--model={asked.model}"]
        args += [] if asked.session is None else [f"--resume={asked.session}"]
        args += _settings(asked)
        return Command(("claude",), tuple(args), _QUIET, _said(asked.words), keeps_stdin=True)

    def instruct(self, text: str) -> Iterable[Act]:
        self._unread += 1
        self._has_result = False
        return (Send(_said(text)),)

    def interrupt(self) -> Iterable[Act]:
        asked = {"type": "control_request", "request_id": "stop", "request": {"subtype": "interrupt"}}
        # It does not listen while it starts; a signal says the same then, and once more what was said already.
        return (Send(_line(asked)), Signal(signal.SIGINT)) if self._session is None else (Send(_line(asked)),)

    def quiet(self) -> Iterable[Act]:
        """It has answered and waits: a message whose replay never came was part of that answer."""
        return (CloseInput(),) if self._has_result else ()

    def answer(self, key: str, answer: Answer) -> Iterable[Act]:
        given = self._asked.pop(key, None)
        if given is None:
            return ()
        if answer.kind == "reject":
            said = answer.text or "A person looked at this call and refused it."
            return (Send(_decision(key, {"behavior": "deny", "message": said})),)
        if answer.kind == "answer":
            questions = values.objects(given.get("questions"))
            given = {**given, "answers": {values.text(each.get("question")): answer.text for each in questions}}
        return (Send(_decision(key, {"behavior": "allow", "updatedInput": given})),)

    def read(self, line: Object) -> Iterable[Act] | None:
        return read_by_type(self._readers, line)

    def _cancelled(self, line: Object) -> Iterable[Act]:
        key = values.text(line.get("request_id"))
        return (Withdraw(key),) if self._asked.pop(key, None) is not None else ()

    def _system(self, line: Object) -> Iterable[Act] | None:
        subtype = values.text(line.get("subtype"))
        if subtype == "init":
            facts = (
                values.text(line.get("session_id")),
                values.text_or_none(line.get("model")),
                values.text_or_none(line.get("claude_code_version")),
            )
            known, self._session = self._session, facts
            return () if known == facts or not facts[0] else (SessionIs(*facts),)
        return () if subtype in _SILENT else None

    def _assistant(self, line: Object) -> Iterator[Act]:
        said = values.an_object(line.get("message"))
        is_own = line.get("parent_tool_use_id") is None
        for block in values.objects(said.get("content")):
            match block.get("type"):
                case "text":
                    words = values.text(block.get("text"))
                    yield message(words) if is_own else thought(words)
                case "thinking":
                    if words := values.text(block.get("thinking")):
                        yield thought(words)
                case "tool_use":
                    yield _tool_start(block)

    def _user(self, line: Object) -> Iterator[Act]:
        if line.get("isReplay") is True:
            self._unread -= 1
            self._has_result = False  # it has something to do
        for block in values.objects(values.an_object(line.get("message")).get("content")):
            if block.get("type") == "tool_result":
                yield _tool_end(block)

    def _model_event(self, line: Object) -> Iterator[Act]:
        """Count what the model used before the CLI says so. Of subagents nothing is told until the result."""
        is_own = line.get("parent_tool_use_id") is None
        event = values.an_object(line.get("event")) if is_own else {}
        match event.get("type"):
            case "message_start":
                self._finished_messages = self._finished_messages.plus(self._current)
                self._current = _usage_of_api(values.an_object(values.an_object(event.get("message")).get("usage")))
            case "message_delta":
                told = _usage_of_api(values.an_object(event.get("usage")))
                now = self._current
                self._current = Usage(
                    max(now.input_tokens, told.input_tokens),
                    max(now.output_tokens, told.output_tokens),
                    max(now.cache_read_tokens, told.cache_read_tokens),
                    max(now.cache_write_tokens, told.cache_write_tokens),
                )
                yield Using(self._finished_messages.plus(self._current))

    def _request(self, line: Object) -> Iterator[Act]:
        """A tool wants to be used: yes at once, or a person is asked."""
        key, request = values.text(line.get("request_id")), values.an_object(line.get("request"))
        if request.get("subtype") != "can_use_tool":
            error = {"subtype": "error", "request_id": key, "error": "this host answers can_use_tool only"}
            yield Send(_line({"type": "control_response", "response": error}))
            return
        tool, given = values.text(request.get("tool_name")), values.an_object(request.get("input"))
        kind, words = self._question(tool, given)
        if kind is None:
            yield Send(_decision(key, {"behavior": "allow", "updatedInput": given}))
        else:
            self._asked[key] = given
            yield Ask(key, kind, words, tool, given)

    def _question(self, tool: str, given: Object) -> tuple[str | None, str]:
        if tool == _QUESTION:
            asked = (values.text(each.get("question")) for each in values.objects(given.get("questions")))
            return "question", "\n".join(asked)
        command = values.text_or_none(given.get("command"))
        return self._assignment.rules.asks(tool, command), command or f"{tool} {_short(given)}"

    def _result(self, line: Object) -> Iterator[Act]:
        self._has_result = True
        self._finished_messages = self._current = Usage()
        yield Used(_usage_of_session(line))
        words = values.text(line.get("result"))
        if line.get("is_error") is True:
            errors = line.get("errors")
            told = "\n".join(each for each in errors if isinstance(each, str)) if isinstance(errors, list) else ""
            yield Finished(is_success=False, error=words or told or values.text(line.get("subtype")))
        else:
            yield Finished(is_success=True, result=words)
        if self._unread <= 0:
            yield CloseInput()


def _settings(asked: Assignment) -> list[str]:
    """It uses what it thinks harmless without asking. With rules it must ask, whatever settings and hooks are there."""
    wanted = {name.casefold() for name in asked.rules.tools}
    known = (name for name in _KINDS if name.casefold() in wanted)
    named = {*asked.rules.tools, *known, *(_SHELLS if asked.rules.commands else ())}
    # What cannot be a tool's name must not make all of it unreadable.
    tools = sorted(name for name in named if _TOOL_NAME.fullmatch(name))
    if not tools:
        return []
    settings = {"permissions": {"ask": tools}, "disableAllHooks": True, **dict.fromkeys(_PROGRAMS, "")}
    return ["--strict-mcp-config", "--settings", json.dumps(settings)]


def _said(text: str) -> bytes:
    return _line({"type": "user", "message": {"role": "user", "content": text}})


def _line(value: object) -> bytes:
    return to_json(value) + b"\n"


def _decision(key: str, decision: dict[str, object]) -> bytes:
    response = {"subtype": "success", "request_id": key, "response": decision}
    return _line({"type": "control_response", "response": response})


def _short(given: Object) -> str:
    return json.dumps(given, ensure_ascii=False)[:500]


def _tool_start(block: Object) -> ToolStart:
    tool, given = values.text(block.get("name")), values.an_object(block.get("input"))
    command = values.text_or_none(given.get("command"))
    return ToolStart(values.text(block.get("id")), tool, _KINDS.get(tool, OTHER), given, command)


def _tool_end(block: Object) -> ToolEnd:
    """Only a failed command says its exit code, in its first line."""
    output, is_error = values.plain(block.get("content")), block.get("is_error") is True
    found = _EXIT_CODE.match(output) if is_error else None
    return ToolEnd(values.text(block.get("tool_use_id")), output, is_error, int(found[1]) if found else None)


def _usage_of_api(told: Object) -> Usage:
    return Usage(
        values.count(told.get("input_tokens")),
        values.count(told.get("output_tokens")),
        values.count(told.get("cache_read_input_tokens")),
        values.count(told.get("cache_creation_input_tokens")),
    )


def _usage_of_session(result: Object) -> Usage:
    """By model, summed: subagents and small models are in it, and nothing else has totals of the session."""
    total = Usage()
    for told in values.an_object(result.get("modelUsage")).values():
        names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        total = total.plus(Usage(*(values.count(values.an_object(told).get(name)) for name in names)))
    return total.plus(Usage(usd=values.usd(result.get("total_cost_usd"))))

"""Codex: `codex exec --json`, with the prompt on standard input. It can be asked nothing while it works.

Its usage is that of the whole thread, also after `resume`; the cached tokens are part of its input tokens.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from warren_guest.agents import values
from warren_guest.agents.acts import (
    COMMAND,
    EDIT,
    OTHER,
    Act,
    CloseInput,
    Finished,
    SessionIs,
    ToolEnd,
    ToolStart,
    Used,
    message,
    note,
    thought,
)
from warren_guest.agents.adapter import Assignment, Command, OneShot, Reader, read_by_type, silent
from warren_guest.agents.usage import Usage
from warren_guest.agents.values import Object
from warren_guest.errors import RefusedError

_API = "https://api.openai.com/v1"
_FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
# Things that it would otherwise fetch from elsewhere, or tell elsewhere.
_QUIET = {
    "check_for_update_on_startup": False,
    "analytics.enabled": False,
    "features.plugins": False,
    "features.apps": False,
}
_KINDS = {"command_execution": COMMAND, "file_change": EDIT, "mcp_tool_call": OTHER, "web_search": OTHER}


class Codex(OneShot):
    """Settings are given as arguments, which beat those of its own file; the key stays in the environment."""

    session_folders = (".codex",)
    totals_survive = True

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._last: str | None = None
        self._readers: dict[str, Reader] = {
            "thread.started": _thread_started,
            "turn.started": silent,
            "turn.completed": self._turn_completed,
            "turn.failed": _turn_failed,
            "item.started": self._item,
            "item.updated": silent,
            "item.completed": self._item,
            "error": _error,
        }

    def command(self) -> Command:
        asked = self._assignment
        settings = {**_QUIET, **_provider(asked.env)}
        args = [*_FLAGS, *(word for name, value in settings.items() for word in ("-c", f"{name}={_toml(value)}"))]
        if asked.model is not None:
            args += ["-m", asked.model]
        resumed = () if asked.session is None else (asked.session,)
        verbs = ("exec", "resume") if resumed else ("exec",)
        return Command(("codex",), (*verbs, *args, "--", *resumed, "-"), stdin=asked.words.encode())

    def instruct(self, text: str) -> Iterable[Act]:
        raise RefusedError("not_possible", "codex takes no instructions while it works; wait for its end")

    def read(self, line: Object) -> Iterable[Act] | None:
        return read_by_type(self._readers, line)

    def _turn_completed(self, line: Object) -> Iterator[Act]:
        yield Used(_usage(values.an_object(line.get("usage"))))
        yield Finished(is_success=True, result=self._last)
        yield CloseInput()

    def _item(self, line: Object) -> Iterable[Act] | None:
        is_done, item = line["type"] == "item.completed", values.an_object(line.get("item"))
        kind = values.text(item.get("type"))
        if kind in _KINDS:
            return (_ended if is_done else _started)(kind, item)
        if not is_done:
            return ()
        words = values.text(item.get("text")) or values.text(item.get("message"))
        if kind == "agent_message":
            self._last = words
        tell = {"agent_message": message, "reasoning": thought, "error": note}.get(kind)
        return None if tell is None else (tell(words),)


def _thread_started(line: Object) -> Iterable[Act]:
    thread = values.text(line.get("thread_id"))
    return (SessionIs(thread),) if thread else ()


def _turn_failed(line: Object) -> Iterable[Act]:
    told = values.text(values.an_object(line.get("error")).get("message"))
    return Finished(is_success=False, error=told or "the turn failed"), CloseInput()


def _error(line: Object) -> Iterable[Act]:
    """Retries are told like this, too; the end comes as `turn.failed`."""
    return (note(values.text(line.get("message"))),)


def _provider(env: Mapping[str, str]) -> dict[str, object]:
    provider = "model_providers.warren"
    return {
        "model_provider": "warren",
        f"{provider}.name": "warren",
        f"{provider}.base_url": env.get("OPENAI_BASE_URL") or _API,
        f"{provider}.env_key": "OPENAI_API_KEY",
        f"{provider}.wire_api": "responses",
    }


def _toml(value: object) -> str:
    """Texts and truth values are written in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _usage(told: Object) -> Usage:
    cached = values.count(told.get("cached_input_tokens"))
    written = values.count(told.get("cache_write_input_tokens"))
    fresh = max(values.count(told.get("input_tokens")) - cached - written, 0)
    return Usage(fresh, values.count(told.get("output_tokens")), cached, written)


def _tool_of(kind: str, item: Object) -> str:
    if kind == "mcp_tool_call":
        return f"{values.text(item.get('server'))}.{values.text(item.get('tool'))}"
    return kind


def _started(kind: str, item: Object) -> Iterator[Act]:
    command = values.text_or_none(item.get("command"))
    arguments: dict[str, object] = {
        name: item[name] for name in ("command", "changes", "arguments", "query") if item.get(name) is not None
    }
    yield ToolStart(values.text(item.get("id")), _tool_of(kind, item), _KINDS[kind], arguments, command)


def _ended(kind: str, item: Object) -> Iterator[Act]:
    is_error = item.get("status") == "failed" or item.get("error") is not None
    code = values.exit_code(item.get("exit_code"))
    call, tool = values.text(item.get("id")), _tool_of(kind, item)
    yield ToolEnd(call, _output(kind, item), is_error, code, tool, _KINDS[kind])


def _output(kind: str, item: Object) -> str:
    match kind:
        case "command_execution":
            return values.text(item.get("aggregated_output"))
        case "file_change":
            changes = values.objects(item.get("changes"))
            return "\n".join(f"{values.text(each.get('kind'))} {values.text(each.get('path'))}" for each in changes)
    error = values.text(values.an_object(item.get("error")).get("message"))
    return error or values.plain(values.an_object(item.get("result")).get("content"))

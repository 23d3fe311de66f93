"""The mock agent: a real program of ours (`mock_program`) that does what its prompt's lines say, without any model."""

import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from warren_guest.agents import values
from warren_guest.agents.acts import (
    OTHER,
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
    message,
    thought,
)
from warren_guest.agents.adapter import Answer, Assignment, Command, Reader, read_by_type
from warren_guest.agents.usage import Usage
from warren_guest.agents.values import Object
from warren_guest.wire import to_json

PROGRAM = Path(__file__).with_name("mock_program.py")


class Mock:
    """It asks before each tool call, and is told what to do over standard input."""

    session_folders = (".warren-mock",)
    totals_survive = True

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def command(self) -> Command:
        asked = self._assignment
        begin = {"type": "begin", "prompt": asked.prompt, "session": asked.session, "continues": asked.continues}
        return Command((sys.executable,), ("-I", str(PROGRAM)), stdin=_line(begin), keeps_stdin=True)

    def instruct(self, text: str) -> Iterable[Act]:
        return (Send(_line({"type": "instruct", "text": text})),)

    def interrupt(self) -> Iterable[Act]:
        return (Signal(signal.SIGINT),)

    def quiet(self) -> Iterable[Act]:
        return ()

    def answer(self, key: str, answer: Answer) -> Iterable[Act]:
        return (_permit(key, allow=answer.kind != "reject", text=answer.text),)

    def read(self, line: Object) -> Iterable[Act] | None:
        if line.get("type") == "permission":
            return self._permission(line)
        return read_by_type(_READERS, line)

    def _permission(self, line: Object) -> Iterator[Act]:
        key, tool = values.text(line.get("id")), values.text(line.get("tool"))
        command = values.text_or_none(line.get("command"))
        arguments = values.an_object(line.get("arguments"))
        kind = self._assignment.rules.asks(tool, command)
        if kind is None:
            yield _permit(key, allow=True, text="")
        else:
            yield Ask(key, kind, command or tool, tool, arguments)


def _line(value: object) -> bytes:
    return to_json(value) + b"\n"


def _permit(key: str, *, allow: bool, text: str) -> Send:
    return Send(_line({"type": "answer", "id": key, "allow": allow, "text": text}))


def _tool_start(line: Object) -> ToolStart:
    return ToolStart(
        values.text(line.get("call")),
        values.text(line.get("tool")),
        values.text(line.get("kind")) or OTHER,
        values.an_object(line.get("arguments")),
        values.text_or_none(line.get("command")),
    )


def _tool_end(line: Object) -> ToolEnd:
    return ToolEnd(
        values.text(line.get("call")),
        values.text(line.get("output")),
        line.get("is_error") is True,
        values.exit_code(line.get("exit_code")),
    )


def _usage(line: Object) -> Usage:
    counts = (values.count(line.get("input_tokens")), values.count(line.get("output_tokens")))
    return Usage(*counts, usd=values.usd(line.get("usd")))


def _result(line: Object) -> Iterator[Act]:
    words = values.text(line.get("text"))
    is_success = line.get("is_error") is not True
    yield Finished(is_success, words if is_success else None, None if is_success else words)
    yield CloseInput()


def _words(line: Object) -> str:
    return values.text(line.get("text"))


_READERS: dict[str, Reader] = {
    "session": lambda line: (SessionIs(values.text(line.get("session")), "mock", "1"),),
    "thought": lambda line: (thought(_words(line)),),
    "message": lambda line: (message(_words(line)),),
    "question": lambda line: (Ask(values.text(line.get("id")), "question", _words(line)),),
    "tool_start": lambda line: (_tool_start(line),),
    "tool_end": lambda line: (_tool_end(line),),
    "usage": lambda line: (Used(_usage(line)),),
    "result": _result,
}

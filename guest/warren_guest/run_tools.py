"""Tool calls that are under way: what was told at the start of one is told again at its end, with how long it took."""

from collections.abc import Callable
from dataclasses import dataclass

from warren_guest.agents import acts
from warren_guest.agents.acts import ToolEnd, ToolStart
from warren_guest.run_texts import clip, clip_arguments

_LIMIT = 1000
_NAME_LIMIT = 256


@dataclass(frozen=True, slots=True)
class _Open:
    tool: str
    kind: str
    command: str | None
    began: float


class Tools:
    """`clock` is in seconds. Calls that never end are forgotten, oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}

    def start(self, act: ToolStart) -> dict[str, object]:
        """The fields of the event."""
        tool = clip(act.tool, _NAME_LIMIT)[0]
        command = None if act.command is None else clip(act.command)[0]
        if len(self._open) >= _LIMIT:
            del self._open[next(iter(self._open))]
        self._open[_name(act.call)] = _Open(tool, act.kind, command, self._clock())
        arguments, is_cut = clip_arguments(act.arguments)
        facts: dict[str, object] = {"phase": "start", "call": _name(act.call), "tool": tool, "kind": act.kind}
        facts["arguments"] = arguments
        return {**facts, "truncated": True} if is_cut else facts

    def end(self, act: ToolEnd) -> tuple[dict[str, object], str]:
        """The fields of the event, without its output; and the kind of the tool."""
        began = self._open.pop(_name(act.call), None)
        opened = began or _Open(clip(act.tool, _NAME_LIMIT)[0], act.kind, None, self._clock())
        duration_ms = int((self._clock() - opened.began) * 1000)
        facts: dict[str, object] = {"phase": "end", "call": _name(act.call), "tool": opened.tool, "kind": opened.kind}
        if opened.command is not None:
            facts["command"] = opened.command
        code = act.exit_code
        if code is None and opened.kind == acts.COMMAND and not act.is_error:
            code = 0
        if code is not None:
            facts["exit_code"] = code
        return {**facts, "is_error": act.is_error, "duration_ms": duration_ms}, opened.kind


def _name(call: str) -> str:
    return clip(call, _NAME_LIMIT)[0]

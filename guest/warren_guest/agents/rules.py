"""Which tool calls a person wants to be asked about.

Rules are for agents that mean well: a call that would match is not missed because of what stands before or behind it.
They are no wall: whoever wants to hide a command from them writes it into a file first.
"""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Where one command of a line ends and another begins; within quotes, too, as those may be another shell's line.
_BETWEEN = re.compile(r"[;&|()`\n{}]+")
_BETWEEN_QUOTED = re.compile(r"[;&|()`\n{}'\"]+")
# A line that is longer, or has more parts, is nothing that rules can speak about: then a person looks at it.
_LINE_LIMIT = 64 << 10
_PARTS_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Rules:
    """Tools by name, in whatever case; commands by shell globs against the whole line and against each part of it."""

    tools: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def asks(self, tool: str, command: str | None) -> str | None:
        """`command` or `tool` if this call needs a person's word, by the narrower of the two; None if it does not."""
        if command is not None and self.commands and self._is_meant(command):
            return "command"
        return "tool" if tool.casefold() in {name.casefold() for name in self.tools} else None

    def _is_meant(self, command: str) -> bool:
        if len(command) > _LINE_LIMIT:
            return True
        parts = {command, *_parts(command)}
        if len(parts) > _PARTS_LIMIT:
            return True
        return any(fnmatch.fnmatchcase(part, glob) for glob in self.commands for part in parts)


def _parts(command: str) -> Iterator[str]:
    """Each command of a line, with one blank where there are several, or a line that goes on in the next one."""
    line = command.replace("\\\n", " ")
    for between in (_BETWEEN, _BETWEEN_QUOTED):
        for part in between.split(line):
            yield " ".join(part.split())
    yield " ".join(line.split())

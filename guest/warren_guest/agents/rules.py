"""Which tool calls a person wants to be asked about."""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Tools by name; commands by shell globs against the whole command line."""

    tools: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def asks(self, tool: str, command: str | None) -> str | None:
        """`command` or `tool` if this call needs a person's word, by the narrower of the two; None if it does not."""
        if command is not None and any(fnmatch.fnmatchcase(command, glob) for glob in self.commands):
            return "command"
        return "tool" if tool in self.tools else None

"""Completion of words in a shell: scripts for shells, and the answer to what they ask with every tab.

The scripts know nothing: they hand the words typed so far to `PROGRAM __complete`, which reads the argparse
tree, and asks for what is not in it. So they never differ from what can be asked for.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence

PATIENCE_S = 2.0  # nobody waits longer for a tab
SCRIPTS = {
    "bash": """\
# Load it now: source <(PROGRAM completion bash). For ever: put that line into ~/.bashrc
_PROGRAM() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        printf -v word %q "$word"
        COMPREPLY+=("$word")
        # What goes on behind it follows without a space.
        if [[ $word == *[:/] ]]; then compopt -o nospace 2>/dev/null; fi
    done < <(PROGRAM __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    return 0
}
complete -o default -F _PROGRAM PROGRAM
""",
    "zsh": """\
#compdef PROGRAM
# Load it now: source <(PROGRAM completion zsh). For ever: put that line into ~/.zshrc, after compinit
_PROGRAM() {
    local -a found
    found=("${(@f)$(PROGRAM __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n ${found[1]} ]]; then
        # What goes on behind it follows without a space.
        compadd -S '' -- ${(M)found:#*[:/]}
        compadd -- ${found:#*[:/]}
    else
        _files
    fi
}
compdef _PROGRAM PROGRAM
""",
    "fish": """\
# Load it now: PROGRAM completion fish | source. For ever: save it as ~/.config/fish/completions/PROGRAM.fish
complete -c PROGRAM -a '(PROGRAM __complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
Ask = Callable[[str], Iterable[str]]  # the values of an argument that the tree does not know, by its name


def script(program: str, shell: str) -> str:
    return SCRIPTS[shell].replace("PROGRAM", program)


def completed(parser: argparse.ArgumentParser, words: Sequence[str], ask: Ask) -> list[str]:
    """What the last of `words` could become, in order."""
    *typed, begun = words or [""]
    return sorted({word for word in _candidates(parser, typed, begun, ask) if word.startswith(begun)})


def _candidates(parser: argparse.ArgumentParser, typed: Sequence[str], begun: str, ask: Ask) -> Iterable[str]:
    if "--" in typed:
        return []  # a command of the sandbox
    place = Place(parser)
    for word in typed:
        place.step(word)
    if place.option is not None:
        return _values(place.option, ask)
    if begun.startswith("-"):
        return [name for action in place.parser._actions for name in action.option_strings]
    return _values(place.positional, ask) if place.positional is not None else []


class Place:
    """Where in the tree the words have led to. argparse has no public way to look at it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.option: argparse.Action | None = None  # one whose value comes next
        self._enter(parser)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self._left = [action for action in parser._actions if not action.option_strings]

    @property
    def positional(self) -> argparse.Action | None:
        return self._left[0] if self._left else None

    def step(self, word: str) -> None:
        if self.option is not None:
            self.option = None
        elif word.startswith("-") and word != "-":
            option = self.parser._option_string_actions.get(word)
            self.option = option if option is not None and option.nargs != 0 else None
        elif isinstance(self.positional, argparse._SubParsersAction):
            if word in self.positional.choices:
                self._enter(self.positional.choices[word])
        elif self.positional is not None and self.positional.nargs not in ("+", "*"):
            self._left.pop(0)


def _values(action: argparse.Action, ask: Ask) -> Iterable[str]:
    if action.choices is not None:
        return [name for name in action.choices if not name.startswith("_")]
    return ask(action.dest)

"""`warren completion`: scripts for shells, and the question that they ask with every tab.

The scripts know nothing: they hand the words typed so far to `warren __complete`, which reads the argparse
tree, and asks the gateway for ids. So they never differ from what can be asked for.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import NAME
from warren.cli.parser import build
from warren.errors import WarrenError

PATIENCE_S = 2.0  # nobody waits longer for a tab
SCRIPTS = {
    "bash": """\
# Load it now: source <(warren completion bash). For ever: put that line into ~/.bashrc
_warren() {
    local IFS=$'\\n'
    COMPREPLY=($(warren __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _warren warren
""",
    "zsh": """\
#compdef warren
# Load it now: source <(warren completion zsh). For ever: put that line into ~/.zshrc, after compinit
_warren() {
    local -a found
    found=("${(@f)$(warren __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n ${found[1]} ]]; then compadd -a found; else _files; fi
}
compdef _warren warren
""",
    "fish": """\
# Load it now: warren completion fish | source. For ever: save it as ~/.config/fish/completions/warren.fish
complete -c warren -a '(warren __complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}


def script(context: Context) -> int:
    context.out.raw(SCRIPTS[context.asked.shell])
    return errors.DONE


def complete(context: Context) -> int:
    """Print what the last of the words could become."""
    context.asked.patience = PATIENCE_S
    *typed, begun = context.asked.words or [""]
    found = {word for word in _candidates(context, typed, begun) if word.startswith(begun)}
    for word in sorted(found):
        context.out.line(word)
    return errors.DONE


def _candidates(context: Context, typed: Sequence[str], begun: str) -> Iterable[str]:
    if "--" in typed:
        return []  # a command of the sandbox
    place = Place(build())
    for word in typed:
        place.step(word)
    if place.option is not None:
        return _values(context, place.option)
    if begun.startswith("-"):
        return [name for action in place.parser._actions for name in action.option_strings]
    return _values(context, place.positional) if place.positional is not None else []


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


def _values(context: Context, action: argparse.Action) -> Iterable[str]:
    if action.choices is not None:
        return [name for name in action.choices if not name.startswith("_")]
    ask = ASKED.get(action.dest)
    try:
        return [] if ask is None else list(ask(context))
    except WarrenError:
        return []  # no gateway, nothing to offer


def _sandboxes(context: Context) -> Iterable[str]:
    for sandbox in context.warren.sandboxes():
        yield sandbox.id
        if name := sandbox.info.metadata.get(NAME):
            yield name


def _places(context: Context) -> Iterable[str]:
    return (f"{name}:" for name in _sandboxes(context))


ASKED: dict[str, Callable[[Context], Iterable[str]]] = {
    "sandbox": _sandboxes,
    "sandboxes": _sandboxes,
    "source": _places,
    "target": _places,
}

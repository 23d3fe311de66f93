"""`pooldctl completion`: scripts for shells, and the question that they ask with every tab.

The scripts know nothing: they hand the words typed so far to `pooldctl __complete`, which reads the argparse
tree, and asks poold for ids, and the registry for those of keys. So they never differ from what can be asked for.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError
from poold.ctl.output import Output
from poold.ctl.parser import build
from poold.ctl.text import clean

PATIENCE_S = 2.0  # nobody waits longer for a tab
SCRIPTS = {
    "bash": """\
# Load it now: source <(pooldctl completion bash). For ever: put that line into ~/.bashrc
_pooldctl() {
    local IFS=$'\\n'
    COMPREPLY=($(pooldctl __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _pooldctl pooldctl
""",
    "zsh": """\
#compdef pooldctl
# Load it now: source <(pooldctl completion zsh). For ever: put that line into ~/.zshrc, after compinit
_pooldctl() {
    local -a found
    found=("${(@f)$(pooldctl __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n ${found[1]} ]]; then compadd -a found; else _files; fi
}
compdef _pooldctl pooldctl
""",
    "fish": """\
# Load it now: pooldctl completion fish | source. For ever: save it as ~/.config/fish/completions/pooldctl.fish
complete -c pooldctl -a '(pooldctl __complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}


def script(context: Context) -> int:
    context.out.raw(SCRIPTS[context.asked.shell])
    return errors.DONE


def complete(context: Context) -> int:
    """Print what the last of the words could become."""
    context.poold.timeout_s = min(context.poold.timeout_s, PATIENCE_S)
    *typed, begun = context.asked.words or [""]
    _print(context.out, (word for word in _candidates(context, typed, begun) if word.startswith(begun)))
    return errors.DONE


def _print(out: Output, words: Iterable[str]) -> None:
    for word in sorted(set(words)):
        out.line(clean(word))


def _candidates(context: Context, typed: Sequence[str], begun: str) -> Iterable[str]:
    if "--" in typed:
        return []  # a command of the sandbox
    place = _Place(build())
    for word in typed:
        place.step(word)
    if place.option is not None:
        return _values(context, place.option)
    if begun.startswith("-"):
        return [name for action in place.parser._actions for name in action.option_strings]
    return _values(context, place.positional) if place.positional is not None else []


class _Place:
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
        elif word.startswith("-"):
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
    except CtlError:
        return []  # no poold, nothing to offer


def _ids(context: Context) -> Iterable[str]:
    return (str(row["id"]) for row in context.poold.pages("/v1/sandboxes", "sandboxes"))


def _images(context: Context) -> Iterable[str]:
    return (str(row["name"]) for row in context.poold.get("/admin/images")["images"])


def _keys(_context: Context) -> Iterable[str]:
    # Only here: other words are completed without what it needs.
    from poold.ctl.keys import known_ids

    return known_ids()


ASKED: dict[str, Any] = {"sandbox": _ids, "sandboxes": _ids, "image": _images, "names": _images, "key": _keys}

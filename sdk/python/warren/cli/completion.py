"""`warren completion`: the shells' scripts, and what they ask. The gateway knows sandboxes."""

from collections.abc import Callable, Iterable
from functools import partial

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import NAME
from warren.cli.parser import build
from warren.cli.program import PROGRAM
from warren.errors import WarrenError
from warren_console import completion


def script(context: Context) -> int:
    context.out.raw(completion.script(PROGRAM, context.asked.shell))
    return errors.DONE


def complete(context: Context) -> int:
    """Print what the last of the words could become."""
    context.asked.patience = completion.PATIENCE_S
    for word in completion.completed(build(), context.asked.words, partial(_ask, context)):
        context.out.line(word)
    return errors.DONE


def _ask(context: Context, name: str) -> Iterable[str]:
    ask = ASKED.get(name)
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

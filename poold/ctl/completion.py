"""`pooldctl completion`: the shells' scripts, and what they ask. poold knows ids, and the registry those of keys."""

from collections.abc import Callable, Iterable
from functools import partial

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError
from poold.ctl.parser import build
from poold.ctl.program import PROGRAM
from warren_console import completion


def script(context: Context) -> int:
    context.out.raw(completion.script(PROGRAM, context.asked.shell))
    return errors.DONE


def complete(context: Context) -> int:
    """Print what the last of the words could become."""
    context.poold.timeout_s = min(context.poold.timeout_s, completion.PATIENCE_S)
    for word in completion.completed(build(), context.asked.words, partial(_ask, context)):
        context.out.line(word)
    return errors.DONE


def _ask(context: Context, name: str) -> Iterable[str]:
    ask = ASKED.get(name)
    try:
        return [] if ask is None else list(ask(context))
    except CtlError:
        return []  # no poold, nothing to offer


def _ids(context: Context) -> Iterable[str]:
    return (str(row["id"]) for row in context.poold.pages("/v1/sandboxes", "sandboxes"))


def _tasks(context: Context) -> Iterable[str]:
    return (str(row["id"]) for row in context.poold.pages("/v1/tasks", "tasks"))


def _images(context: Context) -> Iterable[str]:
    return (str(row["name"]) for row in context.poold.get("/admin/images")["images"])


def _keys(_context: Context) -> Iterable[str]:
    # Only here: other words are completed without what it needs.
    from poold.ctl.keys import known_ids

    return known_ids()


ASKED: dict[str, Callable[[Context], Iterable[str]]] = {
    "sandbox": _ids,
    "sandboxes": _ids,
    "task": _tasks,
    "tasks": _tasks,
    "image": _images,
    "names": _images,
    "key": _keys,
}

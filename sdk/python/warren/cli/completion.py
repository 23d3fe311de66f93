"""`warren completion`: the shells' scripts, and what they ask. The gateway knows the rest."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from warren.cli import errors, task_parser
from warren.cli.context import Context
from warren.cli.ids import NAME, TASK, find_task
from warren.cli.parser import SIZES, STATES, build
from warren.cli.program import PROGRAM
from warren.errors import Forbidden, WarrenError
from warren_console import completion

SHOWN = 200  # of tasks, workspaces and versions


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
    """Sandboxes, and what is in this folder. A path through folders is completed by the shell itself."""
    if "/" not in _begun(context):
        yield from _files(Path())
        yield from (f"{name}:" for name in _sandboxes(context))


def _files(folder: Path) -> Iterable[str]:
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield f"{path.name}/" if path.is_dir() else path.name


def _images(context: Context) -> Iterable[str]:
    """What the hosts have, for those who may ask them; for all others what ours are made from, and what is usual."""
    try:
        return {str(shape.get("image")) for host in context.warren.hosts() for shape in host.get("images") or ()}
    except Forbidden:
        return {*SIZES, *(sandbox.info.image for sandbox in context.warren.sandboxes())}


def _states(states: Sequence[str], context: Context) -> Iterable[str]:
    """One, or one more behind a comma."""
    before, comma, _ = _begun(context).rpartition(",")
    return (before + comma + state for state in states if state not in before.split(","))


def _tasks(context: Context) -> Iterable[str]:
    """The newest: nobody looks through more."""
    return (task.id for task in islice(context.warren.tasks.list(), SHOWN))


def _questions(context: Context) -> Iterable[str]:
    return (question.id for task in _typed_task(context) for question in find_task(context.warren, task).waiting)


def _artifacts(context: Context) -> Iterable[str]:
    return (each.name for task in _typed_task(context) for each in find_task(context.warren, task).artifacts())


def _typed_task(context: Context) -> list[str]:
    """The task that stands before what is to be completed."""
    return [word for word in context.asked.words[:-1] if TASK.fullmatch(word)][-1:]


def _workspaces(context: Context) -> Iterable[str]:
    return (workspace.name for workspace in islice(context.warren.workspaces.list(), SHOWN))


def _templates(context: Context) -> Iterable[str]:
    return (template.name for template in context.warren.templates())


def _versions(context: Context) -> Iterable[str]:
    """Of the workspace that stands before: `workspaces diff NAME …`."""
    words: list[str] = [word for word in context.asked.words[:-1] if not word.startswith("-")]
    found = context.warren.workspaces.get(words[words.index("workspaces") + 2]).versions()
    return (str(version.version) for version in islice(found, SHOWN))


def _begun(context: Context) -> str:
    """The word that is to be completed."""
    words: list[str] = context.asked.words
    return words[-1] if words else ""


ASKED: dict[str, Callable[[Context], Iterable[str]]] = {
    "sandbox": _sandboxes,
    "sandboxes": _sandboxes,
    "image": _images,
    "state": partial(_states, STATES),
    "task_state": partial(_states, task_parser.STATES),
    "task": _tasks,
    "tasks": _tasks,
    "question": _questions,
    "artifact": _artifacts,
    "workspace": _workspaces,
    "workspaces": _workspaces,
    "template": _templates,
    "version": _versions,
    "from_version": _versions,
    "to_version": _versions,
    "source": _places,
    "target": _places,
}

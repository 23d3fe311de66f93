"""The same done to several things that were named. One that fails is told and does not keep the others from it."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.program import say
from warren.cli.progress import busy
from warren.errors import Unreachable, WarrenError

Done = TypeVar("Done")


def each_named(
    context: Context, names: Iterable[str], doing: str, act: Callable[[str], Done], line: Callable[[Done], str]
) -> tuple[list[Done], int]:
    """What came of those that did not fail, each told in a `line`; and the exit code, of the first that did."""
    done: list[Done] = []
    code = errors.DONE
    for typed in names:
        try:
            with busy(f"{doing} {typed}"):
                done.append(act(typed))
        except Unreachable:
            raise
        except WarrenError as error:
            hint = errors.hint_of(error)
            say(f"{typed}: {error}" + (f"; {hint}" if hint else ""))
            code = code or errors.exit_code_of(error)
            continue
        if not context.out.as_json:
            context.out.line(line(done[-1]))
    return done, code

"""`warren network`: what a sandbox may reach, to look at and to change."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import UsageError
from warren.cli.ids import find
from warren.cli.progress import busy
from warren_console import network as words

TITLES = ("OF", "POLICY", "ALLOWS")


def network(context: Context) -> int:
    """Without an option it is shown; with one it becomes what the options say, and nothing of the old one is kept."""
    wanted = asked(context, context.asked.hold_sec)
    sandbox = find(context.warren, context.asked.sandbox)
    if wanted is None:
        reach = sandbox.network()
        told = asdict(reach)
    else:
        with busy(f"changing what {sandbox.id} may reach"):
            sandbox.set_network(wanted)
            told = asdict(sandbox.network())
    if context.out.as_json:
        context.out.json(told)
    else:
        levels = [("sandbox", told["network"]), *((each["level"], each["network"]) for each in told["within"])]
        context.out.table(TITLES, [row for level, said in levels for row in _rows(level, said)])
    return errors.DONE


def asked(context: Context, hold_sec: int | None = None) -> dict[str, Any] | None:
    """The policy that the options of a command say; None if they say nothing."""
    try:
        return words.asked(context.asked.policy, context.asked.allow, hold_sec)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _rows(level: str, said: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(words.lines(said)):
        yield ("", "", line) if number else (level, str(said["policy"]), line)

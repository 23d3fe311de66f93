"""`warren events`: what happened to a sandbox, and what happens."""

import json
from dataclasses import asdict

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import find
from warren.models import Event
from warren_console.output import moment
from warren_console.text import cut

TITLES = (">SEQ", "AT", "KIND", "DATA")
KIND_COLUMNS = 16


def events(context: Context) -> int:
    """With `--follow` until the sandbox has ended."""
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    if asked.follow:
        for event in sandbox.events(asked.after):
            _print_line(context, event)
        return errors.DONE
    found = list(sandbox.events(asked.after, follow=False))
    if out.as_json:
        out.json({"events": [asdict(event) for event in found]})
    else:
        out.table(TITLES, [_cells(event) for event in found])
    return errors.DONE


def _print_line(context: Context, event: Event) -> None:
    """One event as it comes: the columns cannot know what follows."""
    if context.out.as_json:
        context.out.json_line(asdict(event))
        return
    seq, at, kind, data = _cells(event)
    context.out.line(cut(f"{seq:>5}  {at}  {kind:<{KIND_COLUMNS}}  {data}".rstrip(), context.out.columns))


def _cells(event: Event) -> tuple[int, str, str, str]:
    shown = json.dumps(event.data, ensure_ascii=False) if event.data else ""
    return event.seq, moment(event.at_ms), event.kind, shown

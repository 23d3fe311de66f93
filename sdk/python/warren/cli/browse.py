"""`warren browse`: a page in the browser of a sandbox. What it shows comes from anybody."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import Failure
from warren.cli.ids import find
from warren.cli.progress import busy
from warren_console.text import clean, clean_lines, size


def browse(context: Context) -> int:
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    with busy(f"opening {asked.page}"):
        view = sandbox.browser.open(asked.page, full_page=asked.full_page or None)
    kept = _keep(asked.screenshot, view.screenshot) if asked.screenshot else None
    told = {name: value for name, value in asdict(view).items() if name != "screenshot"}
    if out.as_json:
        out.json({**told, "screenshot": kept, "screenshot_bytes": len(view.screenshot)})
        return errors.DONE
    shown = {"title": view.title or "-", "address": view.url, "status": "-" if view.status is None else view.status}
    out.facts(shown | ({"screenshot": f"{kept} ({size(len(view.screenshot))})"} if kept else {}))
    if view.text.strip():
        out.raw("\n" + clean_lines(view.text.strip()) + "\n")
    for line in view.console:
        out.raw(out.loud(f"console: {clean(_said(line))}") + "\n")
    return errors.DONE


def _keep(name: str, data: bytes) -> str:
    if not data:
        raise Failure("there is no screenshot")
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise Failure(f"{name}: {error.strerror or error}") from None
    return name


def _said(line: Any) -> str:
    return line if isinstance(line, str) else json.dumps(line, default=str)

"""`pooldctl image`: the installation's own builder, and which builds machines were made from."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, Refused, Unreachable
from poold.ctl.program import say
from warren_console.text import size

TITLES = ("NAME", "KEY", ">SIZE", "BUILT", "IN USE", "PATH")
KEY_CHARS = 12


def build(context: Context) -> int:
    """In the foreground: the builder speaks for itself, and its exit code is ours."""
    refresh = ["--refresh"] if context.asked.refresh else []
    return subprocess.run(_builder(context, "build", *refresh, *context.asked.names), check=False).returncode


def ls(context: Context) -> int:
    """What is built, and what is in use if poold can be asked."""
    listed = subprocess.run(_builder(context, "ls", "--json"), check=False, stdout=subprocess.PIPE)
    if listed.returncode:
        raise CtlError("the builder could not list its images")
    in_use = _in_use(context)
    rows = [{**row, "in_use": in_use.get((row["name"], row["key"]))} for row in json.loads(listed.stdout)]
    if context.out.as_json:
        context.out.json({"images": rows})
    else:
        context.out.table(TITLES, [_cells(row) for row in rows])
    return errors.DONE


def rm(context: Context) -> int:
    answer = context.poold.call("DELETE", f"/admin/images/{context.asked.image}")
    if context.out.as_json:
        context.out.json(answer)
    else:
        context.out.line(f"{context.asked.image} removed")
    return errors.DONE


def _in_use(context: Context) -> dict[tuple[str, str], bool]:
    try:
        images = context.poold.get("/admin/images")["images"]
    except Unreachable as error:
        say(f"{error.message}: what is in use is not known")
        return {}
    except Refused as error:
        say(f"poold does not tell what is in use: {error.message}")
        return {}
    return {(image["name"], image["key"]): image["in_use"] for image in images}


def _builder(context: Context, *words: str) -> list[str]:
    if importlib.util.find_spec("images") is None:
        hint = "build where Warren's sources are: python -m images build NAME"
        raise CtlError("this installation has no image builder", hint=hint)
    out = context.asked.out or os.environ.get("WARREN_IMAGES") or os.environ.get("POOLD_IMAGES")
    return [sys.executable, "-m", "images", words[0], *(["--out", out] if out else []), *words[1:]]


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    if row["key"] is None:
        return row["name"], "-", "-", "not built", "-", ""
    used = {True: "yes", False: "no", None: "?"}[row["in_use"]]
    return row["name"], row["key"][:KEY_CHARS], size(row["bytes"]), row["built_at"], used, row["path"]

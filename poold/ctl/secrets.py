"""`pooldctl secrets`: what tasks may ask for by name, in the operator's folder. Needs no poold: it reads when it needs.

A value comes from standard input: arguments can be seen by everybody on a host.
"""

import os
import sys
from pathlib import Path

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import UsageError
from poold.ctl.program import say
from poold.ctl.told import told
from poold.secret_files import EVERYBODY, MAX_BYTES, SecretFiles

TITLES = ("OWNER", "NAME", "STATE")
GOOD = "ready"


def put(context: Context) -> int:
    asked = context.asked
    with told(f"cannot set {asked.name}"):
        kept = _folder(context)
        if sys.stdin.isatty():
            say("the value, and then Ctrl-D on a line of its own:")
        value = sys.stdin.buffer.read(MAX_BYTES + 2).removesuffix(b"\n")
        kept.put(asked.owner, asked.name, value)
    return _done(context, "set", "is set: tasks that begin from now on get it")


def rm(context: Context) -> int:
    with told(f"cannot remove {context.asked.name}"):
        _folder(context).remove(context.asked.owner, context.asked.name)
    return _done(context, "removed", "is gone; tasks that have it keep it")


def ls(context: Context) -> int:
    """Names, and never values."""
    wanted = context.asked.owner
    with told("cannot list the secrets"):
        found = [row for row in _folder(context).listed() if wanted in (None, row[0])]
    rows = [{"owner": owner, "name": name, "problem": problem} for owner, name, problem in found]
    if context.out.as_json:
        context.out.json({"secrets": rows})
    else:
        context.out.table(TITLES, [(row["owner"], row["name"], row["problem"] or GOOD) for row in rows])
    return errors.DONE


def _done(context: Context, state: str, line: str) -> int:
    asked = context.asked
    if context.out.as_json:
        context.out.json({"owner": asked.owner, "name": asked.name, "state": state})
    else:
        whose = "every owner" if asked.owner == EVERYBODY else asked.owner
        context.out.line(f"{asked.name} of {whose} {line}")
    return errors.DONE


def _folder(context: Context) -> SecretFiles:
    folder = context.asked.dir or os.environ.get("POOLD_SECRETS")
    if not folder:
        raise UsageError("where are the secrets? Give --dir DIR, or set POOLD_SECRETS")
    return SecretFiles(Path(folder))

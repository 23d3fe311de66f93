"""`pooldctl rules`: what happens to an owner's sandboxes by itself, where their requests do not say it."""

from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import UsageError
from poold.ctl.parser import RULES

HOSTS = "(the host's)"


def show(context: Context) -> int:
    return _print(context, context.poold.get(_path(context)))


def change(context: Context) -> int:
    """What is not named stays as it is."""
    asked = {name: getattr(context.asked, name) for name in RULES if getattr(context.asked, name) is not None}
    if not asked and not context.asked.unset:
        raise UsageError("say what to change", hint="see: pooldctl rules set --help")
    rules = {**_own(context.poold.get(_path(context))), **asked}
    body = {name: value for name, value in rules.items() if name not in context.asked.unset}
    return _print(context, context.poold.call("PUT", _path(context), body))


def _own(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in RULES if answer.get(name) is not None}


def _path(context: Context) -> str:
    return f"/admin/owners/{context.asked.owner}/rules"


def _print(context: Context, rules: dict[str, Any]) -> int:
    if context.out.as_json:
        context.out.json(rules)
    else:
        own = _own(rules)
        context.out.facts({name: _word(own.get(name, HOSTS)) for name in RULES})
    return errors.DONE


def _word(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value

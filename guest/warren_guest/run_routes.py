"""The routes of runs: each parses, calls a plain function, and streams what comes back."""

import re
from dataclasses import replace

from warren_guest.agents import values
from warren_guest.agents.adapter import Answer as Said
from warren_guest.agents.adapter import Assignment
from warren_guest.agents.rules import Rules
from warren_guest.agents.usage import Usage
from warren_guest.events import CONTENT_TYPE as EVENT_STREAM
from warren_guest.fields import Fields, bad_field, parse_object, query_number
from warren_guest.guest import Guest
from warren_guest.paths import resolve
from warren_guest.requests import read_object
from warren_guest.run import Order
from warren_guest.run_moments import Past
from warren_guest.runs import ADAPTERS, Place
from warren_guest.server import Answer, Request, Stream
from warren_guest.wire import to_json

BODY_LIMIT = 8 << 20
PROMPT_LIMIT = 1 << 20
OUTPUT_BYTES = 64 << 20
_RULES_LIMIT = 200
_LARGE = 10**15
_GRACE_MS, _GRACE_LIMIT_MS = 5000, 600_000
_TASK = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_MODEL = re.compile(r"[A-Za-z0-9][\x21-\x7e]{0,127}")
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_KINDS = ("approve", "reject", "answer", "instruct")


async def start(guest: Guest, request: Request) -> Answer:
    fields = parse_object(await request.body.whole(BODY_LIMIT))
    order, assignment, place = _order(fields), _assignment(fields), _place(fields, guest)
    is_new, state = await guest.runs.start(order, assignment, place, _past(fields))
    return Answer(to_json({"run": order.run, "state": state}), 201 if is_new else 200)


async def show(guest: Guest, _request: Request) -> Answer:
    return Answer(to_json(guest.runs.facts()))


async def tell_events(guest: Guest, request: Request) -> Stream:
    """Events after the number that is given, which acknowledges all up to it."""
    asked = dict(request.head.query)
    if "last-event-id" in request.head.headers:
        asked["after"] = request.head.headers["last-event-id"]
    after = query_number(asked, "after", 0, _LARGE)
    log = guest.runs.log
    if after is None:
        after = log.first - 1
    log.acknowledge(after)
    return Stream(log.tell(after), EVENT_STREAM)


async def take_input(guest: Guest, request: Request) -> Answer:
    fields = parse_object(await request.body.whole(BODY_LIMIT))
    kind = fields.required_text("kind")
    if kind not in _KINDS:
        raise bad_field("kind", f"{kind[:60]!a} is none of {', '.join(_KINDS)}")
    name = fields.text("id", limit=128)
    said = fields.text("text", limit=PROMPT_LIMIT) or ""
    if kind == "instruct" and not said:
        raise bad_field("text", "is required for an instruction")
    if kind != "instruct" and not name:
        raise bad_field("id", "is required and must not be empty")
    guest.runs.input(name, Said(kind, said))
    return Answer()


async def stop(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    grace_ms = fields.number("grace_ms", 0, _GRACE_LIMIT_MS)
    outcome = await guest.runs.stop((_GRACE_MS if grace_ms is None else grace_ms) / 1000)
    return Answer(to_json({"outcome": outcome}))


def _order(fields: Fields) -> Order:
    agent = fields.required_text("agent")
    if agent not in ADAPTERS:
        raise bad_field("agent", f"{agent[:60]!a} is none of {', '.join(ADAPTERS)}")
    task = fields.matching("task", _TASK, "the id of a task")
    if task is None:
        raise bad_field("task", "is required")
    caps = fields.nested("caps") or Fields({})
    limit = caps.number("output_bytes", 1, _LARGE) or OUTPUT_BYTES
    return Order(task, fields.required_number("run", 1, _LARGE), agent, _model(fields), limit)


def _model(fields: Fields) -> str | None:
    return fields.matching("model", _MODEL, "the name of a model")


def _assignment(fields: Fields) -> Assignment:
    prompt = fields.text("prompt", limit=PROMPT_LIMIT)
    if not prompt:
        raise bad_field("prompt", "is required and must not be empty")
    session = fields.matching("session", _SESSION, "the id of a session")
    approvals = fields.nested("approvals") or Fields({})
    rules = Rules(_rules(approvals, "tools"), _rules(approvals, "commands"))
    env = fields.environment("env") or {}
    return Assignment(prompt, _model(fields), session, env, rules, continues=fields.has("continues"))


def _past(fields: Fields) -> Past | None:
    told = fields.nested("continues")
    if told is None:
        return None
    return Past(
        told.number("events", 0, _LARGE) or 0,
        told.number("questions", 0, _LARGE) or 0,
        _usage(told.nested("used") or Fields({})),
        _usage(told.nested("covered") or Fields({})),
    )


def _usage(told: Fields) -> Usage:
    counts = {name: told.number(name, 0, _LARGE) or 0 for name in _TOKENS}
    return replace(Usage(**counts), usd=values.usd(told.raw("usd")))


def _rules(approvals: Fields, name: str) -> tuple[str, ...]:
    given = approvals.texts(name)
    if len(given) > _RULES_LIMIT:
        raise bad_field(f"approvals.{name}", f"has {len(given)} entries; the limit is {_RULES_LIMIT}")
    return tuple(given)


def _place(fields: Fields, guest: Guest) -> Place:
    account = guest.accounts.find(None)
    cwd = fields.text("cwd")
    path = resolve(cwd, account, guest.accounts, "cwd") if cwd else guest.default_cwd(account)
    return Place(path, account, guest.environment(account, {}, pty=False))

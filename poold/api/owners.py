"""What gateways have this host remember for them: books of owners, states of sandboxes, rows for the audit."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField, CallerError, NoBook, PoolExhausted
from contract.fields import Fields
from contract.ids import SANDBOX, TASK, home_of, task_of
from contract.keys import MAX_POOL, Pools
from contract.models import OWNER, owner_name
from contract.task_states import FINAL
from contract.tickets import Access
from poold.api.middleware import REQUEST_ID
from poold.api.replies import json_reply, read_body
from poold.api.services import Services, caller_of, services
from poold.api.tickets import ticket_of
from poold.ledger import audit, repeats, reservations, sandboxes, tasks, usage

MAX_IDS = 1000
MAX_BOOK_BYTES = 4 << 20
MAX_BROUGHT = 2 * reservations.MAX_ROWS  # rows of a book, and what lives: much of it is told twice
MAX_AUDIT_ROWS = 100
MAX_DETAILS = 32
MAX_DETAIL_BYTES = 4096
MAX_MS = 1 << 53
SHA_256 = r"[0-9a-f]{64}"
ACTION = r"gateway\.[a-z_.]{1,56}"


async def reserve(request: Request) -> Response:
    """Room for a new sandbox in the owner's book."""
    fields = Fields.parse(await read_body(request))
    wanted = _reservation(fields)
    key = _key(fields)
    fields.end()
    found, owner, pools = services(request), owner_name(request.path_params["owner"]), _pools(request)
    if (
        key is not None
        and await found.ledger.read(partial(_known, owner=owner, key=key, now_ms=_now_ms(request))) is None
    ):
        _must_know(found, owner)
    ask = partial(reservations.reserve, owner=owner, wanted=wanted, pools=pools, key=key, now_ms=_now_ms(request))
    try:
        reserved = await found.ledger.write(ask)
    except PoolExhausted as error:
        await _note_refusal(request, owner, wanted.id, error)
        raise
    except NoBook:
        found.books.missed(owner)
        raise
    return json_reply({"id": reserved.id, "repeated": reserved.repeated}, 201)


def _known(db: Any, owner: str, key: reservations.Key, now_ms: int) -> str | None:
    return repeats.find(db, owner, key.key, key.asked, now_ms=now_ms)


def _must_know(found: Services, owner: str) -> None:
    try:
        found.books.must_know(owner)
    except NoBook:
        found.books.missed(owner)
        raise


async def reservations_of(request: Request) -> Response:
    """All rows of the book. `at_ms` is by the same clock as their `created_ms`."""
    owner, at_ms = owner_name(request.path_params["owner"]), _now_ms(request)
    rows = await services(request).ledger.read(lambda db: reservations.rows(db, owner))
    return json_reply({"at_ms": at_ms, "rows": [row.view() for row in rows]})


async def release(request: Request) -> Response:
    """`forget`: the sandboxes never came to be, so their idempotency keys may be used for others."""
    fields = Fields.parse(await read_body(request))
    ids = fields.text_list("ids", max_chars=64, max_count=MAX_IDS)
    forget = fields.flag("forget", default=False)
    fields.end()
    owner = owner_name(request.path_params["owner"])
    free = partial(reservations.release, owner=owner, ids=ids, forget=forget)
    # Not durable: room that a loss of power took back is found again by whoever needs it.
    return json_reply({"released": await services(request).ledger.write(free, durable=False)})


async def close_book(request: Request) -> Response:
    Fields.parse(await read_body(request)).end()
    owner, caller = owner_name(request.path_params["owner"]), caller_of(request)
    shut = partial(reservations.close_book, owner=owner, now_ms=_now_ms(request), request=caller.request)
    rows, remembered = await services(request).ledger.write(shut)
    return json_reply({"rows": [row.view() for row in rows], "repeats": [one.view() for one in remembered]})


async def open_book(request: Request) -> Response:
    """`opened` is false if the book was open, and so is as it was."""
    fields = Fields.parse(await read_body(request, MAX_BOOK_BYTES))
    brought = [_brought(row) for row in fields.inner_list("rows", max_count=MAX_BROUGHT)]
    remembered = [_repeat(row) for row in fields.inner_list("repeats", max_count=MAX_BROUGHT)]
    unreached = fields.text_list("unreached", max_chars=63, max_count=MAX_IDS)
    fields.end()
    owner = owner_name(request.path_params["owner"])
    opening = partial(
        reservations.open_book,
        owner=owner,
        brought=brought,
        remembered=remembered,
        now_ms=_now_ms(request),
        request=caller_of(request).request,
    )
    is_opened = await services(request).ledger.write(opening)
    if is_opened:
        services(request).books.opened(owner, unreached)
    return json_reply({"opened": is_opened})


async def living(request: Request) -> Response:
    """The owner's sandboxes that have not ended, also those that are just being created."""
    found, owner = services(request), owner_name(request.path_params["owner"])
    making = found.sandboxes.creations.of(owner)
    known, at_work = await found.ledger.read(lambda db: (sandboxes.living(db, owner), tasks.living(db, owner)))
    # A task has its room from its beginning, also while it waits for a machine, and under the name that it began with.
    tasks_of = {one.sandbox: home_of(one.id) for one in at_work if one.sandbox is not None}
    rows: dict[str, Any] = {home_of(one.id): one for one in at_work}
    rows |= making | {tasks_of.get(one.id, one.id): one.shape for one in known}
    return json_reply({"rows": [_sized(name, shape) for name, shape in rows.items()]})


async def states(request: Request) -> Response:
    """Of each id of a sandbox or a task its state; null if this host never had it.

    A sandbox that is just being created is `pending`, and that of a task that is not over is `running` at least.
    """
    fields = Fields.parse(await read_body(request))
    ids = fields.text_list("ids", max_chars=64, max_count=MAX_IDS)
    fields.end()
    found = services(request)
    # In this order: what is not being created now has either been written down or not begun.
    making = found.sandboxes.creations.of()
    known, at_work = await found.ledger.read(lambda db: (sandboxes.states(db, ids), tasks.states(db, _tasks(ids))))
    told = {name: "pending" if name in making else known[name] or at_work.get(name) for name in ids}
    for name, state in at_work.items():
        if state is not None:
            # The room of a task that is not over is taken, whatever became of the first sandbox that it was to have.
            # One that ended without any has given it back; but it was here, and its idempotency key must lead to it.
            told[home_of(name)] = (told.get(home_of(name)) or "stopped") if state in FINAL else "running"
    # What nobody has may be in a lost ledger that is still being carried on: then nobody can say that it never was.
    more = {"unsettled": True} if found.membership.open_lines() else {}
    return json_reply({"states": {name: told[name] for name in ids}, **more})


def _tasks(ids: Iterable[str]) -> list[str]:
    """The tasks that ids of tasks and of sandboxes may be of."""
    return list(dict.fromkeys(task_of(name) for name in ids if TASK.fullmatch(name) or SANDBOX.fullmatch(name)))


async def note(request: Request) -> Response:
    """Rows for the audit about what a gateway refused: a gateway has no ledger."""
    fields = Fields.parse(await read_body(request))
    now_ms = _now_ms(request)
    entries = [_entry(row, now_ms) for row in fields.inner_list("rows", max_count=MAX_AUDIT_ROWS)]
    fields.end()

    def add(db: Any) -> int:
        return len([audit.add(db, entry) for entry in entries])

    return json_reply({"rows": await services(request).ledger.write(add, durable=False)})


async def used(request: Request) -> Response:
    """What the owner has used on this host; for an admin what everybody has, or one `owner`."""
    ticket, asked = ticket_of(request), request.query_params.get("owner")
    is_for_all = ticket is None or ticket.access is Access.ADMIN
    owner = caller_of(request).owner if not is_for_all else None if asked is None else owner_name(asked)
    now_ms = _now_ms(request)
    totals = await services(request).ledger.read(lambda db: usage.totals(db, owner, now_ms=now_ms))
    return json_reply({"at_ms": now_ms, "owners": [total.view() for total in totals]})


def _now_ms(request: Request) -> int:
    return services(request).sandboxes.now_ms()


def _pools(request: Request) -> Pools:
    """What the owner may have, as the ticket says. The operator, who needs no ticket, has what owners usually have."""
    ticket = ticket_of(request)
    if ticket is None:
        return Pools()
    if ticket.pools is None:
        raise CallerError("a reservation needs a ticket that says what the owner may have: it has no pools")
    return ticket.pools


async def _note_refusal(request: Request, owner: str, sandbox_id: str, error: PoolExhausted) -> None:
    """An owner at its limit may ask again and again: its rows are few, and say how often."""
    now_ms = _now_ms(request)
    times = services(request).full_books.count(owner, now_ms)
    if not times:
        return
    detail = {name: error.details[name] for name in ("used", "allowed", "asked")} | {"times": times}
    entry = audit.Entry(
        now_ms,
        "book.refused",
        owner=owner,
        sandbox=sandbox_id,
        request=caller_of(request).request,
        detail=detail,
    )
    await services(request).ledger.write(partial(audit.add, entry=entry), durable=False)


def _reservation(fields: Fields) -> reservations.Reservation:
    sizes = {name: fields.integer(name, low=1, high=MAX_POOL) for name in ("vcpus", "memory_mb", "disk_mb")}
    return reservations.Reservation(fields.text("id", max_chars=64, pattern=SANDBOX.pattern), **sizes)


def _brought(fields: Fields) -> reservations.Reservation:
    """A row as `close` gave it out, or as `living` tells it."""
    row = _reservation(fields)
    fields.integer("created_ms", low=0, high=MAX_MS, default=0)  # by another host's clock
    fields.end()
    return row


def _repeat(fields: Fields) -> repeats.Repeat:
    repeat = repeats.Repeat(
        key=fields.text("key", max_chars=64, pattern=SHA_256),
        asked=fields.text("asked", max_chars=64, pattern=SHA_256),
        id=fields.text("id", max_chars=64, pattern=SANDBOX.pattern),
        at_ms=fields.integer("at_ms", low=0, high=MAX_MS),
    )
    fields.end()
    return repeat


def _key(fields: Fields) -> reservations.Key | None:
    if not fields.has("key"):
        if fields.has("asked"):
            raise BadField("key", None, "is required beside asked")
        return None
    key = fields.text("key", max_chars=64, pattern=SHA_256)
    return reservations.Key(key, fields.text("asked", max_chars=64, pattern=SHA_256))


def _entry(fields: Fields, now_ms: int) -> audit.Entry:
    """A row that came from a gateway. None is from the future: retention would wait for it, and keep all behind it."""
    entry = audit.Entry(
        at_ms=min(now_ms, fields.integer("at_ms", low=0, high=MAX_MS)),
        action=fields.text("action", max_chars=64, pattern=ACTION),
        owner=fields.text("owner", max_chars=64, pattern=OWNER.pattern, default="unknown"),
        sandbox=fields.text("sandbox", max_chars=64, pattern=SANDBOX.pattern, default=None),
        request=fields.text("request", max_chars=64, pattern=REQUEST_ID.pattern, default=None),
        detail=fields.flat("detail", max_count=MAX_DETAILS, max_bytes=MAX_DETAIL_BYTES),
    )
    fields.end()
    return entry


def _sized(sandbox_id: str, shape: Any) -> dict[str, Any]:
    return {"id": sandbox_id, "vcpus": shape.vcpus, "memory_mb": shape.memory_mb, "disk_mb": shape.disk_mb}

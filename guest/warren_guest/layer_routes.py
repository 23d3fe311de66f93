"""The routes of a machine that ends and whose files go on in another one: nothing runs, all of them told, and back.

`freeze` ends every process and keeps the door shut; then `GET /layer` tells of the files of one moment. In a stream
come first `removed` (names that are gone) and `env` (what processes are started with), then the files.
"""

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable

from warren_guest import checkpoints
from warren_guest.archive_routes import CONTENT_TYPE
from warren_guest.checkpoint_routes import extract, tar_of
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.fields import parse_object, query_number
from warren_guest.guest import Guest
from warren_guest.layers import Layer, copy_attributes
from warren_guest.requests import read_object
from warren_guest.server import Answer, AnyAnswer, Request, Stream
from warren_guest.sessions import end_descendants
from warren_guest.wire import to_json

ENV = "env"
_LARGE = 10**18 - 1
_GRACE_MS, _GRACE_LIMIT_MS = 5_000, 600_000
_ENV_LIMIT = 16 << 20
# Capabilities of programs, and what users set. Of the kernel's own (`trusted.overlay.*`) nothing is told.
_ATTRIBUTES = ("--acls", "--xattrs", "--xattrs-include=user.*", "--xattrs-include=security.capability")
# What a frozen guest still answers.
OPEN = frozenset({"/health", "/logs", "/layer", "/layer/freeze", "/layer/thaw", "/identity"})


async def freeze(guest: Guest, request: Request) -> Answer:
    """End all that runs, politely and then not, and start nothing any more. Twice is once."""
    fields = await read_object(request)
    grace_ms = fields.number("grace_ms", 0, _GRACE_LIMIT_MS)
    usual = fields.environment("env") or {}
    if guest.runs.facts()["state"] == "running":
        raise RefusedError("run_under_way", "an agent works in this machine: end its run first")
    guest.frozen = usual
    guest.hang_up_but(request.connection)
    try:
        await guest.processes.settled()
        grace_s = (_GRACE_MS if grace_ms is None else grace_ms) / 1000
        ended, killed = await guest.in_thread(end_descendants, grace_s)
        await guest.in_thread(os.sync)
    except BaseException as error:
        guest.frozen = None
        if isinstance(error, TimeoutError):
            raise RefusedError("internal", str(error)) from error
        raise
    return Answer(to_json({"ended": ended, "killed": killed}))


async def thaw(guest: Guest, _request: Request) -> Answer:
    """It came to nothing: the machine may be used again, without what ran in it."""
    guest.frozen = None
    return Answer()


async def tell(guest: Guest, request: Request) -> Stream:
    limit = query_number(request.head.query, "limit", 1, _LARGE) or _LARGE
    if guest.frozen is None:
        raise RefusedError("not_possible", "freeze it first: its files would not be those of one moment")
    return Stream(_pieces(guest, guest.frozen, limit), CONTENT_TYPE)


async def _pieces(guest: Guest, usual: dict[str, str], limit: int) -> AsyncGenerator[bytes, None]:
    layer = guest.layer
    try:
        changes = await guest.in_thread(layer.changes)
    except OSError as exc:
        raise refusal_of(exc, "the files") from exc
    env = {name: value for name, value in guest.identity.env.items() if usual.get(name) != value}
    yield checkpoints.removed_member(changes.gone)
    yield checkpoints.file_member(ENV, json.dumps({ENV: env}).encode())
    left = limit
    options = () if layer.is_whole else _ATTRIBUTES
    async with contextlib.aclosing(tar_of(guest, layer.read, changes.present, options)) as output:
        async for piece in output:
            left -= len(piece)
            if left < 0:
                raise RefusedError("body_too_large", f"the files are larger than {limit} bytes")
            yield piece


async def restore(guest: Guest, request: Request) -> Answer:
    """The body becomes the machine's files, before anything runs in it."""
    events = query_number(request.head.query, "events", 0, _LARGE)
    if guest.processes.live:
        raise RefusedError("not_possible", "something runs in this machine: its files are in use")
    layer = guest.layer
    async with guest.checkpoints.turn:
        with checkpoints.staged(guest.checkpoints.staging) as folder:
            await extract(guest, request, folder, "archive", () if layer.is_whole else _ATTRIBUTES)
            env = _env(folder)
            await guest.in_thread(_apply, guest, layer, folder)
    guest.identity.env = {**guest.identity.env, **env}
    if events is not None:
        guest.events.go_on_after(events)
    return Answer()


def _env(folder: str) -> dict[str, str]:
    try:
        with open(os.open(f"{folder}/{ENV}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            data = file.read(_ENV_LIMIT)
    except OSError:
        return {}
    return parse_object(data).environment(ENV) or {}


def _apply(guest: Guest, layer: Layer, folder: str) -> None:
    try:
        if layer.is_whole:
            checkpoints.clear(layer.written, folder)
        checkpoints.apply(layer.written, folder, copy_attributes)
        guest.identity.machine.settle()
    except OSError as exc:
        raise refusal_of(exc, "the files") from exc


ROUTES: dict[str, dict[str, Callable[[Guest, Request], Awaitable[AnyAnswer]]]] = {
    "/layer": {"GET": tell, "PUT": restore},
    "/layer/freeze": {"POST": freeze},
    "/layer/thaw": {"POST": thaw},
}

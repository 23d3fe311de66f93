"""The routes of checkpoints. While one is read, the agent stands still: its files are those of one moment."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from warren_guest import checkpoints
from warren_guest.archive_routes import CONTENT_TYPE
from warren_guest.children import Running
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.fields import bad_field, query_flag, query_number
from warren_guest.guest import PATH, Guest
from warren_guest.run_moments import Held
from warren_guest.server import BATCH, Answer, AnyAnswer, Request, Stream
from warren_guest.spawn import Program
from warren_guest.trees import Index, Root, look

_LARGE = 10**15
# An agent does not stand still for longer, whoever reads.
_HOLD_MS, _HOLD_LIMIT_MS = 120_000, 3_600_000
_CREATE = (
    *("--create", "--file=-", "--format=posix", "--sparse", "--numeric-owner", "--no-recursion"),
    *("--ignore-failed-read", "--null", "--verbatim-files-from", "--files-from=-"),
)
_EXTRACT = ("--extract", "--file=-", "--numeric-owner", "--preserve-permissions", "--delay-directory-restore")
_CHANGED = 1
_ENV = {"PATH": PATH, "LC_ALL": "C.UTF-8"}


async def make(guest: Guest, request: Request) -> Stream:
    """What is different since checkpoint `base`; all of it if that is not known."""
    query = request.head.query
    number, base = query_number(query, "number", 1, _LARGE), query_number(query, "base", 1, _LARGE)
    if number is None:
        raise bad_field("number", "is required")
    limit = query_number(query, "limit", 1, _LARGE) or _LARGE
    hold_ms = query_number(query, "hold_ms", 1, _HOLD_LIMIT_MS) or _HOLD_MS
    known = guest.checkpoints
    await known.turn.acquire()
    try:
        before = known.since(base)
        held = await guest.runs.hold()
    except BaseException:
        known.turn.release()
        raise
    telling = _Telling(guest, held, number, hold_ms / 1000)
    known_base = base if before is not None else None
    facts: dict[str, object] = {"number": number, "base": known_base, "run": held.run, "events": held.events}
    facts |= {"session": held.session, "used": held.used.facts()}
    headers = {"Warren-Checkpoint": json.dumps(facts)}
    return Stream(telling.pieces(before, limit), CONTENT_TYPE, close=telling.close, headers=headers)


class _Telling:
    """One checkpoint that is being told. When its time is over, or whoever reads it has left, the agent goes on."""

    def __init__(self, guest: Guest, held: Held, number: int, hold_s: float) -> None:
        self._guest, self._held, self._number = guest, held, number
        self._places = checkpoints.roots(guest.workspace, guest.session_home, held.session_folders)
        self._is_late = False
        self._timer = asyncio.get_running_loop().call_later(hold_s, self._give_up)

    def _give_up(self) -> None:
        self._is_late = True
        self._held.release()

    def close(self) -> None:
        self._timer.cancel()
        self._held.release()
        self._guest.checkpoints.turn.release()

    async def pieces(self, before: Index | None, limit: int) -> AsyncGenerator[bytes, None]:
        index = await self._guest.in_thread(look, self._places, time.time_ns())
        changes = checkpoints.difference(before, index)
        yield checkpoints.removed_member(changes.gone)
        left = limit
        async with contextlib.aclosing(tar_of(self._guest, self._places, changes.present)) as output:
            async for piece in output:
                left -= len(piece)
                if left < 0:
                    raise RefusedError("body_too_large", f"the checkpoint is larger than {limit} bytes")
                if self._is_late:
                    raise RefusedError("internal", "the checkpoint took too long: the agent goes on")
                yield piece
        if not self._is_late:  # else its last files were read while the agent worked
            self._guest.checkpoints.made(self._number, index)
            return
        raise RefusedError("internal", "the checkpoint took too long: the agent goes on")


async def tar_of(
    guest: Guest, places: tuple[Root, ...], names: list[bytes], options: tuple[str, ...] = ()
) -> AsyncGenerator[bytes, None]:
    """The files `names`, which are below `places`, as a tar stream."""
    account = guest.accounts.find("root" if os.geteuid() == 0 else None)
    with checkpoints.doors(places) as folder:
        program = Program("tar", (*options, *_CREATE), _ENV, folder, account, stdin=True)
        async with guest.git.children.running(program) as running, asyncio.TaskGroup() as group:
            feeding = group.create_task(running.feed(b"".join(name + b"\0" for name in names)))
            async with contextlib.aclosing(running.output()) as output:
                async for piece in output:
                    yield piece
            feeding.cancel()
        if running.code not in (0, _CHANGED):
            said = running.errors.decode("utf-8", "replace").strip()[-500:]
            raise RefusedError("internal", f"reading the files failed: {said}")


async def restore(guest: Guest, request: Request) -> Answer:
    """The body becomes part of the workspace and of the session: all of it (`whole`), or what it changes."""
    query = request.head.query
    is_whole, is_last = query_flag(query, "whole"), query_flag(query, "last")
    if guest.runs.facts()["state"] != "none":
        raise RefusedError("run_under_way", "an agent was started in this machine: nothing is restored below it")
    places = checkpoints.roots(guest.workspace, guest.session_home, ())
    async with guest.checkpoints.turn:
        with checkpoints.staged(guest.checkpoints.staging) as folder:
            await extract(guest, request, folder, "checkpoint")
            await guest.in_thread(_apply, places, folder, is_whole)
        if is_last:
            await guest.in_thread(checkpoints.unlock, guest.workspace)
    return Answer()


async def extract(guest: Guest, request: Request, folder: str, what: str, options: tuple[str, ...] = ()) -> None:
    """Unpack the body in `folder`, which is empty. Raises `bad_request` if it is none."""
    account = guest.accounts.find("root" if os.geteuid() == 0 else None)
    program = Program("tar", (*options, *_EXTRACT), _ENV, folder, account, stdin=True)
    async with guest.git.children.running(program) as running, asyncio.TaskGroup() as group:
        reading = group.create_task(_drain(running))
        with contextlib.suppress(_NotWanted):
            while pieces := await request.body.take(BATCH):
                await _give(running, pieces)
        if running.process.inlet is not None:
            await running.process.inlet.end()
        await reading
    if running.code != 0:
        said = running.errors.decode("utf-8", "replace").strip()[-500:]
        raise RefusedError("bad_request", f"the body is no {what}: {said}")


class _NotWanted(Exception):
    """Tar has ended before it had read everything; its own words say why."""


async def _give(running: Running, pieces: list[bytes]) -> None:
    try:
        await running.process.write(pieces)
    except RefusedError as exc:
        raise _NotWanted from exc


async def _drain(running: Running) -> None:
    async with contextlib.aclosing(running.output()) as output:
        async for _ in output:
            pass


def _apply(places: tuple[Root, ...], folder: str, is_whole: bool) -> None:
    try:
        if is_whole:
            checkpoints.clear(places, folder)
        checkpoints.apply(places, folder)
    except OSError as exc:
        raise refusal_of(exc, "the workspace") from exc


ROUTES: dict[str, dict[str, Callable[[Guest, Request], Awaitable[AnyAnswer]]]] = {
    "/checkpoint": {"GET": make, "PUT": restore}
}

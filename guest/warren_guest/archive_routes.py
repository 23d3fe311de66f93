"""The archive of a folder: a plain tar stream, made as it is read. Whoever leaves ends it; what fails breaks it off."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable

from warren_guest.accounts import Account
from warren_guest.children import Children
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.fields import query_number
from warren_guest.guest import PATH, Guest
from warren_guest.paths import bad_path, resolve
from warren_guest.server import AnyAnswer, Request, Stream
from warren_guest.spawn import Program

CONTENT_TYPE = "application/x-tar"
_LARGE = 10**18 - 1
# Holes stay holes. Sockets are left out by tar itself, with a word about it; other file systems by this option.
_OPTIONS = ("--create", "--file=-", "--format=posix", "--sparse", "--one-file-system", "--numeric-owner", "--", ".")
# "Some files differ": one that was written while it was read. A workspace that lives has such files.
_CHANGED = 1
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def archive(guest: Guest, request: Request) -> Stream:
    query = request.head.query
    limit = query_number(query, "limit", 1, _LARGE) or _LARGE
    path = resolve(query.get("path") or guest.workspace, guest.accounts.find(None), guest.accounts)
    opened: list[int] = []
    try:
        await guest.in_thread(lambda: opened.append(_open_below(guest.workspace, path)))
    except asyncio.CancelledError:
        for fd in opened:
            os.close(fd)
        raise
    (fd,) = opened
    program = Program("tar", _OPTIONS, {"PATH": PATH, "LC_ALL": "C.UTF-8"}, f"/proc/self/fd/{fd}", _reader(guest))
    return Stream(_tell(guest.git.children, program, path, limit), CONTENT_TYPE, close=lambda: os.close(fd))


def _reader(guest: Guest) -> Account:
    """The guest reads with its own rights: all that is in a workspace is to be kept, whoever owns it."""
    return guest.accounts.find("root" if os.geteuid() == 0 else None)


def _open_below(workspace: str, path: str) -> int:
    """The folder `path`, which is `workspace` or below it. No link leads out: none is followed on the way."""
    below = os.path.relpath(path, workspace)
    if below == ".." or below.startswith("../"):
        raise bad_path(f"{path} is not in {workspace}", "path")
    try:
        fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in below.split("/"):
            above, fd = fd, -1
            try:
                fd = os.open(name, _FOLDER, dir_fd=above)
            finally:
                os.close(above)
    except OSError as exc:
        raise refusal_of(exc, path) from exc
    return fd


async def _tell(children: Children, program: Program, path: str, limit: int) -> AsyncGenerator[bytes, None]:
    async with children.running(program) as running:
        left = limit
        async with contextlib.aclosing(running.output()) as output:
            async for piece in output:
                left -= len(piece)
                if left < 0:
                    raise RefusedError("body_too_large", f"the archive of {path} is larger than {limit} bytes")
                yield piece
        if running.code not in (0, _CHANGED):
            said = running.errors.decode("utf-8", "replace").strip()[-500:]
            raise RefusedError("internal", f"the archive of {path} failed: {said}")


ROUTES: dict[str, dict[str, Callable[[Guest, Request], Awaitable[AnyAnswer]]]] = {"/archive": {"GET": archive}}

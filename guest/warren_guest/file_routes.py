"""The routes of files: each parses, calls a plain function in a thread, and streams what comes back."""

import asyncio
from collections.abc import AsyncGenerator

from warren_guest import files, watches
from warren_guest.accounts import Account
from warren_guest.bell import Bell
from warren_guest.errors import RefusedError
from warren_guest.events import COMMENT, COMMENT_S, CONTENT_TYPE, sse
from warren_guest.fields import Fields, bad_field, query_flag, query_number
from warren_guest.guest import WATCH_LIMIT, Guest
from warren_guest.paths import Entry, entry_of, resolve
from warren_guest.requests import read_object
from warren_guest.server import BATCH, Answer, AnyAnswer, FileRange, Request, Stream
from warren_guest.uploads import Upload, parse_content_range, parse_mode, write_whole
from warren_guest.wire import to_json

OCTETS = "application/octet-stream"
_DEPTH_LIMIT = 1_000_000


def _asked(guest: Guest, request: Request) -> tuple[str, Account]:
    """The path and the account of a request with both in its query."""
    query = request.head.query
    account = guest.accounts.find(query.get("user"))
    return resolve(query.get("path", ""), account, guest.accounts), account


def _named(guest: Guest, fields: Fields, name: str = "path") -> tuple[str, Account]:
    """The path and the account of a request with both in its body."""
    account = guest.accounts.find(fields.text("user"))
    return resolve(fields.required_text(name), account, guest.accounts, name), account


async def read(guest: Guest, request: Request) -> AnyAnswer:
    path, _ = _asked(guest, request)
    opened = await guest.in_thread(files.open_to_read, path)
    try:
        return _content(guest, opened, request.head.headers.get("range"))
    except BaseException:
        opened.file.close()
        raise


def _content(guest: Guest, opened: files.OpenFile, asked: str | None) -> AnyAnswer:
    if opened.size is None and opened.start:
        return Stream(_read_on(guest, opened), OCTETS, close=opened.file.close)
    size = opened.size or 0
    part = None if asked is None else files.parse_range(asked, size)
    offset, count = part or (0, size)
    headers = {"Accept-Ranges": "bytes"}
    if part is not None:
        headers["Content-Range"] = f"bytes {offset}-{offset + count - 1}/{size}"
    status = 200 if part is None else 206
    if size > files.SMALL:
        return FileRange(opened.file, offset, count, status, headers)
    opened.file.close()
    return Answer(opened.start[offset : offset + count], status, OCTETS, headers)


async def _read_on(guest: Guest, opened: files.OpenFile) -> AsyncGenerator[bytes, None]:
    data = opened.start
    while data:
        yield data
        data = await guest.in_thread(files.read_some, opened.file)


async def put(guest: Guest, request: Request) -> Answer:
    path, account = _asked(guest, request)
    offset, count = parse_content_range(request.head.headers.get("content-range")) or (0, None)
    upload = Upload(path, account, parse_mode(request.head.query.get("mode")), offset, count)
    if count is not None and request.head.length not in (None, count):
        raise bad_field("Content-Range", f"the range has {count} bytes, the body {request.head.length}")
    pieces = await request.body.take(BATCH)
    if not pieces or request.body.is_drained:
        # All of it is here: open, write and close in one hop.
        entry = await guest.in_thread(write_whole, upload, pieces, guest.accounts)
    else:
        entry = await _put_on(guest, request, upload, pieces)
    return Answer(to_json({"bytes": upload.written, "entry": entry}))


async def _put_on(guest: Guest, request: Request, upload: Upload, pieces: list[bytes]) -> Entry:
    try:
        while pieces:
            await guest.in_thread(upload.write, pieces)
            pieces = await request.body.take(BATCH)
        return await guest.in_thread(upload.finish, guest.accounts)
    finally:
        upload.close()


async def write(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    path, account = _named(guest, fields)
    content = fields.decoded("content_base64")
    if (content is None) == (not fields.has("content")):
        raise bad_field("content", "give either content or content_base64")
    if content is None:
        content = fields.content("content").encode()
    upload = Upload(path, account, parse_mode(fields.text("mode")))
    entry = await guest.in_thread(write_whole, upload, [content], guest.accounts)
    return Answer(to_json({"bytes": upload.written, "entry": entry}))


async def show(guest: Guest, request: Request) -> Answer:
    path, _ = _asked(guest, request)
    return Answer(to_json({"entry": await guest.in_thread(entry_of, path, guest.accounts)}))


async def list_below(guest: Guest, request: Request) -> Answer:
    path, _ = _asked(guest, request)
    depth = query_number(request.head.query, "depth", 1, _DEPTH_LIMIT) or 1
    return Answer(await guest.in_thread(_listing, path, depth, guest))


def _listing(path: str, depth: int, guest: Guest) -> bytes:
    entries, truncated = files.list_folder(path, depth, guest.accounts)
    return to_json({"entries": entries, "truncated": truncated})


async def make(guest: Guest, request: Request) -> Answer:
    path, account = _named(guest, await read_object(request))
    entry = await guest.in_thread(files.make_folder, path, account, guest.accounts)
    return Answer(to_json({"entry": entry}))


async def move(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    source, account = _named(guest, fields, "source")
    destination, _ = _named(guest, fields, "destination")
    entry = await guest.in_thread(files.move, source, destination, account, guest.accounts)
    return Answer(to_json({"entry": entry}))


async def remove(guest: Guest, request: Request) -> Answer:
    path, _ = _named(guest, await read_object(request))
    await guest.in_thread(files.remove, path)
    return Answer()


async def watch(guest: Guest, request: Request) -> Stream:
    path, _ = _asked(guest, request)
    recursive = query_flag(request.head.query, "recursive")
    if guest.watches >= WATCH_LIMIT:
        raise RefusedError("too_many_watches", f"{WATCH_LIMIT} folders are watched")
    guest.watches += 1
    try:
        opened = await guest.in_thread(watches.Watch, path, recursive)
    except BaseException:
        guest.watches -= 1
        raise
    return Stream(_tell_changes(opened), CONTENT_TYPE, close=lambda: _end_watch(guest, opened))


def _end_watch(guest: Guest, opened: watches.Watch) -> None:
    guest.watches -= 1
    opened.close()


async def _tell_changes(opened: watches.Watch) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    bell = Bell()
    loop.add_reader(opened.fd, bell.ring)
    try:
        yield sse("start", {})
        while True:
            changes = opened.drain()
            if changes:
                yield b"".join(sse(kind, {"name": name} if name else {}) for kind, name in changes)
                await asyncio.sleep(0)  # what happens without end must not keep others waiting
            elif opened.is_over:
                return
            elif not await bell.wait(COMMENT_S):
                yield COMMENT
    finally:
        loop.remove_reader(opened.fd)

"""From a guest into the store, and back. A version is what is there when its manifest is: all before that is nobody's.

While a guest is read, its programs go on: a file that is written just then may be half of it, and comes again with the
next version.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from contract.errors import NotFound
from contract.workspaces import WorkspaceTooLarge
from poold.archives import archive as archives
from poold.archives.archive import Archive
from poold.archives.errors import ArchiveTooLarge
from poold.archives.writing import pieces_of
from poold.errors import GuestError, GuestTooOld
from poold.lifetimes import finish
from poold.link import Answer, Guest
from poold.store import Content, Progress, silent
from poold.store.errors import Corrupt
from poold.workspaces import content, listing
from poold.workspaces.census import WorkspaceCensus
from poold.workspaces.errors import Damaged
from poold.workspaces.listing import Inconsistent, Listing
from poold.workspaces.manifest import Manifest, Object
from poold.workspaces.places import Place
from poold.workspaces.shelf import Shelf

FEATURE = "checkpoint"
HEAD_S = 60.0
HOLD_MS = 3_600_000
RESTORE_S = 1800.0  # once the guest has all of it
SAVE_S = 3600.0  # of all of it: what is removed from the store is not so young
MAX_CHAIN = 12  # packs of a version; the next one is whole again
MB = 1 << 20


@dataclass(frozen=True)
class Wish:
    """What is to be saved, and what is known of it."""

    place: Place
    sandbox: str | None
    mark: int  # what the guest is to call this
    base: int | None = None  # the version that its files were, before they changed
    base_mark: int | None = None  # what the guest calls that; None: it has none
    task: str | None = None
    template: str | None = None


@dataclass(frozen=True)
class Outcome:
    """`version` None: there is nothing, and never was. `mark` None: the guest has to tell all of it the next time."""

    version: int | None
    is_new: bool
    mark: int | None


@dataclass(frozen=True)
class _Taken:
    """What a guest has told, on this host's disk."""

    archive: Archive
    census: WorkspaceCensus
    is_delta: bool


async def save(shelf: Shelf, guest: Guest, wish: Wish, progress: Progress = silent) -> Outcome:
    """One more version, unless nothing has changed. If this raises or is cancelled, there is none; or nobody was told.

    Raises `WorkspaceTooLarge`, `BadArchive`, and what guests and the store raise.
    """
    spool = shelf.spool()
    try:
        async with asyncio.timeout(SAVE_S):
            base = await _known(shelf, wish)
            try:
                return await _save(shelf, guest, wish, base, spool, progress)
            except Inconsistent:
                return await _save(shelf, guest, wish, base, spool, progress, is_whole=True)
    except ArchiveTooLarge as error:
        raise WorkspaceTooLarge(error.message, limit=shelf.limits.bytes) from None
    except TimeoutError:
        raise GuestError(f"the workspace was not saved within {SAVE_S:g} s") from None
    finally:
        await finish(asyncio.to_thread(spool.unlink, missing_ok=True))


async def _known(shelf: Shelf, wish: Wish) -> tuple[Manifest, Listing] | None:
    """The version that its files were; None if there was none, or if it cannot be used any more."""
    if wish.base is None:
        return None
    try:
        whole = await shelf.manifest(wish.place, wish.base)
        return whole, await shelf.listing(wish.place, whole)
    except (NotFound, Damaged, Corrupt):
        return None


async def _save(  # noqa: PLR0917 — what is saved, from where, to where
    shelf: Shelf,
    guest: Guest,
    wish: Wish,
    base: tuple[Manifest, Listing] | None,
    spool: Path,
    progress: Progress,
    *,
    is_whole: bool = False,
) -> Outcome:
    can_follow = base is not None and not is_whole and len(base[0].packs) < MAX_CHAIN
    taken = await _take(shelf, guest, wish, spool, base_mark=wish.base_mark if can_follow else None)
    changed = taken.census.listing()
    old = base[0] if base is not None and taken.is_delta else None
    before = base[1] if base is not None else {}
    packs = () if old is None else old.packs
    after = listing.overlaid(before, taken.census.removed(), changed, len(packs)) if old is not None else changed
    if listing.is_same(before, after):
        return Outcome(wish.base, is_new=False, mark=wish.mark if wish.base is not None else None)
    if len(after) > shelf.limits.files:
        limit = shelf.limits.files
        raise WorkspaceTooLarge(f"the workspace has more than the {limit} files that this host keeps", limit=limit)
    if (there := await _is_there(shelf, wish, after)) is not None:
        return Outcome(there, is_new=False, mark=wish.mark)
    if changed:
        packs = (*packs, await put_pack(shelf, wish.place, taken.archive, spool, progress))
    whole = await add_version(shelf, wish.place, packs, after, parent=wish.base, origin=_origin(wish, base is None))
    return Outcome(whole.version, is_new=True, mark=wish.mark)


def _origin(wish: Wish, is_first: bool) -> dict[str, Any]:
    return {"sandbox": wish.sandbox, "task": wish.task, "template": wish.template if is_first else None}


async def _is_there(shelf: Shelf, wish: Wish, after: Listing) -> int | None:
    """The newest version, if this sandbox has saved just this and was never told that it had."""
    try:
        newest = await shelf.newest(wish.place)
        if newest is None or newest.sandbox != wish.sandbox or newest.version == wish.base:
            return None
        return newest.version if listing.is_same(await shelf.listing(wish.place, newest), after) else None
    except (Damaged, Corrupt):
        return None


async def _take(shelf: Shelf, guest: Guest, wish: Wish, spool: Path, *, base_mark: int | None) -> _Taken:
    """What the guest tells, checked and on this host's disk."""
    limit = shelf.limits.bytes
    asked = {"number": wish.mark, "limit": limit + MB, "hold_ms": HOLD_MS}
    asked |= {} if base_mark is None else {"base": base_mark}
    census = WorkspaceCensus(shelf.limits.files)
    async with guest.exchange("GET", f"/checkpoint?{urlencode(asked)}", limit_s=HEAD_S) as answer:
        is_delta = base_mark is not None and _base_of(answer) == base_mark
        kept = await archives.keep(answer.chunks(), spool, limit_bytes=limit, census=census)
    return _Taken(kept, census, is_delta)


def _base_of(answer: Answer) -> object:
    try:
        told = orjson.loads(answer.headers.get("warren-checkpoint", ""))
        return told["base"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        raise GuestError("the guest does not say what its checkpoint is of") from None


async def put_pack(shelf: Shelf, place: Place, kept: Archive, path: Path, progress: Progress = silent) -> Object:
    """The file `path` is in the store."""
    pack = Object(place.pack(shelf.now_ms(), kept.sha256), kept.bytes)
    written = Content(partial(pieces_of, path), kept.bytes, kept.sha256)
    await shelf.store.write(place.prefix + pack.key, written, progress)
    await shelf.must_exist(place, pack)
    return pack


async def add_version(
    shelf: Shelf,
    place: Place,
    packs: tuple[Object, ...],
    after: Listing,
    *,
    parent: int | None,
    origin: dict[str, Any],
    only: int | None = None,
) -> Manifest:
    """The listing, and then the version."""
    data = await asyncio.to_thread(listing.encode, after)
    told = Object(place.listing(shelf.now_ms(), hashlib.sha256(data).hexdigest()), len(data))
    await shelf.store.put(place.prefix + told.key, data)
    size_bytes, files = listing.totals(after)
    draft = Manifest(
        cluster=shelf.cluster,
        owner=place.owner,
        name=place.name,
        version=0,
        parent=parent,
        created_ms=shelf.now_ms(),
        size_bytes=size_bytes,
        files=files,
        packs=packs,
        listing=told,
        **origin,
    )
    return await shelf.add(place, draft, only=only)


async def pull(shelf: Shelf, guest: Guest, place: Place, whole: Manifest, progress: Progress = silent) -> None:
    """Let the guest's workspace be that version. If this raises or is cancelled, it is as it was, or is no more.

    Raises `Damaged`, `Corrupt`, `GuestRefused`, and what guests and the store raise.
    """
    features = (await guest.call("GET", "/health")).get("features")
    if not isinstance(features, list) or FEATURE not in features:
        raise GuestTooOld("the image is from before there were workspaces: build it again")
    after = await shelf.listing(place, whole)
    async with (
        contextlib.aclosing(content.files(shelf, place, whole, after)) as chunks,
        contextlib.aclosing(_counted(chunks, whole.size_bytes, progress)) as counted,
        guest.exchange("PUT", "/checkpoint?whole=1&last=1", body=counted, limit_s=RESTORE_S) as answer,
    ):
        await answer.read(1 << 16)


async def _counted(chunks: AsyncIterator[bytes], of: int, progress: Progress) -> AsyncGenerator[bytes, None]:
    done = 0
    async for chunk in chunks:
        yield chunk
        done += len(chunk)
        progress(min(done, of), of)

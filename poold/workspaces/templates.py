"""Templates: what workspaces begin with. Those that come with Warren are put into the store by whoever misses them."""

import asyncio
import hashlib
import io
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from contract.errors import BadField, CallerError, NotFound, WarrenError
from contract.workspaces import Template, WorkspaceTooLarge
from poold.archives import archive as archives
from poold.archives.errors import ArchiveTooLarge, BadArchive
from poold.lifetimes import finish
from poold.store.errors import Conflict
from poold.tarring import put_folder
from poold.workspaces.census import WorkspaceCensus
from poold.workspaces.manifest import Manifest
from poold.workspaces.places import of_template
from poold.workspaces.saving import add_version, put_pack
from poold.workspaces.shelf import Shelf, Unread

log = logging.getLogger("poold.workspaces")

SHIPPED = Path(__file__).with_name("shipped")
MAX_LISTED = 1000


class BadTemplate(CallerError):
    """What was sent is no archive that a workspace could begin with."""

    code = "bad_template"


async def get(shelf: Shelf, name: str) -> Manifest:
    """Raises `BadField` if there is none."""
    found = await shelf.newest(of_template(name))
    if found is None:
        known = ", ".join(await shelf.names(None, "", MAX_LISTED)) or "none"
        raise BadField("template", name, f"there is no such template; there are: {known}")
    return found


async def listed(shelf: Shelf) -> list[dict[str, Any]]:
    found = await shelf.newest_of(None, await shelf.names(None, "", MAX_LISTED))
    return [vars(_view(each)) for each in found if not isinstance(each, Unread)]


def _view(each: Manifest) -> Template:
    return Template(each.name, each.size_bytes, each.files, each.created_ms, each.release is not None)


async def add(
    shelf: Shelf,
    name: str,
    chunks: AsyncIterator[bytes],
    *,
    release: str | None = None,
    source: str | None = None,
    only: int | None = None,
) -> Template:
    """Let the tar stream `chunks`, all of it below `workspace/`, be the template from now on."""
    place, census, spool = of_template(name), WorkspaceCensus(shelf.limits.files), shelf.spool()
    try:
        kept = await archives.keep(chunks, spool, limit_bytes=shelf.limits.bytes, census=census)
        pack = await put_pack(shelf, place, kept, spool)
    except BadArchive as error:
        raise BadTemplate(error.message) from None
    except ArchiveTooLarge as error:
        raise WorkspaceTooLarge(error.message, limit=shelf.limits.bytes) from None
    finally:
        await finish(asyncio.to_thread(spool.unlink, missing_ok=True))
    origin = {"release": release, "source": source}
    whole = await add_version(shelf, place, (pack,), census.listing(), parent=None, origin=origin, only=only)
    await shelf.prune(place, versions=1, days=0)
    return _view(whole)


async def remove(shelf: Shelf, name: str) -> None:
    try:
        await shelf.delete(of_template(name))
    except NotFound:
        raise NotFound(f"no template {name!r}", template=name) from None


async def ship(shelf: Shelf, release: str, folder: Path = SHIPPED) -> list[str]:
    """Put templates that came with this release into the store, where they are missing or older. Which they were.

    An operator's own of the same name stays. Of several hosts that do it at once one wins.
    """
    done = []
    for name, data in (await asyncio.to_thread(_shipped, folder)).items():
        source = hashlib.sha256(data).hexdigest()
        try:
            found = await shelf.newest(of_template(name))
            if found is not None and not _is_older(found, release, source):
                continue
            only = 1 if found is None else found.version + 1
            await add(shelf, name, _once(data), release=release, source=source, only=only)
            done.append(name)
        except Conflict:
            continue
        except WarrenError as error:  # the host serves without it, and the next one tries again
            log.warning("a template was not put into the store", extra={"template": name, "why": str(error)})
    return done


def _shipped(folder: Path) -> dict[str, bytes]:
    """By name, as tar streams. Blocks."""
    return {path.name: packed(path) for path in sorted(folder.iterdir()) if path.is_dir()}


def _is_older(found: Manifest, release: str, source: str) -> bool:
    if found.release is None or found.source == source:
        return False
    return _numbers(found.release) <= _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".") if part.isdigit()]


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def packed(folder: Path) -> bytes:
    """The folder as a tar stream: the same files give the same bytes. Blocks."""
    stream = io.BytesIO()
    put_folder(folder, stream)
    return stream.getvalue()

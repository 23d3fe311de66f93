"""What no version names is removed from the store: not at once, and never if it is not certain that no version does."""

import logging
from typing import Any

import orjson

from contract.errors import NotFound
from poold.store.errors import Corrupt, NoObject
from poold.workspaces.errors import Damaged
from poold.workspaces.places import Place, made_ms
from poold.workspaces.shelf import DAY_MS, Shelf

log = logging.getLogger("poold.workspaces")

GRACE_MS = DAY_MS  # whoever is about to name something has done so after this; a save has an hour


async def sweep(shelf: Shelf, place: Place) -> bool:
    """Remove what is superfluous. Whether all of it is gone; if not, it may be tomorrow."""
    try:
        named = await _named(shelf, place)
    except (Damaged, Corrupt) as error:
        log.warning("nothing is removed beside a version that cannot be read", extra={"object": error.key})
        return False
    now_ms, is_all = shelf.now_ms(), True
    old: list[str] = []
    async for entry in shelf.store.list(place.gone):  # behind the versions: what went meanwhile is here
        gone = await _gone(shelf, entry.key)
        if gone is None:
            continue
        if gone["gone_ms"] > now_ms - GRACE_MS:
            named |= set(gone["objects"])
            is_all = False
        else:
            old.append(entry.key)
    for folder in ("packs/", "listings/"):
        async for entry in shelf.store.list(place.prefix + folder):
            begun_ms = made_ms(entry.key)
            if entry.key.removeprefix(place.prefix) in named or begun_ms is None:
                continue
            if begun_ms > now_ms - GRACE_MS:
                is_all = False
            else:
                await shelf.store.delete(entry.key)
    for key in old:
        await shelf.store.delete(key)
    return is_all


async def _named(shelf: Shelf, place: Place) -> set[str]:
    named: set[str] = set()
    for number in await shelf.numbers(place):
        try:
            named |= {each.key for each in (await shelf.manifest(place, number)).objects}
        except NotFound:
            continue  # it went just now, and is among those that are gone
    return named


async def _gone(shelf: Shelf, key: str) -> dict[str, Any] | None:
    try:
        told = orjson.loads((await shelf.store.get(key)).data)
        return {"gone_ms": int(told["gone_ms"]), "objects": [str(each) for each in told["objects"]]}
    except NoObject:
        return None
    except (Corrupt, ValueError, KeyError, TypeError) as error:
        raise Damaged(key, f"it makes no sense ({type(error).__name__})") from error

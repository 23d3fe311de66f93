"""Versions in the store: found, won, and given up. What can be wrong with one costs that one only."""

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.errors import NotFound
from contract.workspaces import no_version, no_workspace
from poold.store import Store
from poold.store.errors import Conflict, Corrupt, NoObject
from poold.workspace_config import WorkspacesConfig
from poold.workspaces import listing, manifest
from poold.workspaces.errors import Damaged
from poold.workspaces.listing import Listing
from poold.workspaces.manifest import Manifest, Object
from poold.workspaces.places import Place, marks_of, number_of

log = logging.getLogger("poold.workspaces")

DAY_MS = 24 * 3600 * 1000
AT_ONCE = 16  # small objects that are asked for


@dataclass(frozen=True)
class Unread:
    """A version that cannot be read."""

    name: str
    version: int
    problem: str

    def version_view(self) -> dict[str, Any]:
        empty = dict.fromkeys(("parent", "sandbox", "task", "restored_from", "template"))
        return {"version": self.version, "created_ms": 0, "size_bytes": 0, "files": 0, **empty, "problem": self.problem}

    def summary(self) -> dict[str, Any]:
        said = {"name": self.name, "version": self.version, "size_bytes": 0, "files": 0, "updated_ms": 0}
        return {**said, "problem": self.problem}


class Shelf:
    """The workspaces of one store. `folder` is for what is only passing through; what is left there is removed."""

    def __init__(
        self, store: Store, cluster: str, limits: WorkspacesConfig, folder: Path, now_ms: Callable[[], int]
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.limits = limits
        self.now_ms = now_ms
        self._folder = folder

    def clear(self) -> None:
        """Remove what a former daemon left. Blocks."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def spool(self) -> Path:
        """A place for a file that nobody else has."""
        return self._folder / secrets.token_hex(8)

    async def numbers(self, place: Place) -> list[int]:
        """The versions that there are, in order."""
        found = [number_of(entry.key) async for entry in self.store.list(place.versions)]
        return sorted(number for number in found if number is not None)

    async def manifest(self, place: Place, version: int) -> Manifest:
        """Raises `NotFound` if there is none, and `Damaged` or `Corrupt` if it is not what was written."""
        key = place.version(version)
        try:
            data = (await self.store.get(key)).data
        except NoObject:
            raise no_version(place.name, version) from None
        return manifest.decode(key, data, place, version, self.cluster)

    async def newest(self, place: Place) -> Manifest | None:
        """None: there is no version. One that cannot be read is not passed over for an older one."""
        numbers = await self.numbers(place)
        with contextlib.suppress(NotFound):  # it was deleted just now
            return await self.manifest(place, numbers[-1]) if numbers else None
        return None

    async def must_have(self, place: Place, version: int | None = None) -> Manifest:
        """That version, or the newest. Raises `NotFound`."""
        found = await self.newest(place) if version is None else await self.manifest(place, version)
        if found is None:
            raise no_workspace(place.name)
        return found

    async def listing(self, place: Place, whole: Manifest) -> Listing:
        """What there is in a version. Raises `Damaged` or `Corrupt`."""
        key = place.prefix + whole.listing.key
        try:
            blob = await self.store.get(key)
        except NoObject:
            raise Damaged(key, "it is missing") from None
        must_be(key, whole.listing, blob.entry.sha256, blob.entry.bytes)
        return await asyncio.to_thread(listing.decode, key, blob.data, len(whole.packs))

    async def add(self, place: Place, draft: Manifest, *, only: int | None = None) -> Manifest:
        """Let `draft` be a new version: of several who try at once each gets a number, and the last is the newest.

        With `only` it has that number, or `Conflict` is raised.
        """
        number = only or max(await self.numbers(place), default=0) + 1
        while True:
            whole = draft.numbered(number)
            try:
                await self.store.create(place.version(number), manifest.encode(whole))
            except Conflict:
                if only is not None:
                    raise
                number += 1
            else:
                break
        # Behind the version: whoever deletes the workspace removes this first.
        with contextlib.suppress(Conflict):
            await self.store.create(place.mark, b"{}")
        return whole

    async def restore(self, place: Place, version: int) -> Manifest:
        """A new version with the files of an earlier one. Both are made of the same objects."""
        old = await self.manifest(place, version)
        await self.listing(place, old)  # what cannot be used is not made the newest
        for each in old.packs:
            await self.must_exist(place, each)
        numbers = await self.numbers(place)
        draft = Manifest(
            **{name: getattr(old, name) for name in ("cluster", "owner", "name", "size_bytes", "files", "packs")},
            listing=old.listing,
            version=0,
            parent=numbers[-1] if numbers else None,
            created_ms=self.now_ms(),
            restored_from=version,
        )
        return await self.add(place, draft)

    async def must_exist(self, place: Place, wanted: Object) -> None:
        """Raises `Damaged` if the object is not there, or is another."""
        key = place.prefix + wanted.key
        try:
            entry = await self.store.head(key)
        except NoObject:
            raise Damaged(key, "it is missing") from None
        must_be(key, wanted, entry.sha256, entry.bytes)

    # What is listed

    async def names(self, owner: str | None, after: str, limit: int) -> list[str]:
        """Names of workspaces that there are, or were just now. In order."""
        top = marks_of(owner)
        found = []
        async for entry in self.store.list(top):
            name = entry.key.removeprefix(top)
            if name > after:
                found.append(name)
        return sorted(found)[:limit]

    async def newest_of(self, owner: str | None, names: list[str]) -> list[Manifest | Unread]:
        """The newest version of each that has one, in order."""
        found: list[Manifest | Unread] = []
        for at in range(0, len(names), AT_ONCE):
            places = [Place(owner, name) for name in names[at : at + AT_ONCE]]
            found += [each for each in await asyncio.gather(*map(self._newest_or_problem, places)) if each is not None]
        return found

    async def versions_of(self, place: Place, numbers: list[int]) -> list[Manifest | Unread]:
        """These versions, as far as they are there still."""
        found: list[Manifest | Unread] = []
        for at in range(0, len(numbers), AT_ONCE):
            some = [self._or_problem(place, number) for number in numbers[at : at + AT_ONCE]]
            found += [each for each in await asyncio.gather(*some) if each is not None]
        return found

    async def _newest_or_problem(self, place: Place) -> Manifest | Unread | None:
        numbers = await self.numbers(place)
        return await self._or_problem(place, numbers[-1]) if numbers else None

    async def _or_problem(self, place: Place, number: int) -> Manifest | Unread | None:
        try:
            return await self.manifest(place, number)
        except NotFound:
            return None
        except (Damaged, Corrupt) as error:
            return Unread(place.name, number, error.message)

    # What is given up

    async def delete(self, place: Place) -> int:
        """All versions. How many there were. What they are made of is swept away later."""
        await self.store.delete(place.mark)
        numbers = await self.numbers(place)
        for number in numbers:
            await self._retire(place, number)
        if not numbers:
            raise no_workspace(place.name)
        return len(numbers)

    async def prune(self, place: Place, *, versions: int | None = None, days: int | None = None) -> int:
        """Give up versions that are both too many and too old. How many they were."""
        keep = self.limits.versions if versions is None else versions
        oldest_ms = self.now_ms() - DAY_MS * (self.limits.days if days is None else days)
        given_up = 0
        for number in (await self.numbers(place))[:-keep]:
            try:
                if (await self.manifest(place, number)).created_ms > oldest_ms:
                    break
            except NotFound:
                continue
            except (Damaged, Corrupt) as error:
                log.warning("a version cannot be read and stays", extra={"object": error.key, "why": error.problem})
                continue
            await self._retire(place, number)
            given_up += 1
        return given_up

    async def _retire(self, place: Place, number: int) -> None:
        """Before a version goes, what it named is written down with the time: some are about to name that, too."""
        try:
            named = [each.key for each in (await self.manifest(place, number)).objects]
        except NotFound:
            return
        except (Damaged, Corrupt):  # somebody wants it gone; what it named nobody knows
            named = []
        now_ms = self.now_ms()
        record = orjson.dumps({"gone_ms": now_ms, "objects": named})
        await self.store.put(f"{place.gone}{number}-{now_ms:013d}.json", record)
        await self.store.delete(place.version(number))


def must_be(key: str, wanted: Object, sha256: str, size: int) -> None:
    if (sha256, size) != (wanted.sha256, wanted.bytes):
        raise Damaged(key, f"it has {size} bytes and the hash {sha256[:12]}…, and not those that its version names")

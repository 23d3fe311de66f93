"""What nobody needs any more in the store that hosts share, found and removed. Only what is provably nobody's.

- Golden memories that no manifest names. If one manifest cannot be read, nobody knows what it names: none is removed.
- Replicas of ledgers whose line was carried on by another host: not of the line that is being written, and in no note
  of a lease; nor one that this host has not wholly taken in. Of a host without a lease that can be read nothing is
  removed.
- Parts of hibernations that have no manifest: no ledger ever named them.

All of it only when its newest object is older than a limit. What was found is looked at again before it is removed.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from contract.errors import WarrenError
from poold.hibernate import depot, goldens
from poold.hibernate.errors import Damaged, NotOurs
from poold.hibernate.manifest import FILE, decode_golden, decode_manifest
from poold.lease.starting import PREFIX as LEASES
from poold.lease.written import BadLease, Lease
from poold.store import Entry, Store
from poold.store.errors import Conflict, Corrupt, NoObject

log = logging.getLogger("poold.sweeping")

USUAL_DAYS = 7
DAY_MS = 24 * 3600 * 1000
HIBERNATED, GOLDENS, REPLICAS = f"{depot.FOLDER}/", f"{goldens.FOLDER}/", "ledger/"


@dataclass(frozen=True)
class Nobodys:
    """Objects of one prefix that belong to nobody."""

    kind: str  # "golden", "replica" or "hibernated"
    prefix: str
    keys: tuple[str, ...]
    bytes: int
    newest_ms: int

    def view(self) -> dict[str, Any]:
        told = {"kind": self.kind, "prefix": self.prefix, "objects": len(self.keys)}
        return {**told, "bytes": self.bytes, "newest_ms": self.newest_ms}


@dataclass
class Swept:
    """What was found to be nobody's, what of it was kept after a second look, and what could not be judged."""

    found: list[Nobodys] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        gone = [each for each in self.found if each.prefix not in self.spared]
        told = {"swept": [each.view() for each in gone], "bytes": sum(each.bytes for each in gone)}
        return {**told, "spared": self.spared, "unsure": self.unsure}


async def sweep(store: Store, *, named: frozenset[str], before_ms: int, is_dry: bool) -> Swept:
    """Remove what is nobody's and was written before `before_ms`. `named`: prefixes that this host's ledger knows."""
    swept = Swept()
    old = _Old(before_ms)
    uses = await _uses(store)
    swept.unsure += uses.unreadable
    swept.found += old.nobodys("hibernated", (each for each in uses.without_manifest.items() if each[0] not in named))
    if not uses.unreadable:
        groups = await _grouped(store, GOLDENS, 2)
        unnamed = ((prefix, found) for prefix, found in groups.items() if prefix.split("/")[1] not in uses.goldens)
        swept.found += old.nobodys("golden", unnamed)
    leases = await _leases(store, swept.unsure)
    replicas = (await _grouped(store, REPLICAS, 3)).items()
    over = (each for each in replicas if is_carried_on(each[0], leases) and each[0] not in named)
    swept.found += old.nobodys("replica", over)
    if not is_dry:
        for each in swept.found:
            if not await _remove(store, each):
                swept.spared.append(each.prefix)
    return swept


def is_carried_on(prefix: str, leases: dict[str, Lease]) -> bool:
    """Whether the line of a replica `ledger/HOST/EPOCH/` was taken by another host, and all of it is there."""
    _, host, epoch, *_ = prefix.split("/")
    lease = leases.get(host)
    if lease is None or not epoch.isdecimal() or not 0 < int(epoch) < lease.epoch:
        return False
    number = int(epoch)
    return not lease.has_in_line(number) and not any(each.root <= number <= each.last for each in lease.taken)


@dataclass(frozen=True)
class _Old:
    before_ms: int

    def nobodys(self, kind: str, groups: Iterable[tuple[str, list[Entry]]]) -> list[Nobodys]:
        """Those of which every object is old enough. Of one whose age is not known nothing is said."""
        found = []
        for prefix, entries in groups:
            times = [entry.written_ms for entry in entries]
            newest = max((at for at in times if at is not None), default=0)
            if None not in times and newest < self.before_ms:
                size = sum(entry.bytes for entry in entries)
                found.append(Nobodys(kind, prefix, tuple(entry.key for entry in entries), size, newest))
        return found


@dataclass
class _Uses:
    """What manifests in the store name."""

    goldens: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)
    without_manifest: dict[str, list[Entry]] = field(default_factory=dict)


async def _uses(store: Store) -> _Uses:
    uses = _Uses()
    for prefix, entries in (await _grouped(store, HIBERNATED, 3)).items():
        key = prefix + FILE
        if key not in {entry.key for entry in entries}:
            uses.without_manifest[prefix] = entries
            continue
        try:
            golden = decode_manifest(key, (await store.get(key)).data).golden
        except NoObject:
            continue  # it was just removed, by whoever it belonged to
        except (Damaged, NotOurs, Corrupt) as error:
            uses.unreadable.append(f"{key}: {error.message}")
        else:
            uses.goldens |= set() if golden is None else {golden}
    return uses


async def _leases(store: Store, unsure: list[str]) -> dict[str, Lease]:
    """Those that can be read, by host."""
    found = {}
    for key in [entry.key async for entry in store.list(LEASES)]:
        host = key.removeprefix(LEASES)
        try:
            found[host] = Lease.decode((await store.get(key)).data, host)
        except NoObject:
            continue
        except (BadLease, Corrupt) as error:
            unsure.append(f"{key}: {error}")
    return found


async def _grouped(store: Store, prefix: str, depth: int) -> dict[str, list[Entry]]:
    """All objects below `prefix`, by the first `depth` parts of their keys. What has fewer is not ours to judge."""
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    async for entry in store.list(prefix):
        parts = entry.key.split("/")
        if len(parts) > depth:
            groups["/".join(parts[:depth]) + "/"].append(entry)
    return groups


async def _remove(store: Store, what: Nobodys) -> bool:
    """Remove it, unless a second look finds that it is somebody's. Whether it is gone."""
    try:
        if what.kind == "golden":
            return await _remove_golden(store, what)
        if what.kind == "hibernated" and [entry async for entry in store.list(what.prefix + FILE)]:
            return False
        if what.kind == "replica" and not is_carried_on(what.prefix, await _leases(store, [])):
            return False
        await _delete(store, what.keys)
    except WarrenError as error:
        log.warning("something in the store was not swept away", extra={"prefix": what.prefix, "why": str(error)})
        return False
    log.info("swept away", extra=what.view())
    return True


async def _remove_golden(store: Store, what: Nobodys) -> bool:
    """Whoever hibernates looks for the mark after its manifest is there; and we look for manifests after the mark is.

    So either we see the manifest, or they see the mark and write the memory anew. What is deleted is what was listed.
    """
    name = what.prefix.split("/")[1]
    key = what.prefix + FILE
    try:
        blob = await store.get(key)
        mark = f"{what.prefix}{decode_golden(key, blob.data).at}/{goldens.DYING}"
    except NoObject:
        await _delete(store, what.keys)  # parts that never counted
        return True
    await store.put(mark, b"")
    uses = await _uses(store)
    if uses.unreadable or name in uses.goldens:
        await store.delete(mark)
        return False
    with contextlib.suppress(Conflict):  # somebody has written it anew
        await store.delete(key, blob.entry.tag)
        await _delete(store, (each for each in what.keys if each != key))
        await store.delete(mark)
        return True
    await store.delete(mark)
    return False


async def _delete(store: Store, keys: Iterable[str]) -> None:
    for key in keys:
        await store.delete(key)

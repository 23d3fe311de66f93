"""From a setting to a store that hosts may rely on: it can do what they need, and it is their own cluster's."""

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.errors import WarrenError, shown
from poold import files
from poold.places import S3Config
from poold.store import Observe, Store, unobserved
from poold.store.errors import Conflict, Corrupt, NoObject, WrongStore
from poold.store.folder import open_folder

CLUSTER_KEY = "cluster"
REMEMBERED = "cluster.json"  # in the state folder
VERSION = 1
_ID = re.compile(r"cl-[0-9a-f]{32}")


@dataclass(frozen=True)
class Shared:
    """What this host shares with others."""

    store: Store
    place: str  # as it was set
    cluster: str  # whose it is


@contextlib.asynccontextmanager
async def open_shared(
    where: Path | S3Config, state_dir: Path, *, observe: Observe = unobserved
) -> AsyncIterator[Shared]:
    """The store at `where`. Raises `WrongStore` if it is not what this host needs; then nothing in it was changed."""
    async with open_store(where, observe=observe) as store:
        known = await asyncio.to_thread(_remembered, state_dir)
        await _must_be_ours(store, where, known)
        await probe(store, where)
        cluster = await cluster_of(store)
        if known is None:
            await asyncio.to_thread(_remember, state_dir, cluster)
        elif known != cluster:
            raise _anothers(where, known, cluster)
        await store.sweep()
        yield Shared(store, str(where), cluster)


@contextlib.asynccontextmanager
async def open_store(where: Path | S3Config, *, observe: Observe = unobserved) -> AsyncIterator[Store]:
    """The store at `where`, whoever's it is and whatever it can do."""
    if isinstance(where, Path):
        async with open_folder(where, observe=observe) as folder:
            yield folder
    else:
        from poold.store.s3 import open_s3

        async with open_s3(where, observe=observe) as s3:
            yield s3


async def probe(store: Store, where: object) -> None:
    """Raises `WrongStore` if a write is not read, or a write with a condition is done though it does not hold."""
    key, first, second = f"probe/{secrets.token_hex(16)}", secrets.token_bytes(64), secrets.token_bytes(64)
    try:
        tag = (await store.create(key, first)).tag
        if (await store.get(key)).data != first:
            raise _cannot(where, "what was written is not what is read")
        with _refused(where, "an object that is there is created once more (If-None-Match is not obeyed)"):
            await store.create(key, second)
        await store.replace(key, second, tag)
        with _refused(where, "an object is replaced by who knew an older one (If-Match is not obeyed)"):
            await store.replace(key, first, tag)
        if (await store.get(key)).data != second:
            raise _cannot(where, "after a write the former object is read")
        with _refused(where, "an object is removed by who knew an older one (If-Match is not obeyed by a delete)"):
            await store.delete(key, tag)
        async with store.read(key, start=8, end=24) as reading:
            if b"".join([piece async for piece in reading.chunks]) != second[8:24]:
                raise _cannot(where, "a part that was asked for is not what is read")
        if [entry.key async for entry in store.list(key)] != [key]:
            raise _cannot(where, "an object that is there is not listed")
        await store.delete(key)
        with contextlib.suppress(NoObject):
            await store.get(key)
            raise _cannot(where, "what was removed is still read")
    except (Conflict, NoObject, Corrupt) as error:
        raise _cannot(where, str(error)) from error
    finally:
        with contextlib.suppress(WarrenError):  # what it found out is what counts
            await store.delete(key)


@contextlib.contextmanager
def _refused(where: object, problem: str) -> Iterator[None]:
    """The block must come to a `Conflict`."""
    try:
        yield
    except Conflict:
        return
    raise _cannot(where, problem)


async def _must_be_ours(store: Store, where: object, known: str | None) -> None:
    """Before anything is written: a look that changes nothing."""
    try:
        found = _id_of((await store.get(CLUSTER_KEY)).data)
    except NoObject:
        if known is not None:
            raise WrongStore(
                f"POOLD_STORE={where} has no object {CLUSTER_KEY!r}, but this host is of the cluster {known}: is it the"
                f" right folder or bucket, and is it mounted? To let this host join another cluster remove"
                f" {REMEMBERED} from its POOLD_STATE_DIR",
                cluster=known,
            ) from None
        return
    if known is not None and known != found:
        raise _anothers(where, known, found)


async def cluster_of(store: Store) -> str:
    """Whose store this is: its first host says so."""
    made = {"version": VERSION, "id": f"cl-{secrets.token_hex(16)}"}
    with contextlib.suppress(Conflict):
        await store.create(CLUSTER_KEY, orjson.dumps(made))
    return _id_of((await store.get(CLUSTER_KEY)).data)


def _id_of(data: bytes) -> str:
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict) or told.get("version") != VERSION or not _is_id(told.get("id")):
        raise WrongStore(
            f"the object {CLUSTER_KEY!r} in the store is not what this version of poold writes: {shown(data)}"
        )
    return str(told["id"])


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _remembered(state_dir: Path) -> str | None:
    try:
        return _id_of((state_dir / REMEMBERED).read_bytes())
    except FileNotFoundError:
        return None


def _remember(state_dir: Path, cluster: str) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    files.put(state_dir / REMEMBERED, orjson.dumps({"version": VERSION, "id": cluster}))


def _anothers(where: object, known: str, found: str) -> WrongStore:
    return WrongStore(
        f"POOLD_STORE={where} is of the cluster {found}, but this host is of {known}: correct POOLD_STORE; to let this"
        f" host join another cluster remove {REMEMBERED} from its POOLD_STATE_DIR",
        cluster=found,
    )


def _cannot(where: object, problem: str) -> WrongStore:
    return WrongStore(f"POOLD_STORE={where} cannot do what hosts need: {problem}")

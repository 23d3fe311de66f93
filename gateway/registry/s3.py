"""The registry in S3: all of it is listed, and what has another tag than before is read.

The client has a loop of its own in a thread of its own: what a listing takes of the processor no request waits for.
Whatever goes wrong leaves what was last known.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from contract.errors import FaultError, NotFound, WarrenError, shown
from contract.hosts import Host
from contract.keys import Key
from gateway.config import S3Place
from gateway.errors import ConfigError, RegistryUnreachable
from gateway.registry.bucket import WAIT_S, Bucket, Listed, Lost, Unmet, open_bucket
from gateway.registry.records import HOST_FILE, KEY_FILE, MAX_FILE_BYTES, Records

log = logging.getLogger("gateway.registry")

START_S = 15.0  # for the first look
FETCH_S = 10.0  # of one look, for what has changed; the rest is for the next one
CHANGE_S = 20.0  # for a change of a key, with all its turns
TURNS = 20  # of a change in which others were faster, or the reply was lost
KEYS, HOSTS = "keys/", "hosts/"

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], Awaitable[T]]


class S3Registry:
    """What `gateway.registry.Registry` promises, of a bucket. `open_s3_registry` makes one."""

    def __init__(self, bucket: Bucket, run: Run[Any]) -> None:
        self._bucket = bucket
        self._run = run
        self._turn = asyncio.Lock()  # of looks
        self._known: dict[str, tuple[str, Host | Key | None]] = {}  # by name: the tag, and what was read
        self._complained: set[str] = set()  # records of hosts that could not be read the last time

    async def read(self) -> Records:
        found: Records = await self._run(self._look())
        return found

    async def key(self, key_id: str) -> Key:
        key: Key = (await self._run(self._settled(lambda: self._key(key_id))))[0]
        return key

    async def add_key(self, key: Key) -> None:
        """It is looked for first: after a lost reply it is there, and ours."""
        name, data = _name(key.id), key.encode()

        async def add() -> None:
            found = await self._bucket.get(name)
            if found is None:
                await self._bucket.put(name, data, {"IfNoneMatch": "*"})
            elif found.data != data:
                raise FaultError(f"there is another key of the id {key.id}")

        await self._run(self._settled(add))

    async def change_key(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        async def change() -> Key:
            key, tag = await self._key(key_id)
            changed = how(key)
            if changed != key:  # else it is as it is to be: by us, if a reply was lost
                await self._bucket.put(_name(key_id), changed.encode(), {"IfMatch": tag})
            return changed

        changed: Key = await self._run(self._settled(change))
        return changed

    async def _key(self, key_id: str) -> tuple[Key, str]:
        found = await self._bucket.get(_name(key_id)) if KEY_FILE.fullmatch(f"{key_id}.json") else None
        key = None if found is None else _decoded(_name(key_id), found.checked)
        if found is None or not isinstance(key, Key) or key.id != key_id:
            raise NotFound(f"no key {shown(key_id)}", key=shown(key_id))
        return key, found.tag

    async def _settled(self, work: Callable[[], Awaitable[T]]) -> T:
        """Until it is known what came of it. Who was not told, or was told no, looks again."""
        why: Exception = RegistryUnreachable(f"the registry was not done with it within {CHANGE_S:g} s")
        try:
            async with asyncio.timeout(CHANGE_S):
                for _ in range(TURNS):
                    try:
                        return await work()
                    except Lost as error:
                        why = error
                    except Unmet:
                        why = RegistryUnreachable("others changed the same key all the time")
                    await asyncio.sleep(random.uniform(0, WAIT_S))  # noqa: S311 — no secret
        except TimeoutError:
            raise why from None
        raise why

    async def _look(self) -> Records:
        async with self._turn:
            listed = {name: each for name, each in (await self._bucket.listed()).items() if _is_ours(name)}
            if not listed and self._known:
                # As a folder that is not mounted any more: more likely than that somebody removed every key.
                raise RegistryUnreachable(f"the registry is empty, and had {len(self._known)} records")
            for name in self._known.keys() - listed.keys():
                del self._known[name]
            return self._records(await self._fetch(listed))

    async def _fetch(self, listed: dict[str, Listed]) -> str:
        """Read what has changed, keys first. What cannot be read stays as it was; why, if a key is among that.

        A host's record that cannot be read is logged and no more: gateways ask hosts themselves how they are.
        """
        changed = [name for name, each in listed.items() if self._known.get(name, ("",))[0] != each.tag]
        changed.sort(key=lambda name: not name.startswith(KEYS))
        missed: dict[str, str] = dict.fromkeys(changed, f"not read within {FETCH_S:g} s")

        async def fetch(name: str) -> None:
            try:
                await self._one(name, listed[name])
            except RegistryUnreachable as error:
                missed[name] = error.message
            else:
                del missed[name]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCH_S):
                await asyncio.gather(*map(fetch, changed))
        self._complain({name: why for name, why in missed.items() if name.startswith(HOSTS)})
        keys = [why for name, why in missed.items() if name.startswith(KEYS)]
        return f"{len(keys)} records of keys: {keys[0]}" if keys else ""

    async def _one(self, name: str, listed: Listed) -> None:
        """Under the tag that was listed: if it was written since, the next look finds another."""
        if listed.bytes > MAX_FILE_BYTES:
            log.warning("a record cannot be read", extra={"file": name, "why": "it is too large"})
            self._known[name] = (listed.tag, None)
            return
        found = await self._bucket.get(name)
        if found is None:
            self._known.pop(name, None)  # removed since it was listed
        else:
            self._known[name] = (listed.tag, _decoded(name, found.checked))

    def _complain(self, missed: dict[str, str]) -> None:
        for name, why in missed.items():
            if name not in self._complained:
                log.warning("a host's record cannot be read", extra={"file": name, "why": why})
        self._complained = set(missed)

    def _records(self, missed: str) -> Records:
        hosts = {_bare(name): each for name, (_, each) in self._known.items() if isinstance(each, Host)}
        keys = {_bare(name): each for name, (_, each) in self._known.items() if isinstance(each, Key)}
        return Records.named_right(hosts, keys, missed)


@contextlib.asynccontextmanager
async def open_s3_registry(place: S3Place) -> AsyncIterator[S3Registry]:
    """The registry, once it could be read. Raises `ConfigError`."""
    async with _loop_beside() as run, contextlib.AsyncExitStack() as stack:
        opening = contextlib.AsyncExitStack()
        stack.push_async_callback(lambda: run(opening.aclose()))
        try:
            bucket = await run(opening.enter_async_context(open_bucket(place)))
            registry = S3Registry(bucket, run)
            await _look_once(registry)
        except (RegistryUnreachable, ValueError, OSError) as error:
            raise ConfigError(f"GATEWAY_REGISTRY={place} cannot be read: {error}") from error
        yield registry


async def _look_once(registry: S3Registry) -> None:
    """Wait a little for a store that is just being started."""
    give_up = time.monotonic() + START_S
    while True:
        try:
            records = await registry.read()
            if not records.missed or records.keys:
                return  # the rest comes with the next looks
            why = RegistryUnreachable(records.missed)
        except Lost as error:
            why = error
        if time.monotonic() > give_up:
            raise why
        await asyncio.sleep(WAIT_S)


@contextlib.asynccontextmanager
async def _loop_beside() -> AsyncIterator[Run[Any]]:
    """A loop in a thread during the block. Whoever waits for work there when the block ends is let go."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="registry", daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    finally:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_end_all(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _end_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _is_ours(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    pattern = {"keys": KEY_FILE, "hosts": HOST_FILE}.get(folder)
    return pattern is not None and pattern.fullmatch(file) is not None


def _decoded(name: str, read: Callable[[], bytes]) -> Host | Key | None:
    """What cannot be decoded is not there, and is logged once for each that was written."""
    try:
        return Key.decode(read()) if name.startswith(KEYS) else Host.decode(read())
    except (WarrenError, ValueError) as error:
        log.warning("a record cannot be read", extra={"file": name, "why": str(error)})
        return None


def _name(key_id: str) -> str:
    return f"{KEYS}{key_id}.json"


def _bare(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json")

"""A store in S3, or in a server that speaks its language. An object is there as anybody may download it; its SHA-256
and the number of its write are in its metadata.
"""

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from poold.lifetimes import finish
from poold.places import S3Config
from poold.store import MAX_BYTES, Blob, Content, Entry, Observe, Progress, Reading, silent, unobserved
from poold.store.errors import Conflict, Corrupt, NoObject, Unreachable, WrongContent, too_large
from poold.store.keys import checked_key, checked_prefix
from poold.store.s3_calls import Calls, Work, open_calls
from poold.store.s3_errors import Lost, NoRange, Unmet
from poold.store.s3_upload import Upload, sweep

PIECE = 8 << 20  # of what is read
PAGE = 1000
QUICK = 1 << 18


@dataclass(frozen=True)
class _Found:
    """An object, and who wrote it."""

    entry: Entry
    number: str


@dataclass(frozen=True)
class _Condition:
    """What must be so before a write. `tag` None: there must be no object."""

    tag: str | None

    @property
    def parameters(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"} if self.tag is None else {"IfMatch": self.tag}

    @property
    def unmet(self) -> str:
        return "is there already" if self.tag is None else "is another one by now, or gone"

    def holds(self, found: _Found | None) -> bool:
        return (None if found is None else found.entry.tag) == self.tag


class S3Store:
    """What `poold.store.Store` promises, of a bucket. `open_s3` makes one."""

    def __init__(self, calls: Calls, config: S3Config) -> None:
        self._calls = calls
        self._config = config
        self._root = f"{config.prefix}/" if config.prefix else ""

    def __str__(self) -> str:
        return str(self._config)

    async def get(self, key: str) -> Blob:
        place = self._place(key)

        async def whole(client: Any) -> Blob:
            reply = await client.get_object(**place)
            async with reply["Body"] as body:
                entry = _entry(key, reply)
                if entry.bytes > MAX_BYTES:
                    raise too_large(key, entry.bytes)
                return Blob(entry, await body.read())

        blob = await self._calls.repeated("reading", key, whole)
        _check(blob.entry, len(blob.data), (await _digest(blob.data)).hex())
        return blob

    @contextlib.asynccontextmanager
    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[Reading]:
        entry = await self.head(key)
        end = entry.bytes if end is None else min(end, entry.bytes)
        chunks = self._chunks(entry, min(start, end), end)
        async with contextlib.aclosing(chunks):
            yield Reading(entry, chunks)

    async def head(self, key: str) -> Entry:
        place = self._place(key)
        return _entry(key, await self._calls.repeated("looking at", key, lambda client: client.head_object(**place)))

    async def put(self, key: str, data: bytes) -> Entry:
        return await self._put(key, data, None)

    async def create(self, key: str, data: bytes) -> Entry:
        return await self._put(key, data, _Condition(None))

    async def replace(self, key: str, data: bytes, tag: str) -> Entry:
        return await self._put(key, data, _Condition(tag))

    async def write(self, key: str, content: Content, progress: Progress = silent) -> Entry:
        place, number = self._place(key), secrets.token_hex(16)
        if content.bytes <= PIECE:
            data = b"".join([piece async for piece in content.chunks()])
            if len(data) != content.bytes or (await _digest(data)).hex() != content.sha256:
                raise WrongContent(key, "its length or its SHA-256 is another")
            entry = await self.put(key, data)
            progress(content.bytes, content.bytes)
            return entry
        upload = Upload(self._calls, key, place, self._written_with(content.sha256, number))
        tag = await upload.send(content, progress, lambda: self._is_ours(key, number))
        return Entry(key, content.bytes, tag, content.sha256)

    async def delete(self, key: str, tag: str | None = None) -> None:
        place = self._place(key)
        if tag is None:
            await self._calls.repeated("removing", key, lambda client: client.delete_object(**place))
            return
        condition = _Condition(tag)
        lost: Lost | None = None
        patience = self._calls.patience()
        while True:
            try:
                if lost is not None and not condition.holds(found := await self._look(key)):
                    if found is None:
                        return
                    raise _unsettled(key) from lost
                await self._calls.once(
                    "removing", key, lambda client: client.delete_object(**place, **condition.parameters)
                )
                return
            except Unmet:
                if lost is None:
                    await self._must_be_gone(key)
                    return
                await patience.wait(lost)
            except Lost as error:
                lost = error
                await patience.wait(error)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Entry]:
        asked: dict[str, Any] = {"Bucket": self._calls.bucket, "Prefix": self._root + checked_prefix(prefix)}
        if after:
            asked["StartAfter"] = self._root + after
        while True:
            page = await self._calls.repeated(
                "listing", prefix, lambda client: client.list_objects_v2(**asked, MaxKeys=PAGE)
            )
            for found in page.get("Contents", ()):
                written = found.get("LastModified")
                written_ms = None if written is None else int(written.timestamp() * 1000)
                key = found["Key"].removeprefix(self._root)
                yield Entry(key, found["Size"], found["ETag"], written_ms=written_ms)
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    async def sweep(self) -> None:
        await sweep(self._calls, self._root)

    async def _put(self, key: str, data: bytes, condition: _Condition | None) -> Entry:
        """The write has a number, by which it is known again if its reply is lost."""
        if len(data) > MAX_BYTES:
            raise too_large(key, len(data))
        digest, number = await _digest(data), secrets.token_hex(16)
        parameters = {
            **self._place(key),
            **self._written_with(digest.hex(), number),
            "Body": data,
            "ChecksumSHA256": base64.b64encode(digest).decode(),
            **({} if condition is None else condition.parameters),
        }
        entry = Entry(key, len(data), "", digest.hex())

        async def send(client: Any) -> Entry:
            tag = (await client.put_object(**parameters))["ETag"]
            return Entry(key, entry.bytes, tag, entry.sha256)

        if condition is None:
            return await self._calls.repeated("writing", key, send)
        return await self._settled(key, send, condition, number)

    async def _settled(self, key: str, send: Work[Entry], condition: _Condition, number: str) -> Entry:
        """Send until it is known what came of it. Who was not told, or was told no, looks: is it there?

        A no may be the answer to a copy of our request: what is between us and the store may have sent it twice.
        """
        lost: Lost | None = None
        refused = False
        patience = self._calls.patience()
        while True:
            try:
                if refused or lost is not None:
                    found = await self._look(key)
                    if found is not None and found.number == number:
                        return found.entry
                    if not condition.holds(found):
                        raise Conflict(key, condition.unmet) if lost is None else _unsettled(key)
                return await self._calls.once("writing", key, send)
            except Unmet:
                if refused:
                    await patience.wait(Conflict(key, condition.unmet) if lost is None else lost)
                refused = True
            except Lost as error:
                lost = error
                await patience.wait(error)

    async def _look(self, key: str) -> _Found | None:
        place = self._place(key)
        try:
            reply = await self._calls.once("looking at", key, lambda client: client.head_object(**place))
        except NoObject:
            return None
        told = reply.get("Metadata", {})
        return _Found(_bare_entry(key, reply), told.get("number", ""))

    async def _is_ours(self, key: str, number: str) -> str | None:
        """The object's tag, if this write made it."""
        found = await self._look(key)
        return None if found is None or found.number != number else found.entry.tag

    async def _must_be_gone(self, key: str) -> None:
        try:
            await self.head(key)
        except NoObject:
            return
        except Corrupt:
            pass
        raise Conflict(key, "is another one by now")

    async def _chunks(self, entry: Entry, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The next piece is fetched while the last one is used, and no further ones."""
        digest = hashlib.sha256() if (start, end) == (0, entry.bytes) else None
        ahead: asyncio.Task[bytes] | None = None
        try:
            for at in range(start, end, PIECE):
                fetched = ahead or asyncio.create_task(self._piece(entry, at, min(end, at + PIECE)))
                ahead = fetched
                data = await fetched
                after = at + PIECE
                ahead = asyncio.create_task(self._piece(entry, after, min(end, after + PIECE))) if after < end else None
                if digest is not None:
                    await asyncio.to_thread(digest.update, data)
                    if after >= end:
                        _check(entry, end, digest.hexdigest())
                yield data
        finally:
            if ahead is not None:
                ahead.cancel()
                await finish(asyncio.gather(ahead, return_exceptions=True))
        if digest is not None and not entry.bytes:
            _check(entry, 0, digest.hexdigest())

    async def _piece(self, entry: Entry, start: int, end: int) -> bytes:
        """Of the object that we began to read and of no other."""
        asked = {**self._place(entry.key), "Range": f"bytes={start}-{end - 1}", "IfMatch": entry.tag}

        async def part(client: Any) -> bytes:
            reply = await client.get_object(**asked)
            async with reply["Body"] as body:
                if reply["ContentLength"] != end - start:
                    raise NoRange
                data: bytes = await body.read()
                return data

        try:
            return await self._calls.repeated("reading", entry.key, part, is_bulk=True)
        except Unmet:
            raise Conflict(entry.key, "was replaced while it was read") from None
        except NoRange:
            raise Corrupt(entry.key, f"it ends before its {entry.bytes} bytes do") from None

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._calls.bucket, "Key": self._root + checked_key(key)}

    def _written_with(self, sha256: str, number: str) -> Mapping[str, Any]:
        return {"Metadata": {"sha256": sha256, "number": number}, **self._config.encryption_parameters}


@contextlib.asynccontextmanager
async def open_s3(config: S3Config, *, observe: Observe = unobserved) -> AsyncIterator[S3Store]:
    async with open_calls(config, observe) as calls:
        yield S3Store(calls, config)


async def _digest(data: bytes) -> bytes:
    """What takes long does so in a thread."""
    digest = hashlib.sha256(data) if len(data) < QUICK else await asyncio.to_thread(hashlib.sha256, data)
    return digest.digest()


def _entry(key: str, reply: Mapping[str, Any]) -> Entry:
    entry = _bare_entry(key, reply)
    if not entry.sha256:
        raise Corrupt(key, "it has no SHA-256 with it: nobody wrote it through a store")
    return entry


def _bare_entry(key: str, reply: Mapping[str, Any]) -> Entry:
    return Entry(key, reply["ContentLength"], reply["ETag"], reply.get("Metadata", {}).get("sha256", ""))


def _check(entry: Entry, size: int, sha256: str) -> None:
    if size != entry.bytes:
        raise Corrupt(entry.key, f"it has {size} bytes instead of {entry.bytes}")
    if sha256 != entry.sha256:
        raise Corrupt(entry.key, "its SHA-256 is another")


def _unsettled(key: str) -> Unreachable:
    return Unreachable(
        f"the reply to a write of {key!r} was lost, and somebody else has written it since: look what is there"
    )

"""A large object on its way to S3, in parts: a few at a time, each checked on arrival. What failed is taken back."""

import asyncio
import base64
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from contract.errors import WarrenError
from poold.lifetimes import finish
from poold.store import Content, Progress
from poold.store.errors import WrongContent
from poold.store.s3_calls import Calls
from poold.store.s3_errors import Lost, NoUpload

log = logging.getLogger("poold.store")

PART = 8 << 20
MOST_PARTS = 10_000  # S3's rule
AT_ONCE = 4
ABANDONED = timedelta(days=2)  # one upload does not take that long, and clocks are not that wrong
Part = dict[str, Any]


class Upload:
    """One attempt to write one object."""

    def __init__(self, calls: Calls, key: str, place: Mapping[str, str], written_with: Mapping[str, Any]) -> None:
        self._calls, self._key, self._place = calls, key, place
        self._written_with = written_with
        self._id = ""
        self._sent = 0

    async def send(self, content: Content, progress: Progress, ours: Callable[[], Awaitable[str | None]]) -> str:
        """The new object's tag. If this raises or is cancelled nothing is left of it; or all of it is there."""
        try:
            await finish(self._begin())  # an upload that nobody knows the name of could not be taken back
            parts = await self._send_all(content, progress)
            return await self._complete(parts, ours)
        except BaseException:
            with contextlib.suppress(WarrenError):  # the store is away: what is left there is swept another day
                await finish(self._abort())
            raise

    async def _begin(self) -> None:
        asked = {**self._place, **self._written_with, "ChecksumAlgorithm": "SHA256"}
        reply = await self._calls.repeated("writing", self._key, lambda client: client.create_multipart_upload(**asked))
        self._id = reply["UploadId"]

    async def _send_all(self, content: Content, progress: Progress) -> list[Part]:
        digest, size = hashlib.sha256(), 0
        under_way: set[asyncio.Task[Part]] = set()
        parts: list[Part] = []
        try:
            async for number, data in _numbered(content):
                size += len(data)
                if size > content.bytes:
                    raise WrongContent(self._key, f"it has more than {content.bytes} bytes")
                await asyncio.to_thread(digest.update, data)
                while len(under_way) >= AT_ONCE:
                    parts += await _some(under_way)
                    progress(self._sent, content.bytes)
                under_way.add(asyncio.create_task(self._part(number, data)))
            while under_way:
                parts += await _some(under_way)
                progress(self._sent, content.bytes)
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await finish(asyncio.wait(under_way))
        if size != content.bytes or digest.hexdigest() != content.sha256:
            raise WrongContent(self._key, f"it has {size} bytes instead of {content.bytes}, or another SHA-256")
        return sorted(parts, key=lambda part: part["PartNumber"])

    async def _part(self, number: int, data: bytes) -> Part:
        digest = await asyncio.to_thread(hashlib.sha256, data)
        checksum = base64.b64encode(digest.digest()).decode()
        asked = {**self._place, "UploadId": self._id, "PartNumber": number, "Body": data, "ChecksumSHA256": checksum}
        reply = await self._calls.repeated(
            "writing", self._key, lambda client: client.upload_part(**asked), is_bulk=True
        )
        self._sent += len(data)
        return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumSHA256": checksum}

    async def _complete(self, parts: list[Part], ours: Callable[[], Awaitable[str | None]]) -> str:
        asked = {**self._place, "UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        patience = self._calls.patience()
        lost: Lost | None = None
        while True:
            try:
                if lost is not None and (tag := await ours()) is not None:
                    return tag
                reply = await self._calls.once(
                    "writing", self._key, lambda client: client.complete_multipart_upload(**asked)
                )
                return str(reply["ETag"])
            except NoUpload:
                lost = Lost(f"writing {self._key!r} in the store: its upload was ended by somebody else")
                await patience.wait(lost)
            except Lost as error:
                lost = error
                await patience.wait(error)

    async def _abort(self) -> None:
        if self._id:
            named = {**self._place, "UploadId": self._id}
            with contextlib.suppress(NoUpload):
                await self._calls.repeated("removing", self._key, partial(_abort, named=named))


async def sweep(calls: Calls, prefix: str) -> None:
    """Take back the uploads whose writers are gone. A store that does not list them keeps them."""
    place = {"Bucket": calls.bucket}
    try:
        asked = {**place, "Prefix": prefix}
        found = await calls.repeated("sweeping", prefix, lambda client: client.list_multipart_uploads(**asked))
        before = datetime.now(UTC) - ABANDONED
        for upload in found.get("Uploads", ()):
            if upload["Initiated"] < before:
                named = {**place, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                with contextlib.suppress(NoUpload):
                    await calls.once("sweeping", named["Key"], partial(_abort, named=named))
                log.info("an upload that nobody ended was taken back", extra={"key": upload["Key"]})
    except WarrenError as error:
        log.warning("uploads that nobody ended could not be looked for", extra={"why": str(error)})


async def _abort(client: Any, named: Mapping[str, str]) -> None:
    await client.abort_multipart_upload(**named)


async def _some(under_way: set["asyncio.Task[Part]"]) -> list[Part]:
    """Those that have ended; at least one has."""
    done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    under_way -= done
    return [task.result() for task in done]


async def _numbered(content: Content) -> AsyncIterator[tuple[int, bytes]]:
    """The content in parts of one size, but for the last; counted from 1."""
    size = max(PART, -(-content.bytes // MOST_PARTS))
    number, gathered = 1, bytearray()
    async for piece in content.chunks():
        gathered += piece
        while len(gathered) >= size:
            yield number, bytes(gathered[:size])
            del gathered[:size]
            number += 1
    if gathered:
        yield number, bytes(gathered)

"""The bucket that a registry is in: the one place of the gateway that knows botocore. Each request has a limit of time,
and what comes back is looked at as what a stranger says.
"""

import asyncio
import contextlib
import hashlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.config import S3Place
from gateway.errors import RegistryUnreachable
from gateway.registry.records import MAX_FILE_BYTES, MAX_FILES

T = TypeVar("T")

REQUESTS = 16  # at once
PAGE = 1000
READ_TRIES = 2  # the next look comes in a second
WAIT_S = 0.2  # before another try, of which a random part is waited
_GONE = {"NoSuchKey", "404", "NotFound"}
_UNMET = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_AGAIN = {"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout", "TooManyRequests", "RequestLimitExceeded",
          "OperationAborted", "429"}  # fmt: skip


class Lost(RegistryUnreachable):
    """No answer, or none that says whether it was done. Trying again may help."""


class Unmet(Exception):
    """The object is not as the write's condition says. It was not done."""


class _Gone(Exception):
    pass


@dataclass(frozen=True)
class Listed:
    tag: str
    bytes: int


@dataclass(frozen=True)
class Object:
    tag: str
    data: bytes
    sha256: str  # as its writer says

    def checked(self) -> bytes:
        """Raises `ValueError` if it is not what was written by one of ours, all of it."""
        if hashlib.sha256(self.data).hexdigest() != self.sha256:
            raise ValueError("it is too large, or its SHA-256 is not with it: nobody of ours wrote it")
        return self.data


class Bucket:
    """All that is under one prefix. Raises `Lost`, `RegistryUnreachable` and what is told."""

    def __init__(self, client: Any, place: S3Place) -> None:
        self._client = client
        self._place = place
        self._root = f"{place.prefix}/"
        self._permits = asyncio.Semaphore(REQUESTS)

    async def listed(self) -> dict[str, Listed]:
        """Every object, by its name without the prefix."""
        found: dict[str, Listed] = {}
        more: dict[str, Any] = {}
        while len(found) <= MAX_FILES:
            page, token = await self._read("listing", lambda: self._page(more))  # noqa: B023 — called now
            found |= page
            if token is None:
                return found
            more = {"ContinuationToken": token}
        raise RegistryUnreachable(self._told("listing", f"there are more than {MAX_FILES} objects"))

    async def get(self, name: str) -> Object | None:
        async def got() -> Object:
            reply = await self._client.get_object(Bucket=self._place.bucket, Key=self._root + name)
            async with reply["Body"] as body:
                is_small = int(reply["ContentLength"]) <= MAX_FILE_BYTES
                data: bytes = await body.read() if is_small else b""
            return Object(str(reply["ETag"]), data, str(reply.get("Metadata", {}).get("sha256", "")))

        try:
            return await self._read(f"reading {name}", got)
        except _Gone:
            return None

    async def put(self, name: str, data: bytes, condition: Mapping[str, str]) -> None:
        """One attempt. Raises `Unmet` if the condition does not hold. Its hash and a number are with it, as poold's
        store has them."""
        written = {"sha256": hashlib.sha256(data).hexdigest(), "number": secrets.token_hex(16)}
        place = {"Bucket": self._place.bucket, "Key": self._root + name, "Body": data, "Metadata": written}
        try:
            await self._attempt(f"writing {name}", lambda: self._client.put_object(**place, **condition))
        except _Gone:  # it was to be replaced
            raise Unmet from None

    async def _page(self, more: Mapping[str, Any]) -> tuple[dict[str, Listed], str | None]:
        reply = await self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=self._root, MaxKeys=PAGE, **more)
        found = {
            str(each["Key"]).removeprefix(self._root): Listed(str(each["ETag"]), int(each["Size"]))
            for each in reply.get("Contents", ())
        }
        return found, str(reply["NextContinuationToken"]) if reply.get("IsTruncated") else None

    async def _read(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        for _ in range(READ_TRIES - 1):
            with contextlib.suppress(Lost):
                return await self._attempt(doing, work)
            await asyncio.sleep(random.uniform(0, WAIT_S))  # noqa: S311 — no secret
        return await self._attempt(doing, work)

    async def _attempt(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        async with self._permits:
            try:
                async with asyncio.timeout(self._place.timeout_s):
                    return await work()
            except TimeoutError:
                raise Lost(self._told(doing, f"no answer within {self._place.timeout_s} s")) from None
            except RegistryUnreachable:
                raise
            except Exception as error:  # whatever a stranger's bytes can make of a client
                raise self._ours(error, doing) from error

    def _ours(self, error: Exception, doing: str) -> Exception:
        from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            hint = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
            return RegistryUnreachable(self._told(doing, hint))
        if not isinstance(error, ClientError):
            return Lost(self._told(doing, str(error)[:300] or type(error).__name__))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(error.response.get("Error", {}).get("Code", status))
        if code in _GONE:
            return _Gone()
        if code in _UNMET or status == 412:
            return Unmet()
        told = self._told(doing, f"it answered {status} {code[:100]}")
        return Lost(told) if code in _AGAIN or status >= 500 or status == 429 else RegistryUnreachable(told)

    def _told(self, doing: str, why: str) -> str:
        return f"the registry at {self._place}: {doing}: {why}"


@contextlib.asynccontextmanager
async def open_bucket(place: S3Place) -> AsyncIterator[Bucket]:
    """A client with the credentials that AWS's own tools would use. It tries nothing again by itself."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    settings = AioConfig(
        retries={"total_max_attempts": 1},
        connect_timeout=min(3, place.timeout_s),
        read_timeout=place.timeout_s,
        max_pool_connections=REQUESTS,
        s3={"addressing_style": place.addressing},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = get_session()
    # Dates are of no interest here, and understanding them is two thirds of the time that a listing takes.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    async with session.create_client("s3", config=settings, region_name=place.region) as client:
        yield Bucket(client, place)

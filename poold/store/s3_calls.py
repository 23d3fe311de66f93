"""Requests to S3: so many at once and no more, each with a limit of time, and tried again with patience."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from contract.errors import WarrenError
from poold.places import S3Config
from poold.store import Observe
from poold.store.errors import Full, Refused, Unreachable
from poold.store.s3_errors import Lost, translated

T = TypeVar("T")
Work = Callable[[Any], Awaitable[T]]

TRIES = 6
FIRST_WAIT_S = 0.1  # doubled each time; of each a random part is waited, so that many who failed do not come together
MOST_WAIT_S = 5.0
# Each call that succeeds earns a tenth of another try, up to so many: who fails all the time is not a load as well.
BUDGET = 50.0
EARNED = 0.1


class Patience:
    """Of one call: when to try again, and when to give up."""

    def __init__(self, calls: "Calls") -> None:
        self._calls = calls
        self._tries = 1
        self._until = time.monotonic() + calls.limit_s

    async def wait(self, error: WarrenError) -> None:
        """Return when it is time for another try. Raises `error` if there is to be none."""
        wait_s = random.uniform(0, min(MOST_WAIT_S, FIRST_WAIT_S * 2**self._tries))  # noqa: S311 — no secret
        self._tries += 1
        if self._tries > TRIES or time.monotonic() + wait_s > self._until or not self._calls.may_retry():
            raise error
        await asyncio.sleep(wait_s)


class Calls:
    """A client of one bucket. Its calls raise the errors of the store, and those of `s3_errors`."""

    def __init__(self, client: Any, config: S3Config, observe: Observe) -> None:
        self._client = client
        self._permits = asyncio.Semaphore(config.requests)
        # Parts of large objects have not all of them: a lease must not wait behind what is hibernated.
        self._bulk_permits = asyncio.Semaphore(max(1, config.requests * 3 // 4))
        self._budget = BUDGET
        self._attempt_s = float(config.timeout_s)
        self.limit_s = 3.0 * config.timeout_s  # of all attempts together
        self._observe = observe
        self.bucket = config.bucket

    async def once(self, doing: str, key: str, work: Work[T], *, is_bulk: bool = False) -> T:
        """One attempt. A body is read in it, too: whoever reads slowly holds no place that others wait for."""
        async with contextlib.AsyncExitStack() as places:
            try:
                async with asyncio.timeout(self.limit_s):
                    for permits in (self._bulk_permits, self._permits) if is_bulk else (self._permits,):
                        await places.enter_async_context(permits)
            except TimeoutError:
                raise Lost(f"{doing} {key!r} in the store: too many requests are under way") from None
            return await self._attempt(doing, key, work)

    async def repeated(self, doing: str, key: str, work: Work[T], *, is_bulk: bool = False) -> T:
        """As `once`, of what may be done twice."""
        patience = self.patience()
        while True:
            try:
                return await self.once(doing, key, work, is_bulk=is_bulk)
            except Lost as error:
                await patience.wait(error)

    async def _attempt(self, doing: str, key: str, work: Work[T]) -> T:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._attempt_s):
                done = await work(self._client)
        except Exception as error:
            ours = translated(error, doing, key)
            self._observe(time.monotonic() - began, not isinstance(ours, Unreachable | Refused | Full))
            raise ours from error
        self._observe(time.monotonic() - began, True)
        self._budget = min(BUDGET, self._budget + EARNED)
        return done

    def patience(self) -> Patience:
        return Patience(self)

    def may_retry(self) -> bool:
        if self._budget < 1:
            return False
        self._budget -= 1
        return True


@contextlib.asynccontextmanager
async def open_calls(config: S3Config, observe: Observe) -> AsyncIterator[Calls]:
    """A client with the credentials that AWS's own tools would use. It tries nothing again by itself: we know better
    what may be done twice.
    """
    aioboto3, settings = await asyncio.to_thread(_imported, config)
    opening = contextlib.AsyncExitStack()
    try:
        client = await opening.enter_async_context(
            aioboto3.Session(region_name=config.region).client("s3", config=settings)
        )
    except Exception as error:
        raise translated(error, "opening", config.bucket) from error
    async with opening:
        yield Calls(client, config, observe)


def _imported(config: S3Config) -> tuple[Any, Any]:
    """It takes its time: only who uses S3 pays for it."""
    import aioboto3
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession

    class SentOnce(AIOHTTPSession):  # type: ignore[misc]
        """aiohttp would send a PUT or a DELETE again without a word if the connection breaks. The second one would
        find what the first has done, and its condition unmet.
        """

        async def _get_session(self, proxy_url: Any) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    settings = AioConfig(
        http_session_cls=SentOnce,
        retries={"total_max_attempts": 1},
        connect_timeout=min(5, config.timeout_s),
        read_timeout=config.timeout_s,
        max_pool_connections=config.requests,
        s3={"addressing_style": config.addressing},
        # Checksums are our own: SHA-256, of all that is sent and of all that is read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return aioboto3, settings

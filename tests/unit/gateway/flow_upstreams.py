"""The client to hosts, as the tests of the data path ask it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.upstream import Upstream


@contextlib.asynccontextmanager
async def upstream_to(address: str, **options: object) -> AsyncIterator[Upstream]:
    upstream = Upstream(address, **options)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(10):
            yield upstream
    finally:
        await upstream.close()


async def asked(upstream: Upstream, method: str = "GET", body: object = None) -> tuple[int, bytes]:
    async with upstream.stream(method, "/x", [], body) as answer:  # type: ignore[arg-type]
        return answer.status, b"".join([chunk async for chunk in answer.chunks])

"""The API's document and its page, as this gateway serves it now: with the sizes that its hosts have."""

from functools import lru_cache

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract.__about__ import __version__
from contract.models import ShapeLimits
from gateway.docs import POLICY, page
from gateway.openapi import document
from gateway.operations import OPERATIONS
from gateway.placement import limits
from gateway.services import call_of

KEPT = 8  # documents: one for each largest machine, and one page for each address of ours


async def openapi(request: Request) -> Response:
    return Response(_document(_limits(request)), media_type="application/json")


async def docs(request: Request) -> Response:
    url = f"{request.url.scheme}://{request.url.netloc}"
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(_page(_limits(request), url), media_type="text/html; charset=utf-8", headers=headers)


def _limits(request: Request) -> ShapeLimits:
    return limits(call_of(request).services.hosts.records())


@lru_cache(KEPT)
def _document(most: ShapeLimits) -> bytes:
    return orjson.dumps(document(OPERATIONS, most, version=__version__))


@lru_cache(KEPT)
def _page(most: ShapeLimits, url: str) -> bytes:
    return page(orjson.loads(_document(most)), url=url).encode()

"""The body of a client's request: nothing, a few bytes at hand, or pieces as they come."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gateway.errors import BadBody, SlowBody

Receive = Callable[[], Awaitable[Any]]

AT_HAND_BYTES = 64 << 10  # a body up to this size is read as a whole before the host is asked
SILENCE_S = 60.0  # how long a client may send nothing in the middle of its body
KEPT = "warren.body"  # in a scope: what was read of a body and may have to be sent to another host


class ClientBody:
    """A body that is passed on piece by piece. `finished` when the last one was read."""

    def __init__(self, first: bytes, receive: Receive) -> None:
        self.first = first
        self.has_begun = False  # a piece behind the first was asked for
        self.finished = asyncio.Event()
        self._receive = receive

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.first
        self.has_begun = True
        more = True
        while more:
            piece, more = await next_piece(self._receive)
            yield piece
        self.finished.set()


def has_none(scope: Any, length: int | None, is_coded: bool) -> bool:
    """Whether the request has no body."""
    return not length and not is_coded and (length == 0 or scope["http_version"][0] == "1")


async def read_body(scope: Any, receive: Receive, length: int | None) -> bytes | ClientBody:
    """The body of a request that has one: bytes if it is small.

    A second call gets the same again, if no more than the first piece of it was passed on meanwhile.
    """
    kept: bytes | ClientBody | None = scope.pop(KEPT, None)
    if kept is not None:
        return kept
    body, more = await next_piece(receive)
    while more and len(body) != length:
        if len(body) > AT_HAND_BYTES or not length or length > AT_HAND_BYTES:
            return ClientBody(body, receive)
        piece, more = await next_piece(receive)
        body += piece
    return body


async def next_piece(receive: Receive) -> tuple[bytes, bool]:
    """A piece, and whether there are more. A client that leaves, and one whose chunks are none, look alike."""
    try:
        async with asyncio.timeout(SILENCE_S):
            message = await receive()
    except TimeoutError:
        raise SlowBody(f"nothing of the body came for {SILENCE_S:g} s") from None
    if message["type"] != "http.request":
        raise BadBody("the body broke off, or its chunks are not as HTTP says")
    return message.get("body", b""), message.get("more_body", False)

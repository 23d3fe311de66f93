"""A guest, as poold talks to it: calls with JSON both ways, and exchanges that stream."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from typing import Any

import orjson

from contract.errors import WarrenError
from poold.errors import EngineError, GuestError, GuestRefused, GuestTooOld, MachineDied
from poold.link.http import Answer, Body, Connection
from poold.link.tunnel import Tunnel

MAX_JSON_BYTES = 4 << 20  # a full list of 10,000 files is about 3 MB
ANSWER_LIMIT_S = 30.0  # until a guest must have begun to answer; a busy one under emulation is slow
MAX_IDLE = 2  # connections kept for the next call

# Refusals that a caller may see as they are. Anything else that a guest makes up is its fault, not the caller's.
CALLERS_FAULT = frozenset({400, 403, 404, 405, 409, 413, 416, 429, 507})

CODE = re.compile(r"[a-z_]{1,64}")
FACTS = ("rail", "reason")  # that a refusal may have besides
FAR_AWAY = CALLERS_FAULT | {502}  # of what a guest does elsewhere for us, as a clone: the other side may have failed

Dial = Callable[[], Awaitable[socket.socket]]
Observe = Callable[[float], None]


class Guest:
    """The link to one machine's guest. Ends with it: whoever waits for an answer then gets `MachineDied`."""

    def __init__(self, dial: Dial, ended: "asyncio.Future[str]", observe: Observe = lambda _seconds: None) -> None:
        self._dial = dial
        self._observe = observe
        self._ended = ended
        self._idle: list[Connection] = []
        self._open: set[Connection | Tunnel] = set()
        self._closed: WarrenError | None = None
        ended.add_done_callback(self._died)

    async def call(
        self, method: str, target: str, body: Any = None, *, limit_s: float = ANSWER_LIMIT_S
    ) -> dict[str, Any]:
        """One request with a JSON body, answered by a JSON object."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s), self.exchange(method, target, headers=headers, body=data) as answer:
                told = _object(await answer.read(MAX_JSON_BYTES))
                self._observe(time.monotonic() - began)
                return told
        except TimeoutError as error:
            raise GuestError(
                f"the guest did not answer {method} {target.split('?', maxsplit=1)[0]} within {limit_s:g} s"
            ) from error

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        limit_s: float | None = ANSWER_LIMIT_S,
        refusals: Set[int] = CALLERS_FAULT,
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer, once the head is there. Raises `GuestRefused` if it is a refusal.

        The head must come within `limit_s` of the request's end; None if that is for the sandbox's program to decide.
        `refusals` are the statuses that may be a refusal: with any other it is the guest that failed.
        After the block the connection is kept for the next call, or closed if anything of this one is left.
        """
        connection = await self._connection()
        try:
            await connection.send(method, target, headers or {}, body)
            answer = await self._head(connection, method, target, limit_s)
            if answer.status >= 300:
                raise _refusal(answer.status, await answer.read(MAX_JSON_BYTES), refusals)
            yield answer
        finally:
            self._put_back(connection)

    @contextlib.asynccontextmanager
    async def connect(self, port: int) -> AsyncIterator[Tunnel]:
        """A connection to `port` of the machine, during the block. Raises `GuestRefused` if nobody listens there."""
        tunnel = await self._tunnel(port)
        self._open.add(tunnel)
        try:
            yield tunnel
        finally:
            self._open.discard(tunnel)
            tunnel.fail(GuestError("the tunnel was closed"))

    async def _tunnel(self, port: int) -> Tunnel:
        connection = await self._connection()
        target = f"/ports/{port}/connect"
        try:
            await connection.send("GET", target, {"Connection": "Upgrade", "Upgrade": "tcp"}, None)
            answer = await self._head(connection, "GET", target, ANSWER_LIMIT_S)
            if answer.status != 101:
                raise _no_tunnel(answer.status, await answer.read(MAX_JSON_BYTES))
            return connection.upgraded()
        finally:
            self._put_back(connection)

    def close(self, error: WarrenError | None = None) -> None:
        """Hang up. Exchanges that are under way fail with `error`, and so do later ones."""
        self._ended.remove_done_callback(self._died)
        self._closed = error or GuestError("the link was closed")
        for connection in list(self._open):
            connection.fail(self._closed)
        self._idle.clear()
        self._open.clear()

    async def _head(self, connection: Connection, method: str, target: str, limit_s: float | None) -> Answer:
        try:
            async with asyncio.timeout(limit_s):
                return await connection.answer()
        except TimeoutError as error:
            path = target.split("?", maxsplit=1)[0]
            raise GuestError(f"the guest did not answer {method} {path} within {limit_s:g} s") from error

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            self._open.discard(connection)
        if self._closed is not None:
            raise self._closed
        if self._ended.done():
            raise MachineDied(f"the machine ended: {self._ended.result()}")
        return await self._connect()

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                sock = await self._dial()
        except (TimeoutError, EngineError) as error:
            if self._ended.done():
                raise MachineDied(f"the machine ended: {self._ended.result()}") from error
            raise GuestError(f"the guest cannot be reached: {error or 'no answer'}") from error
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=sock)
        except BaseException:
            sock.close()
            raise
        self._open.add(connection)
        if self._closed is not None:
            connection.fail(self._closed)
        elif self._ended.done():
            self._died(self._ended)
        return connection

    def _put_back(self, connection: Connection) -> None:
        if connection.is_reusable and len(self._idle) < MAX_IDLE and connection in self._open:
            self._idle.append(connection)
        else:
            self._open.discard(connection)
            connection.fail(GuestError("the exchange was abandoned"))

    def _died(self, ended: "asyncio.Future[str]") -> None:
        for connection in list(self._open):
            connection.fail(MachineDied(f"the machine ended: {ended.result()}"))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GuestError(f"the guest's answer is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise GuestError("the guest's answer is not a JSON object")
    return value


def _no_tunnel(status: int, body: bytes) -> WarrenError:
    """Why a guest has not connected us to a port."""
    if status == 404:
        return GuestTooOld("the sandbox was made before ports could be reached; a new one has them")
    return _refusal(status, body, FAR_AWAY)


def _refusal(status: int, body: bytes, callers_fault: Set[int] = CALLERS_FAULT) -> WarrenError:
    """What a guest's refusal means to the caller."""
    try:
        told = _object(body)["error"]
        code, message = str(told["code"]), str(told["message"])[:1000]
    except (GuestError, KeyError, TypeError):
        return GuestError(f"the guest answered with status {status} and no reason")
    if status not in callers_fault or not CODE.fullmatch(code):
        return GuestError(f"the guest answered with status {status}: {message}")
    return GuestRefused(status, code, message, **_facts(told))


def _facts(told: Mapping[str, Any]) -> dict[str, str]:
    """What a refusal says besides, if it is a word."""
    facts = {name: told.get(name) for name in FACTS}
    return {name: value for name, value in facts.items() if isinstance(value, str) and CODE.fullmatch(value)}

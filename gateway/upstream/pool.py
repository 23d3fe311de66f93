"""The connections to one host: those in use, and those that wait for the next request."""

import asyncio
from collections import deque

from gateway.errors import HostUnreachable
from gateway.upstream.connection import Connection
from gateway.upstream.dial import Dialler
from gateway.upstream.later import Later

MAX_IDLE = 128
MAX_OPEN = 10_000  # as many as there may be streams at a gateway
IDLE_S = 15.0  # shorter than hosts wait for the next request (30 s), so that we close first
CLOSE_S = 2.0


class Pool:
    """The one that was used last is used next: the others grow old and are closed."""

    def __init__(self, dialler: Dialler) -> None:
        self.dialler = dialler
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._dialling = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._later: Later | None = None

    @property
    def later(self) -> Later:
        """Of the loop in which this pool is used. Asking which one is running costs a system call in Python 3.11."""
        if self._later is None:
            self._later = Later(asyncio.get_running_loop())
        return self._later

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    def take_nowait(self) -> Connection | None:
        """A connection that is open and waits, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._open.discard(connection)
        return None

    async def dial(self) -> Connection:
        if self._is_closed or len(self._open) + self._dialling >= MAX_OPEN:
            problem = "is not used any more" if self._is_closed else f"has {MAX_OPEN} connections already"
            raise HostUnreachable(f"{self.dialler.address} {problem}", sent=False)
        self._dialling += 1
        try:
            connection = await self.dialler.dial()
        finally:
            self._dialling -= 1
        self._open.add(connection)
        if self._is_closed:
            connection.hang_up()
        return connection

    def give_back(self, connection: Connection) -> None:
        """After an exchange: kept if another may follow, else closed."""
        if not connection.is_reusable or len(self._idle) >= MAX_IDLE or self._is_closed:
            self.drop(connection)
            return
        connection.end()
        loop = connection.loop
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_S, self._expire)

    def drop(self, connection: Connection) -> None:
        connection.hang_up()
        self._open.discard(connection)

    def _expire(self) -> None:
        """Close what has waited for too long, and come back when the next one will have."""
        loop = self.later.loop
        oldest = loop.time() - IDLE_S
        while self._idle and (self._idle[0].idle_since <= oldest or not self._idle[0].is_open):
            self.drop(self._idle.popleft())
        self._sweep = None
        if self._idle:
            self._sweep = loop.call_at(self._idle[0].idle_since + IDLE_S, self._expire)

    async def close(self) -> None:
        """Hang up everywhere, and wait until the loop has let go of every connection."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.clear()
        closing = [connection.closed for connection in self._open]
        for connection in list(self._open):
            self.drop(connection)
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)

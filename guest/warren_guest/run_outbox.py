"""What is to be said to an agent: written to its standard input in order, while its output is read meanwhile."""

from collections import deque

from warren_guest.bell import Bell
from warren_guest.errors import RefusedError
from warren_guest.processes import Process

# An agent that asks and asks and never reads an answer is not listened to any further.
LIMIT = 16 << 20


class Outbox:
    """Lives on the loop. One task drains it."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._bell = Bell()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def put(self, data: bytes) -> None:
        """Dropped if it was closed: the agent was told that nothing more comes."""
        if not self._is_closed:
            self._waiting.append(data)
            self._size += len(data)
            self._bell.ring()

    def close(self) -> None:
        """After what is in it, the agent's input ends."""
        self._is_closed = True
        self._bell.ring()

    async def room(self) -> None:
        while self._size > LIMIT and not self._is_closed:
            await self._bell.wait()

    async def drain(self, process: Process) -> None:
        """Write until it is closed and empty, or the agent reads no more."""
        try:
            while True:
                while self._waiting:
                    await process.write([self._waiting[0]])
                    self._size -= len(self._waiting.popleft())
                    self._bell.ring()
                if self._is_closed:
                    break
                await self._bell.wait()
            await process.input(eof=True).end()
        except RefusedError:
            self._is_closed = True  # its input is closed, or it has ended: its last words say why
            self._waiting.clear()
            self._bell.ring()

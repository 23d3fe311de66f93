"""A connection to a port inside a machine: bytes both ways with flow control, and an end for each direction."""

import asyncio
import contextlib
import select
import socket
import struct
from collections import deque
from typing import cast

from contract.errors import WarrenError
from poold.errors import GuestError

HIGH_WATER = 256 << 10  # waiting for the reader; then the guest has to wait
STALL_LIMIT_S = 600.0  # how long a machine may take no byte: a client that left meanwhile is not seen before that
# Closed with this, a TCP connection says that it broke, and not that it has ended.
BROKEN = struct.pack("ii", 1, 0)


class Tunnel(asyncio.Protocol):
    """What an upgraded connection to a guest is. One task reads, one writes."""

    def __init__(self, transport: asyncio.Transport, arrived: bytes) -> None:
        self._transport = transport
        self._failed: WarrenError | None = None
        self._arrived: deque[bytes] = deque([arrived] if arrived else [])
        self._waiting = len(arrived)
        self._is_paused = False
        self._has_ended = False  # the machine's direction
        self._is_ending = False  # ours
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    # What a caller does.

    async def read(self) -> bytes:
        """All that has come; empty when the machine has ended its direction. Raises what broke the connection."""
        while not self._arrived:
            if self._has_ended:
                return b""
            self._raise_if_failed()
            self._news.clear()
            await self._news.wait()
        data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        self._waiting = 0
        if self._is_paused and self._failed is None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, once the machine has taken enough of what was sent before."""
        await self._room()
        self._transport.write(data)

    async def end(self) -> None:
        """Nothing more is sent. Returns when all that was is with the kernel: what comes then loses nothing."""
        self._raise_if_failed()
        self._is_ending = True
        self._transport.set_write_buffer_limits(0)
        await self._room()
        self._transport.write_eof()

    async def _room(self) -> None:
        try:
            async with asyncio.timeout(STALL_LIMIT_S):
                await self._may_write.wait()
        except TimeoutError:
            raise GuestError(f"the machine took no byte for {STALL_LIMIT_S:g} s") from None
        self._raise_if_failed()

    def fail(self, error: WarrenError) -> None:
        """End the connection; whoever waits for something on it gets `error`."""
        if self._failed is None:
            self._failed = error
        self._news.set()
        self._may_write.set()
        if not (self._has_ended and self._is_ending):
            with contextlib.suppress(OSError, ValueError):  # it is closed already
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BROKEN)
        self._transport.abort()

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._waiting += len(data)
        self._news.set()
        if self._waiting > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        if not self._is_ending and _is_gone(self._transport):
            return False  # and the connection is lost
        self._has_ended = True
        self._news.set()
        return True  # what we send still goes on

    def connection_lost(self, _exc: Exception | None) -> None:
        self.fail(GuestError("the connection to the port broke off"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()


def _is_gone(transport: asyncio.Transport) -> bool:
    """Whether the guest closed both directions. TCP cannot tell; unix sockets do, and have no other way to."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))

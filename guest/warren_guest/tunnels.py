"""Tunnels: a connection to the guest that becomes a connection to a port inside the machine.

A tunnel has two ends. What one reads the other writes; an end that cannot write stops the other from reading, so
nothing is held but two buffers. The end of one direction is passed on; an end that breaks breaks the other.
"""

import asyncio
import contextlib
import errno
import select
import socket
import struct
from typing import cast

from warren_guest.errors import RefusedError

PROTOCOL = "tcp"
TUNNEL_LIMIT = 1000
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
# Loopback answers at once, unless a program listens and does not accept.
_DIAL_LIMIT_S = 5.0
_WRITE_HIGH = 64 * 1024
# After one direction has ended, the loss of the other side is only seen by writing to it.
_HALF_OPEN_LIMIT_S = 600.0
# Closed with this, a TCP connection says that it broke, and not that it has ended.
_BROKEN = struct.pack("ii", 1, 0)
# Where bytes arrive, for all ends: each takes its own out at once.
_RECEIVED = memoryview(bytearray(256 * 1024))


async def dial(port: int) -> socket.socket:
    """A connection to `port` of this machine, to whoever listens on loopback only, too. Raises `port_closed`."""
    for family, address in _ADDRESSES:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_DIAL_LIMIT_S):
                return await _connected(family, address, port)
    raise RefusedError(
        "port_closed", f"nothing accepts connections on port {port} of 127.0.0.1 or ::1; is the program running?"
    )


async def _connected(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        if sock.getsockname() == sock.getpeername():
            # With no listener, the kernel may give us that very port to call from: then we have called ourselves.
            raise OSError(errno.ECONNREFUSED, "nobody listens")
    except BaseException:
        sock.close()
        raise
    return sock


class _End(asyncio.BufferedProtocol):
    """One of the two connections of a tunnel."""

    transport: asyncio.Transport
    other: "_End"

    def __init__(self, tunnel: "_Tunnel") -> None:
        self._tunnel = tunnel
        self.is_lost = False
        self.has_ended = False  # nothing more comes from here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_WRITE_HIGH)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        self.pass_on(bytes(_RECEIVED[:nbytes]))

    def pass_on(self, data: bytes) -> None:
        self._tunnel.moved += len(data)
        self.other.transport.write(data)

    def eof_received(self) -> bool:
        if not self.other.has_ended and _is_gone(self.transport):
            self._tunnel.abort()
            return False
        self.has_ended = True
        self._tunnel.end_of(self)
        return True  # the other direction goes on

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._tunnel.lost()


class _Tunnel:
    """Both ends of a tunnel, and whether it is over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.over = self._loop.create_future()
        self.moved = 0  # bytes, both ways
        self.ends = (_End(self), _End(self))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self._timer: asyncio.TimerHandle | None = None

    def end_of(self, end: _End) -> None:
        """One direction has ended. When both have, what is still to be written is, and then both are closed."""
        end.other.transport.write_eof()
        if end.other.has_ended:
            for each in self.ends:
                each.transport.close()
        elif self._timer is None:
            self._watch(self.moved)

    def _watch(self, moved: int) -> None:
        self._timer = self._loop.call_later(_HALF_OPEN_LIMIT_S, self._look, moved)

    def _look(self, moved: int) -> None:
        if moved == self.moved:
            self.abort()
        else:
            self._watch(self.moved)

    def lost(self) -> None:
        if not all(end.has_ended for end in self.ends):
            self.abort()
        if all(end.is_lost for end in self.ends) and not self.over.done():
            self.over.set_result(None)

    def abort(self) -> None:
        for end in self.ends:
            if end.is_lost:  # asyncio fails on some of those
                continue
            with contextlib.suppress(OSError):  # it is closed already
                end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BROKEN)
            end.transport.abort()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.abort()


def _is_gone(transport: asyncio.Transport) -> bool:
    """Whether the other side closed both directions. TCP cannot tell; unix sockets do, and have no other way to."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def carry(link: asyncio.Transport, arrived: bytes, sock: socket.socket) -> None:
    """Carry bytes between `link` and `sock` until both are closed. `arrived` came over `link` before. Owns both."""
    tunnel = _Tunnel()
    near, far = tunnel.ends
    link.pause_reading()
    near.connection_made(link)
    await asyncio.get_running_loop().create_connection(lambda: far, sock=sock)
    link.set_protocol(near)
    try:
        if arrived:
            near.pass_on(arrived)
        link.resume_reading()
        await tunnel.over
    finally:
        tunnel.close()

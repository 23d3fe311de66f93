"""All that listens in one slot: the two ways out, the names, and the packets that were dropped.

One guest's mischief costs that guest: no more connections are accepted than its limits allow and some that are being
refused, and what goes wrong in one of them ends that one.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from poold.egress.proxy.asking import Answers, Datagrams, serve_stream
from poold.egress.proxy.dial import Dialer
from poold.egress.proxy.ends import End, Gone
from poold.egress.proxy.fakes import RANGE, Fakes
from poold.egress.proxy.gate import Gate
from poold.egress.proxy.refusals import Refusal
from poold.egress.proxy.rows import shown
from poold.egress.proxy.tunnels import serve_explicit, serve_transparent
from poold.egress.proxy.visits import Face, Meant, Visit
from poold.egress.proxy.words import say
from poold.egress.wire.packets import MAX_MESSAGE_BYTES, read_dropped

MORE_VISITS = 64  # than the limit: those that are still to say what they want, or are being refused
MAX_DNS_STREAMS = 16
ACCEPTS_AT_ONCE = 32
PACKETS_AT_ONCE = 64
NO_FILES_S = 0.5  # until the next try, when there are too many open files
MIN_TICK_S, MAX_TICK_S = 0.1, 15.0
_SO_ORIGINAL_DST = 80
_ADDRESS = struct.Struct("!2xH4s8x")


@dataclass(frozen=True)
class Sockets:
    """Opened inside the slot by somebody who may."""

    explicit: socket.socket
    transparent: socket.socket
    dns_udp: socket.socket
    dns_tcp: socket.socket
    packets: socket.socket | None


Serve = Callable[[socket.socket], Coroutine[Any, Any, None]]
Original = Callable[[socket.socket], tuple[str, int] | None]


def original_destination(sock: socket.socket) -> tuple[str, int] | None:
    """Where a connection was going before it was sent to us. None: nobody knows."""
    try:
        port, address = _ADDRESS.unpack(sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, _ADDRESS.size))
    except OSError:
        return None
    return str(IPv4Address(address)), port


class Door:
    """Serves one guest while the block is open. After it nothing of it is left."""

    def __init__(self, sockets: Sockets, gate: Gate, dialer: Dialer, original: Original) -> None:
        self.visits: set[Visit] = set()
        self._sockets = sockets
        self._gate = gate
        self._dialer = dialer
        self._original = original
        self._fakes = Fakes()
        self._answers = Answers(gate, self._fakes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._dns_streams = 0
        self._is_accepting = False
        self._has_ended = False
        self._datagrams: asyncio.DatagramTransport | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Door":
        loop = asyncio.get_running_loop()
        for sock in (self._sockets.explicit, self._sockets.transparent, self._sockets.dns_tcp):
            sock.setblocking(False)
        self._datagrams, _ = await loop.create_datagram_endpoint(
            lambda: Datagrams(self._answers), sock=self._sockets.dns_udp
        )
        loop.add_reader(self._sockets.dns_tcp, self._accept_dns)
        if self._sockets.packets is not None:
            self._sockets.packets.setblocking(False)
            loop.add_reader(self._sockets.packets, self._read_packets)
        self._accept_more()
        self._sweep()
        self._gate.ruled = self._sweep  # its limits may be others
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        await self._dialer.close()

    def end(self) -> None:
        """Let nobody in any more, and cut everybody who is here."""
        self._has_ended = True
        loop = asyncio.get_running_loop()
        self._accept_no_more()
        for sock in (self._sockets.dns_tcp, self._sockets.packets):
            if sock is not None and sock.fileno() >= 0:
                loop.remove_reader(sock)
        if self._datagrams is not None:
            self._datagrams.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for visit in list(self.visits):
            visit.cut("cut")

    # The two ways out

    def _accept_more(self) -> None:
        if not self._is_accepting and not self._has_ended and not self._is_full():
            self._is_accepting = True
            loop = asyncio.get_running_loop()
            loop.add_reader(self._sockets.explicit, self._accept, self._sockets.explicit, self._explicit)
            loop.add_reader(self._sockets.transparent, self._accept, self._sockets.transparent, self._transparent)

    def _accept_no_more(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sockets.explicit)
            loop.remove_reader(self._sockets.transparent)

    def _is_full(self) -> bool:
        return len(self._tasks) >= self._gate.policy.limits.connections + MORE_VISITS

    def _accept(self, listener: socket.socket, serve: Serve) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._is_full():
                self._accept_no_more()
                return
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                say(f"no connection can be accepted: {error}")
                self._accept_no_more()
                asyncio.get_running_loop().call_later(NO_FILES_S, self._accept_more)
                return
            self._start(self._guard(serve, sock))

    async def _guard(self, serve: Serve, sock: socket.socket) -> None:
        """What nobody foresaw ends this connection, and only this one."""
        try:
            sock.setblocking(False)
            await serve(sock)
        except (Gone, OSError):
            pass
        except Exception as error:
            say(f"a connection was ended by an error: {error!r}")
        finally:
            sock.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._accept_more()

    async def _explicit(self, sock: socket.socket) -> None:
        async with self._open_visit(sock, "connect", Face.HTTP) as visit:
            await serve_explicit(visit)

    async def _transparent(self, sock: socket.socket) -> None:
        meant, own = self._meant(sock), str(sock.getsockname()[0])
        async with self._open_visit(sock, "tcp", Face.RAW) as visit:
            await serve_transparent(visit, meant, own)

    def _meant(self, sock: socket.socket) -> Meant | None:
        destination = self._original(sock)
        if destination is None:
            return None
        address, port = IPv4Address(destination[0]), destination[1]
        return Meant(port, self._fakes.name_of(address)) if address in RANGE else Meant(port, None, address)

    @contextlib.asynccontextmanager
    async def _open_visit(self, sock: socket.socket, via: str, face: Face) -> AsyncIterator[Visit]:
        """A visit during the block; refusals in it are told to the guest. After it nothing of it is left."""
        client = End()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: client, sock)
        visit = Visit(self._gate, self._dialer, client, via, face)
        visit.task = asyncio.current_task()
        self.visits.add(visit)
        try:
            try:
                yield visit
            except Refusal as refusal:
                await visit.refuse(refusal)
            await visit.closed()
        except asyncio.CancelledError:
            if visit.cut_why is None:
                raise  # it was not cut, but all of us end
        finally:
            self.visits.discard(visit)
            visit.leave()
            client.abort()

    # Everything else

    def _accept_dns(self) -> None:
        try:
            sock, _ = self._sockets.dns_tcp.accept()
        except OSError:
            return
        if self._dns_streams >= MAX_DNS_STREAMS:
            sock.close()
            return
        self._dns_streams += 1
        self._start(self._guard(self._serve_dns, sock))

    async def _serve_dns(self, sock: socket.socket) -> None:
        client = End()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: client, sock)
            await serve_stream(client, self._answers)
            await client.leave(b"")
        finally:
            self._dns_streams -= 1
            client.abort()

    def _read_packets(self) -> None:
        packets = self._sockets.packets
        for _ in range(PACKETS_AT_ONCE):
            try:
                message = packets.recv(MAX_MESSAGE_BYTES) if packets is not None else b""
            except BlockingIOError:
                return
            except OSError:  # there were more than the kernel keeps for us
                self._gate.refused("packet", "too_fast")
                return
            for dropped in read_dropped(message):
                self._gate.refused(
                    "packet", shown(dropped.why) or "protocol", address=shown(dropped.destination), port=dropped.port
                )

    def _sweep(self) -> None:
        """Cut connections on which nothing has moved for long. Coarse: nobody counts every byte's time."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._has_ended:
            return
        idle_s = self._gate.policy.limits.idle_sec
        tick_s = min(max(idle_s / 8, MIN_TICK_S), MAX_TICK_S)
        for visit in list(self.visits):
            if visit.flow is None or not visit.flow.is_open or _has_moved(visit):
                visit.still_since = time.monotonic()
            elif time.monotonic() - visit.still_since >= idle_s:
                visit.cut("idle")
        self._accept_more()  # the limits may be higher now
        self._sweeping = asyncio.get_running_loop().call_later(tick_s, self._sweep)


def _has_moved(visit: Visit) -> bool:
    has_moved = False
    for end in (visit.client, visit.upstream):
        if end is not None and end.has_moved:
            has_moved, end.has_moved = True, False
    return has_moved

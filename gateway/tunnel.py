"""Tunnels: a socket in this process that is a connection to a port of a sandbox, carried over a WebSocket to its host.

Whoever holds the socket leaves by closing it, and then all of it is over at once. If the way there breaks, so does the
socket: what was cut never looks like what has ended.
"""

import asyncio
import contextlib
import logging
import socket
import struct

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from contract.errors import NotFound, NotMine, WarrenError
from contract.tickets import HEADER, Access
from gateway.errors import HostSaid, HostSlow, HostUnreachable, refuses_tickets
from gateway.hosts import Hosts
from gateway.proxy import UNAUTHORIZED
from gateway.tickets import Tickets
from gateway.upstream.dial import Dialler
from gateway.upstream.sockets import open_socket

log = logging.getLogger("gateway.tunnel")

EOF = "eof"
# A host gives a guest 30 s to take a connection and 30 s more to answer (`ANSWER_LIMIT_S` of poold). With less patience
# than that we would not hear the host say that it is the guest who is silent.
OPEN_S = 70.0
CLOSE_S = 1.0
PIECE = 256 << 10
MAX_FRAME = 16 << 20
FRAMES_WAITING = (4, 1)  # for a slow reader: at most, and when the next ones are asked for
PAIR_S = 1.0
NOT_MINE = "Warren-Not-Mine"
# Closed with this, a TCP connection says that it broke, and not that it has ended.
BROKEN = struct.pack("ii", 1, 0)


class NoTunnel(HostUnreachable):
    """The sandbox's host could not be reached. What is in the sandbox has heard nothing."""


class Tunnels:
    """All tunnels of this gateway. `close` ends them."""

    def __init__(self, hosts: Hosts, tickets: Tickets) -> None:
        self._hosts = hosts
        self._tickets = tickets
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sandbox: str, port: int, owner: str) -> socket.socket:
        """A connection to `port`; with the empty `owner` only to one that is public. The caller closes it.

        Raises `NoTunnel`, and what the host says: that there is no such sandbox, that it is not running, that nobody
        listens (`HostSaid`, `NotFound`).
        """
        for _ in range(2):
            try:
                carrier = await self._dial(await self._hosts.find(sandbox), sandbox, port, owner)
            except NotMine:
                self._hosts.forget(sandbox)
                continue
            except HostUnreachable as error:
                raise NoTunnel(error.message, sent=False) from error
            return self._begin(carrier)
        raise NotFound(f"no sandbox {sandbox}", sandbox=sandbox)

    async def close(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, carrier: ClientConnection) -> socket.socket:
        try:
            near, far = tcp_pair()
        except OSError as error:
            carrier.transport.abort()
            raise NoTunnel(f"no connection inside the gateway can be made: {error}", sent=False) from error
        task = asyncio.create_task(_relay(carrier, near))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return far

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unforeseen error in a tunnel", exc_info=error)

    async def _dial(self, host: str, sandbox: str, port: int, owner: str) -> ClientConnection:
        dialler = self._hosts.upstream(host).dialler
        ticket = self._tickets.get(host, owner, Access.PORT, sandbox)
        try:
            carrier = await _connected(dialler, f"/v1/sandboxes/{sandbox}/ports/{port}", ticket)
        except InvalidStatus as error:
            if error.response.status_code == UNAUTHORIZED:
                self._hosts.failed(host)
                raise refuses_tickets(f"host {host}") from None
            self._hosts.answered(host)
            raise _refusal(error) from None
        except HostUnreachable:
            self._hosts.failed(host)
            raise
        except TimeoutError:
            # It took the connection, and what it waits for may be a guest: whether the host lives, probes find out.
            raise HostSlow(f"host {host} did not open a tunnel within {OPEN_S:g} s") from None
        except (OSError, InvalidHandshake, EOFError) as error:
            self._hosts.failed(host)
            raise HostUnreachable(f"host {host} cannot be reached: {error or 'it did not answer'}") from error
        self._hosts.answered(host)
        return carrier


async def _connected(dialler: Dialler, target: str, ticket: str) -> ClientConnection:
    return await open_socket(
        dialler,
        target,
        additional_headers={HEADER: ticket},
        open_timeout=OPEN_S,
        close_timeout=CLOSE_S,
        ping_interval=None,  # behind frames that wait for a slow reader no answer would come; the kernel asks
        max_size=MAX_FRAME,
        max_queue=FRAMES_WAITING,
    )


def _refusal(error: InvalidStatus) -> WarrenError:
    """What a host says instead of opening a tunnel."""
    reply = error.response
    if reply.status_code == 404 and NOT_MINE in reply.headers:
        return NotMine("this host has never had the sandbox")
    try:
        value = orjson.loads(reply.body or b"")
    except orjson.JSONDecodeError:
        value = None
    return HostSaid(reply.status_code, value)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection inside this process. One can tell the other that it broke; unix sockets cannot."""
    with contextlib.ExitStack() as made, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(PAIR_S)
        far = made.enter_context(socket.create_connection(listener.getsockname(), PAIR_S))
        near, peer = listener.accept()
        while peer != far.getsockname():  # somebody else on this machine was faster
            near.close()
            near, peer = listener.accept()
        made.enter_context(near)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setblocking(False)
        made.pop_all()
        return near, far


async def _relay(carrier: ClientConnection, near: socket.socket) -> None:
    """Carry bytes until whoever holds the other end of `near` has left, or the carrier breaks."""
    has_ended = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(_hear(carrier, near, has_ended))
            await _tell(carrier, near)
            hearing.cancel()
    except* (ConnectionClosed, OSError):
        if not has_ended.is_set():
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BROKEN)
    finally:
        near.close()
        carrier.transport.abort()


async def _tell(carrier: ClientConnection, near: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(near, PIECE):
        await carrier.send(data)


async def _hear(carrier: ClientConnection, near: socket.socket, has_ended: asyncio.Event) -> None:
    """The next frame is taken when the last one was."""
    loop = asyncio.get_running_loop()
    while True:
        frame = await carrier.recv()
        if isinstance(frame, bytes):
            await loop.sock_sendall(near, frame)
        elif frame == EOF:
            near.shutdown(socket.SHUT_WR)
            has_ended.set()

"""How a connection to a host is made: over TCP, over TLS, or over a socket that somebody hands us.

Over TLS it is known who is at the other end before anything is said: OpenSSL sees that the certificate is of our
authority and for the address that was dialled, `Dialler.check` that it is the certificate of that host.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast
from urllib.parse import urlsplit

from contract.identity import Identity, Kind, peer_identity
from gateway.errors import HostUnreachable
from gateway.upstream.connection import Connection

log = logging.getLogger("gateway.upstream")

CONNECT_S = 2.0
# A host that is cut off is found out even where nothing is being sent: 5 s of silence, then three questions.
SILENCE_S = 5
QUESTIONS = 3
UNHEARD_MS = 20_000  # how long what we sent may stay without a sign that it arrived

Tls = Callable[[], ssl.SSLContext]
Connect = Callable[[], Awaitable[socket.socket]]


class WrongHost(ConnectionError):
    """Somebody else than the host that was dialled has its address."""


class Dialler:
    """Makes connections to one address. Over TLS to the host of that name, and to nobody else there."""

    def __init__(self, address: str, tls: Tls | None, connect: Connect | None, host: str | None = None) -> None:
        url = urlsplit(address)
        if url.hostname is None or url.scheme not in ("http", "https"):
            raise ValueError(f"address: must be http://ADDRESS:PORT or https://ADDRESS:PORT, got {address!r}")
        if url.scheme == "https" and (tls is None or host is None):
            raise ValueError(f"address: {address} needs a TLS context and the name of its host")
        self.address = address
        self.authority = url.netloc.encode("ascii")
        self._name = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = tls if url.scheme == "https" else None
        self._connect = connect
        self._whose = None if host is None else Identity(Kind.HOST, host)
        self._found: Identity | str = ""  # who was there in place of it, when we last complained

    async def dial(self) -> Connection:
        """A new connection, or `HostUnreachable` within two seconds. Who hands us sockets has limits of their own."""
        async with self._reaching() as options:
            loop = asyncio.get_running_loop()
            transport, connection = await loop.create_connection(lambda: Connection(self.address), **options)
            self.check(transport)
        keep_awake(transport.get_extra_info("socket"))
        return connection

    async def options(self) -> dict[str, Any]:
        """A connected socket, and the TLS to speak over it, as `create_connection` takes them. For other protocols,
        which must `check` their transport before they say anything."""
        async with self._reaching() as options:
            if "sock" not in options:
                options["sock"] = await _connected(options.pop("host"), options.pop("port"))
            keep_awake(options["sock"])
            return options

    def check(self, transport: asyncio.BaseTransport) -> None:
        """Hang up and raise `WrongHost` unless the certificate at the other end is that of the host we want."""
        if self._tls is None:
            return
        found = peer_identity(transport.get_extra_info("peercert")) or "nobody of ours"
        if found == self._whose:
            self._found = ""
            return
        cast(asyncio.Transport, transport).abort()
        if found != self._found:  # it is dialled every second
            self._found = found
            told = {"address": self.address, "expected": str(self._whose), "found": str(found)}
            log.warning("somebody else has the address of a host", extra=told)
        raise WrongHost(f"its certificate is that of {found}, and not of {self._whose}")

    @contextlib.asynccontextmanager
    async def _reaching(self) -> AsyncIterator[dict[str, Any]]:
        """Where to connect, as `create_connection` takes it. What goes wrong with that is `HostUnreachable`.

        Whoever hands us sockets has a limit of their own: a sandbox may have to be resumed before there is one.
        """
        options: dict[str, Any] = {}
        try:
            async with asyncio.timeout(CONNECT_S if self._connect is None else None):
                if self._connect is not None:
                    options["sock"] = await self._connect()
                else:
                    options |= {"host": self._name, "port": self._port}
                if self._tls is not None:
                    options |= {"ssl": self._tls(), "server_hostname": self._name}
                    options["ssl_handshake_timeout"] = CONNECT_S  # so that who waits longer knows: TLS was spoken
                yield options
        except BaseException as error:
            if (given := options.get("sock")) is not None:
                given.close()
            if isinstance(error, TimeoutError):
                raise HostUnreachable(f"{self.address} did not answer within {CONNECT_S:g} s", sent=False) from None
            if isinstance(error, OSError):
                raise HostUnreachable(f"{self.address} cannot be reached: {error}", sent=False) from error
            raise


async def _connected(name: str, port: int) -> socket.socket:
    """A TCP connection to the first address of `name` that takes one."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError(f"{name} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, proto)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            problem = error
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise problem


def keep_awake(found: socket.socket) -> None:
    """Let the kernel notice that the other side is gone. Sockets that are not TCP notice by themselves."""
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, QUESTIONS)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)

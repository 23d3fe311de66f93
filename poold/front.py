"""The front: ends TLS on the port, and carries the bytes to one of two servers behind it, on unix sockets.

Our HTTP server cannot tell an application who its client is, and cannot load a certificate anew. So this does both: a
client with a gateway's certificate reaches the whole API, one without a certificate only what an attach ticket is good
for, and any other certificate nothing.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.identity import Identity, Kind, peer_identity
from poold.config import Pki
from poold.errors import ConfigError
from poold.pki import read
from poold.watched import Watched

log = logging.getLogger("poold.front")

HANDSHAKE_S = 5.0
CLOSE_S = 30.0  # for a slow client to read the last bytes of a connection
BACKLOG = 1024
CONNECTIONS = 8192
ANONYMOUS = 1024  # of them at most, without a certificate: whoever they are, gateways get through
PIECE_BYTES = 1 << 16
FULL_S = 0.1  # to wait when there are no more file descriptors
UNUSABLE = (OSError, ValueError, ConfigError)  # what may be said of certificates


@dataclass(frozen=True)
class Doors:
    """The sockets of the servers behind the front."""

    gateways: Path
    anyone: Path


class Certificates:
    """What the host shows to clients and expects of them, as the files say now."""

    def __init__(self, pki: Pki, name: str) -> None:
        self._pki = pki
        self._whose = Identity(Kind.HOST, name)
        self._watched = Watched([pki.ca, pki.certificate, pki.key])
        self._watched.has_changed()
        try:
            self._context = _context(pki, self._whose)
        except UNUSABLE as error:
            raise ConfigError(f"POOLD_PKI={pki.folder}: its certificates cannot be used: {error}") from error

    async def context(self) -> ssl.SSLContext:
        """For the next connection. Files that changed are loaded; if they make no sense, what we had stays."""
        if self._watched.is_due():
            await asyncio.to_thread(self._load)
        return self._context

    def _load(self) -> None:
        if not self._watched.has_changed():
            return
        try:
            self._context = _context(self._pki, self._whose)
        except UNUSABLE as error:  # a certificate and its key are replaced one after the other
            log.warning("new certificates are not loaded", extra={"path": str(self._pki.folder), "why": str(error)})
        else:
            log.info("new certificates are loaded", extra={"path": str(self._pki.folder)})


def _context(pki: Pki, whose: Identity) -> ssl.SSLContext:
    found = read(pki.certificate.read_bytes()).identity
    if found != whose:  # gateways would not believe it
        raise ConfigError(f"host.pem is the certificate of {found or 'nobody of ours'}, and this is {whose}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # nobody resumes a session of a certificate that has expired since
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(pki.ca)
    context.load_cert_chain(pki.certificate, pki.key)
    return context


class Front:
    """The port. Two blocks: `accepting` new connections, and around it `carrying` those that there are."""

    def __init__(self, certificates: Certificates, doors: Doors) -> None:
        self._certificates = certificates
        self._doors = doors
        self._tasks: set[asyncio.Task[None]] = set()
        self._anonymous = 0

    @contextlib.asynccontextmanager
    async def carrying(self) -> AsyncIterator[None]:
        """After the block every connection is closed."""
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    @contextlib.asynccontextmanager
    async def accepting(self, address: str, port: int) -> AsyncIterator[None]:
        with _listener(address, port) as listener:
            async with asyncio.TaskGroup() as group:
                accepting = group.create_task(self._accept(listener))
                try:
                    yield
                finally:
                    accepting.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:  # the client is gone already, or there are too many open files
                log.warning("a connection was not accepted", extra={"why": str(error)})
                await asyncio.sleep(FULL_S)
                continue
            if len(self._tasks) >= CONNECTIONS:
                accepted.close()
                continue
            task = asyncio.create_task(self._serve(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        """One connection, from its handshake to its end. What goes wrong with it costs nobody else anything."""
        try:
            async with _tls(accepted, self._certificates) as client:
                await self._carry(client)
        except (OSError, TimeoutError) as error:
            log.debug("a connection ended", extra={"why": str(error)})
        except Exception:
            log.exception("unforeseen error in a connection")

    async def _carry(self, client: "Stream") -> None:
        """Carry a connection whose handshake is done to where it may go. Raises `OSError` if that is nowhere."""
        certificate = client.writer.get_extra_info("peercert")
        if certificate:
            who = peer_identity(certificate)
            if who is None or who.kind is not Kind.GATEWAY:
                raise ConnectionRefusedError("its certificate is not a gateway's")
            await _relay(client, self._doors.gateways)
            return
        if self._anonymous >= ANONYMOUS:
            raise ConnectionRefusedError("there are too many connections without a certificate")
        self._anonymous += 1
        try:
            await _relay(client, self._doors.anyone)
        finally:
            self._anonymous -= 1


@dataclass(frozen=True)
class Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@contextlib.asynccontextmanager
async def _tls(accepted: socket.socket, certificates: Certificates) -> AsyncIterator[Stream]:
    """A connection after its handshake, during the block. If the block ends well, what was written is sent first."""
    try:
        context = await certificates.context()
    except BaseException:
        accepted.close()
        raise
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(PIECE_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        accepted,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_S,
        ssl_shutdown_timeout=CLOSE_S,
    )
    async with _closing(Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))) as stream:
        yield stream


@contextlib.asynccontextmanager
async def _closing(stream: Stream) -> AsyncIterator[Stream]:
    """After the block the connection is gone: uvloop can crash over one that is left open."""
    try:
        yield stream
    except BaseException:
        stream.writer.transport.abort()
        raise
    finally:
        stream.writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await stream.writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            stream.writer.transport.abort()


async def _relay(client: Stream, door: Path) -> None:
    """Carry bytes both ways until one side has ended. What the host said before its end has been sent then.

    A client that ends its direction ends the connection: over TLS there is no half of one in Python.
    """
    host = Stream(*await asyncio.open_unix_connection(door, limit=PIECE_BYTES))
    async with _closing(host):
        both = [asyncio.create_task(_pump(client, host)), asyncio.create_task(_pump(host, client))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)


async def _pump(source: Stream, target: Stream) -> None:
    """The next read waits for the last write."""
    with contextlib.suppress(OSError):  # one side is gone, and with it the connection
        while data := await source.reader.read(PIECE_BYTES):
            target.writer.write(data)
            await target.writer.drain()


@contextlib.contextmanager
def _listener(address: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family, backlog=BACKLOG) as listener:
        listener.setblocking(False)
        yield listener

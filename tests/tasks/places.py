"""Servers of a test in the internet of its world: each has a name of its own there, and nothing else leads to it."""

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from tests.egress.internet import Internet
from tests.egress.spaces import Space
from tests.gitserver import GitServer

T = TypeVar("T")
FIRST = 31  # of the addresses that the internet's own names do not have
PIECE = 1 << 16


class Places:
    """Where a test's servers stand. Names are of `example.com`, for which there are certificates."""

    def __init__(self, space: Space, internet: Internet) -> None:
        self._space, self._internet = space, internet
        self._numbers = itertools.count(FIRST)

    def made(self, make: Callable[[], T]) -> T:
        """What `make` opens is in the internet: a server, say, on any port of any address."""
        return self._space.do(make)

    @contextlib.contextmanager
    def encrypted(self, name: str, port: int) -> Iterator[str]:
        """`name` is a server with TLS during the block, before the one on `port`. Gives its address."""
        context = self._internet.certificates.server
        listener = self.made(lambda: socket.create_server(("0.0.0.0", 0)))
        door = _Door(listener, context, port)
        thread = threading.Thread(target=lambda: self._space.do(door.serve))
        thread.start()
        try:
            yield self._named(name, listener.getsockname()[1])
        finally:
            door.close()
            thread.join()

    @contextlib.contextmanager
    def web(self, name: str, handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
        """A server of HTTPS under `name` during the block."""
        server = self.made(lambda: ThreadingHTTPServer(("0.0.0.0", 0), handler))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with self.encrypted(name, server.server_address[1]):
                yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _named(self, name: str, port: int) -> str:
        address = f"93.184.215.{next(self._numbers)}"
        self._internet.zone.addresses[name] = (address,)
        rule = f"ip daddr {address} tcp dport 443 redirect to :{port}"
        self._space.run("nft", f"insert rule inet catch arriving {rule}")
        return address


@contextlib.contextmanager
def git_server(places: Places, folder: Path, name: str, users: Mapping[str, str] | None = None) -> Iterator[GitServer]:
    """A server of git with TLS under `name` during the block. With `users` nothing is answered without one of them."""
    server = places.made(lambda: GitServer(folder, users or {}, "0.0.0.0", 0))
    server.start()
    try:
        with places.encrypted(name, server.port):
            yield server
    finally:
        server.close()


class _Door:
    """Speaks TLS with whoever comes, and hands on what they say."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
        self._listener, self._context, self._port = listener, context, port
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()

    def serve(self) -> None:
        with contextlib.closing(self._loop), self._listener:
            self._loop.run_until_complete(self._serve())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._carry, sock=self._listener, ssl=self._context):
            await self._closing.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(far_writer):
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copy(reader, far_writer))
                        both.create_task(_copy(far_reader, writer))
                except* OSError:
                    pass


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """TLS has no half-closed connections here: when either side has said all, both are done."""
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()

"""Servers of a test in the internet of its world: each has a name of its own there, and nothing else leads to it."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from tests.egress.internet import Internet
from tests.egress.spaces import Space

T = TypeVar("T")
FIRST = 31  # of the addresses that the internet's own names do not have


class Places:
    """Where a test's servers stand. Names are of `example.com`, for which there are certificates."""

    def __init__(self, space: Space, internet: Internet) -> None:
        self._space, self._internet = space, internet
        self._numbers = itertools.count(FIRST)

    def made(self, make: Callable[[], T]) -> T:
        """What `make` opens is in the internet: a server, say, on any port of any address."""
        return self._space.do(make)

    def name(self, name: str, port: int, *, at: int = 443) -> str:
        """Lead `name` to the server on `port`. Gives the address that it has from now on."""
        address = f"93.184.215.{next(self._numbers)}"
        self._internet.zone.addresses[name] = (address,)
        rule = f"ip daddr {address} tcp dport {at} redirect to :{port}"
        self._space.run("nft", f"insert rule inet catch arriving {rule}")
        return address

    @contextlib.contextmanager
    def web(self, name: str, handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
        """A server of HTTPS under `name` during the block."""
        server = self.made(lambda: ThreadingHTTPServer(("0.0.0.0", 0), handler))
        server.daemon_threads = True
        self.encrypt(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.name(name, server.server_address[1])
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def encrypt(self, server: ThreadingHTTPServer) -> None:
        """Hands are shaken when a connection is first read, in its own thread."""
        context = self._internet.certificates.server
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

"""A TLS connection that one thread reads while another writes.

OpenSSL's connections are for one thread at a time, and Python lets two in at once. Whoever writes while another thread
reads what the server adds to its handshake (session tickets, in TLS 1.3) may then wait for ever.
"""

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

AGAIN_S = 0.1  # what one thread waits for may have been taken by the other: both look again

T = TypeVar("T")


class SharedTls:
    """Enough of a socket for a client of WebSockets. OpenSSL is called by one thread at a time, and never waits."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._turn = threading.Lock()
        self._limit_s: float | None = None

    def recv(self, size: int) -> bytes:
        return self._do(partial(self._sock.recv, size))

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._do(partial(self._sock.send, rest)) :]

    def settimeout(self, limit_s: float | None) -> None:
        """How long each step of reading or writing may take from now on."""
        self._limit_s = limit_s

    def shutdown(self, how: int) -> None:
        """End one direction or both; whoever reads or writes sees it. What still goes is encrypted as before."""
        socket.socket.shutdown(self._sock, how)  # its own drops TLS first, and a write behind that is in the clear

    def close(self) -> None:
        """Close it; whoever reads or writes sees an end."""
        with contextlib.suppress(OSError):  # the other side was first
            self.shutdown(socket.SHUT_RDWR)
        with self._turn:  # closing drops TLS too
            self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def _do(self, step: Callable[[], T]) -> T:
        give_up = None if self._limit_s is None else time.monotonic() + self._limit_s
        while True:
            with self._turn:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    wanted = selectors.EVENT_READ
                except ssl.SSLWantWriteError:
                    wanted = selectors.EVENT_WRITE
            if give_up is not None and time.monotonic() > give_up:
                raise TimeoutError("the connection took too long")
            self._wait(wanted)

    def _wait(self, wanted: int) -> None:
        if self._sock.fileno() < 0:
            raise OSError("the connection was closed")
        with selectors.DefaultSelector() as selector, contextlib.suppress(ValueError, OSError):  # closed just now
            selector.register(self._sock, wanted)
            selector.select(AGAIN_S)

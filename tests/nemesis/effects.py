"""What tasks change in the world outside: names that can be made once each. Every attempt is remembered."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Attempt:
    at: float  # monotonic
    name: str
    text: str
    address: str  # of the host whose machine tried
    is_made: bool  # by this attempt


@dataclass
class Effects:
    attempts: list[Attempt] = field(default_factory=list)
    _made: dict[str, str] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def make(self, name: str, text: str, address: str) -> bool:
        with self._turn:
            is_made = name not in self._made
            self._made.setdefault(name, text)
            self.attempts.append(Attempt(time.monotonic(), name, text, address, is_made))
            return is_made

    @property
    def made(self) -> dict[str, str]:
        with self._turn:
            return dict(self._made)


@contextlib.contextmanager
def open_effects(listener: socket.socket) -> Iterator[Effects]:
    """The world, behind `listener` during the block."""
    effects = Effects()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            assert self.headers["If-None-Match"] == "*"
            is_made = effects.make(self.path.lstrip("/"), text, self.client_address[0])
            self.send_response(201 if is_made else 412)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: it is all in `attempts`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield effects
        finally:
            server.shutdown()
            thread.join()

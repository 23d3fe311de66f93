"""A terminal with `pooldctl attach` in it, and the terminals of a poold that is played."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, unix_serve

from tests.terminal import Screen, open_screen
from tests.unit.ctl.ctl_poold import sandbox, sandbox_id

LIMIT_S = 60.0
ONE = sandbox_id("one")
DETACH = b"\x1d"


class Guest:
    """One WebSocket of a terminal, from poold's side. The test's own thread drives it."""

    def __init__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.query = dict(parse_qsl(urlsplit(connection.request.path).query))
        self._connection = connection
        self.is_over = threading.Event()

    def tells(self, **message: Any) -> None:
        self._connection.send(json.dumps(message))

    def starts(self, pid: int = 77) -> None:
        self.tells(type="start", pid=pid)

    def prints(self, data: bytes) -> None:
        self._connection.send(data)

    def hears(self) -> bytes | dict[str, Any]:
        message = self._connection.recv(LIMIT_S)
        if isinstance(message, bytes):
            return message
        told: dict[str, Any] = json.loads(message)
        return told

    def is_left(self) -> bool:
        """Whether the client closed the connection, after what it still says."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._connection.recv(LIMIT_S)
        return True

    def closes(self, code: int = 1000, reason: str = "") -> None:
        self._connection.close(code, reason)

    def vanishes(self) -> None:
        self._connection.socket.shutdown(2)


Guests = queue.Queue[Guest]
Attach = Callable[..., contextlib.AbstractContextManager[Screen]]


@contextlib.contextmanager
def serve_terminals(path: Path) -> Iterator[Guests]:
    """Play a poold with one sandbox on `path`; gives the terminals that are opened, in order."""
    opened: Guests = queue.Queue()
    all_of_them: list[Guest] = []

    def handle(connection: ServerConnection) -> None:
        guest = Guest(connection)
        all_of_them.append(guest)
        opened.put(guest)
        guest.is_over.wait(LIMIT_S)

    def plain(connection: ServerConnection, request: Request) -> Response | None:
        if "/terminal" in request.path:
            return None
        row = json.dumps(sandbox("one", "error", reason="the machine \x1b[31mran out of memory")).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(row)), "Connection": "close"}), row)

    with unix_serve(handle, str(path), process_request=plain, close_timeout=1) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield opened
        finally:
            for guest in all_of_them:
                guest.is_over.set()
            server.shutdown()
            thread.join()


def attached(
    environment: dict[str, str], *words: str, columns: int = 100, rows: int = 30
) -> contextlib.AbstractContextManager[Screen]:
    """A terminal with the sandbox in it."""
    return open_screen("poold.ctl", "attach", ONE, *words, environment=environment, columns=columns, rows=rows)


def next_of(guests: Guests) -> Guest:
    return guests.get(timeout=LIMIT_S)


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)

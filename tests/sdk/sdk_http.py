"""A server on a real socket for the tests that play a gateway: what its handlers share."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LIMIT_S = 30.0


class Replying(BaseHTTPRequestHandler):
    """Reads a request; `answer` replies to it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def answer(self, path: str, query: dict[str, str], body: Any) -> None:
        raise NotImplementedError

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with contextlib.suppress(OSError):
            self.answer(parts.path, query, json.loads(body) if body else {})

    def json(self, status: int, value: Any) -> None:
        self.bytes(json.dumps(value).encode(), "application/json", status)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.json(status, {"error": {"code": code, "message": message}})

    def bytes(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(handler: type[Replying]) -> Iterator[str]:
    """Its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(LIMIT_S)

"""The servers of the test's internet: they serve every address, tell whatever asks that it arrived, and remember it.

Port 80 and 443 speak HTTP, every other port says a word of greeting. `MARK` is in every answer.
"""

import contextlib
import hashlib
import http.server
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.egress.spaces import Space
from tests.egress.world import CATCH_PORT
from tests.egress.zone import SOCKETS

MARK = "WARREN-INTERNET"
BROKEN = "broken TLS"
PLAIN_SOCKETS, TLS_SOCKETS = 8081, 8443
SO_ORIGINAL_DST = 80
BLOCK_BYTES = 1 << 20
FIRST_WORDS_S = 1.0
SOCKETS_RULES = f"""
insert rule inet catch arriving ip daddr {SOCKETS} tcp dport 80 redirect to :{PLAIN_SOCKETS}
insert rule inet catch arriving ip daddr {SOCKETS} tcp dport 443 redirect to :{TLS_SOCKETS}
"""


@dataclass(frozen=True)
class Hit:
    """Something that a server was asked."""

    address: str
    port: int
    said: str  # the request line, or the first bytes
    host: str = ""
    sni: str | None = None
    body: bytes = b""
    peer_port: int = 0


class Web:
    """The servers, and what they were asked. Safe to ask from any thread."""

    def __init__(self, site: Path, context: ssl.SSLContext) -> None:
        self.site = site
        self.context = context
        self.hits: list[Hit] = []
        self.sent: list[str] = []  # downloads that are done, by their paths

    def since(self, mark: int) -> list[Hit]:
        return self.hits[mark:]

    def mark(self) -> int:
        return len(self.hits)


def block(number: int) -> bytes:
    """The piece with this number of what `/bytes/…` sends: no two are alike."""
    return number.to_bytes(8, "big") + _NOISE[8:]


_NOISE = hashlib.shake_256(b"warren").digest(BLOCK_BYTES)


def digest_of(blocks: int) -> str:
    """The SHA-256 of `/bytes/…` with so many blocks."""
    whole = hashlib.sha256()
    for number in range(blocks):
        whole.update(block(number))
    return whole.hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection. The class attribute `web` is set by whoever serves."""

    web: Web
    protocol_version = "HTTP/1.1"
    timeout = 30
    sni: str | None = None

    def setup(self) -> None:
        if getattr(self.server, "is_tls", False):
            self.request = self._encrypted(self.request)
            self.sni = getattr(self.request, "asked_name", None)
        super().setup()

    def _encrypted(self, request: socket.socket) -> ssl.SSLSocket:
        """What is not TLS is remembered as such, if it is anything."""
        request.settimeout(self.timeout)
        said = request.recv(1, socket.MSG_PEEK)
        address, port = request.getsockname()[:2]
        try:
            return self.web.context.wrap_socket(request, server_side=True)
        except (ssl.SSLError, OSError):
            if said:
                self.web.hits.append(Hit(address.removeprefix("::ffff:"), port, BROKEN))
            raise

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if "transfer-encoding" not in self.headers else self._chunks()
        address, port = self.connection.getsockname()[:2]
        said, host = self.requestline, self.headers.get("host", "")
        address = address.removeprefix("::ffff:")
        self.web.hits.append(Hit(address, port, said, host, self.sni, body, self.client_address[1]))
        self._route(urlsplit(self.path), body)

    do_POST = do_PUT = do_HEAD = do_DELETE = do_OPTIONS = do_PATCH = do_GET  # noqa: N815

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _route(self, url: Any, body: bytes) -> None:
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path.startswith("/git/"):
            self._git(url, body)
        elif url.path.startswith("/bytes/"):
            self._bytes(int(url.path.split("/")[2]), float(asked.get("wait", "0")))
        elif url.path == "/redirect":
            self._say(302, b"", {"Location": asked["to"]})
        elif url.path == "/echo":
            self._say(200, body)
        elif (file := self._file(url.path)) is not None:
            self._say(200, file.read_bytes(), {"Content-Type": _kind(file)})
        elif self._folder().is_dir():
            self._say(404, b"")
        else:
            self._say(200, f"{MARK} {self.headers.get('host')} {self.command} {self.path}\n".encode())

    def _file(self, path: str) -> Path | None:
        """What stands in the site's folder of the host that was asked for."""
        file = self._folder() / path.lstrip("/")
        if path.endswith("/"):
            file /= "index.html"
        return file if file.is_file() else None

    def _folder(self) -> Path:
        return self.web.site / (self.headers.get("host", "").partition(":")[0] or "nobody")

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Mark": MARK, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _bytes(self, blocks: int, wait_s: float) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(blocks * BLOCK_BYTES))
        self.end_headers()
        for number in range(blocks):
            self.wfile.write(block(number))
            time.sleep(wait_s)
        self.web.sent.append(self.path)

    def _git(self, url: Any, body: bytes) -> None:
        """What git's own server says to it."""
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.web.site / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": url.path.removeprefix("/git"),
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._say(int(headers.pop("Status", "200")[:3]), content, headers)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Serves a socket that was opened elsewhere. A client that leaves, or that speaks nonsense, is no event."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: Any, *, is_tls: bool = False) -> None:
        super().__init__(listener.getsockname(), handler)
        self._listener = listener
        self.is_tls = is_tls

    def fileno(self) -> int:
        return self._listener.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        return self._listener.accept()

    def handle_error(self, *_: Any) -> None:
        pass

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
        request.close()


class _Catcher(socketserver.BaseRequestHandler):
    """Greets whoever came to a port that nobody serves, and remembers the first words."""

    web: Web

    def handle(self) -> None:
        address, port = _original(self.request)
        self.request.settimeout(FIRST_WORDS_S)
        self.request.sendall(f"{MARK} {address} {port}\r\n".encode())
        said = b""
        with contextlib.suppress(TimeoutError):
            said = self.request.recv(4096)
        self.web.hits.append(Hit(address, port, said.decode("latin-1"), peer_port=self.client_address[1]))


def _original(connection: socket.socket) -> tuple[str, int]:
    """Where a connection was going before it was redirected to us."""
    if connection.family == socket.AF_INET:
        port, address = struct.unpack("!2xH4s8x", connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
        return socket.inet_ntop(socket.AF_INET, address), port
    port, address = struct.unpack("!2xH4x16s4x", connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28))
    return socket.inet_ntop(socket.AF_INET6, address), port


def _kind(file: Path) -> str:
    return "text/html" if file.suffix == ".html" else "application/octet-stream"


def _echo(connection: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosed):  # without a word of farewell
        for message in connection:
            connection.send(message)


def _listen(family: socket.AddressFamily, port: int, *, both: bool = False) -> Callable[[], socket.socket]:
    """How to open a listener on every address."""
    address = "::" if family == socket.AF_INET6 else "0.0.0.0"
    return lambda: socket.create_server((address, port), family=family, backlog=512, dualstack_ipv6=both)


@contextlib.contextmanager
def open_web(space: Space, site: Path, context: ssl.SSLContext) -> Iterator[Web]:
    """Serve during the block. `site` has a folder of files for each name, and one of repositories, `git`."""
    web = Web(site, context)

    def named(connection: Any, name: str | None, _: object) -> None:
        connection.asked_name = name

    context.sni_callback = named
    handler, catcher = type("_Handler", (Handler,), {"web": web}), type("_Catch", (_Catcher,), {"web": web})
    six, four = socket.AF_INET6, socket.AF_INET
    with contextlib.ExitStack() as stack:

        def opened(family: socket.AddressFamily, port: int, *, both: bool = False) -> socket.socket:
            return stack.enter_context(space.do(_listen(family, port, both=both)))

        servers: list[Any] = [
            _Server(opened(six, 80, both=True), handler),
            _Server(opened(six, 443, both=True), handler, is_tls=True),
            _Server(opened(four, CATCH_PORT), catcher),
            _Server(opened(six, CATCH_PORT), catcher),
            serve(_echo, sock=opened(four, PLAIN_SOCKETS)),
            serve(_echo, sock=opened(four, TLS_SOCKETS), ssl=context),
        ]
        space.run("nft", SOCKETS_RULES)
        threads = [threading.Thread(target=server.serve_forever) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield web
        finally:
            for server in servers:
                server.shutdown()
            for thread in threads:
                thread.join()

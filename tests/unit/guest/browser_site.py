"""Pages on loopback for the browser of a guest, the badly behaved ones too."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Content = str | Callable[[], str]


@dataclass
class Site:
    """What is served, by path. `release` lets go of those who wait for `/never`."""

    url: str
    pages: dict[str, Content]
    release: threading.Event

    def page(self, name: str, content: Content) -> str:
        self.pages[f"/{name}"] = content
        return f"{self.url}/{name}"


@contextlib.contextmanager
def open_site() -> Iterator[Site]:
    """Serve pages during the block. `/never` is accepted and not answered, `/broken` is a 500."""
    pages: dict[str, Content] = {}
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/never":
                release.wait()
                return
            content = pages.get(path, "<h1>not here</h1>")
            body = (content if isinstance(content, str) else content()).encode()
            self.send_response(500 if path == "/broken" else 200 if path in pages else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # a browser hangs up as it likes

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{server.server_port}", pages, release)
        finally:
            release.set()
            server.shutdown()
            thread.join()

"""A gateway that has one task: its routes as documented, on a real socket, and a script of what happens in it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TASK = "tk-2zkqmnb5wc7hxv3a"
SANDBOX = "sb-2zkqmnb5wc7hxv3a"
LIMIT_S = 30.0
AT_MS = 1_700_000_000_000
FINAL = {f"task.{state}": state for state in ("completed", "failed", "stopped")}
STATES = FINAL | {
    "task.queued": "queued",
    "task.running": "running",
    "task.paused": "paused",
    "task.resumed": "running",
}
USAGE = {"steps": 2, "input_tokens": 12_000, "output_tokens": 345, "usd": 0.42, "wall_ms": 83_000}
RESULT = {
    "summary": "It is done.",
    "commits": [{"hash": "1f3a9c2d44aa", "subject": "Mend the test"}],
    "diff": {"files": 2, "insertions": 10, "deletions": 3, "bytes": 400},
    "archive": None,
    "pushed": None,
}
DIFF = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new \x1b[2J\xff\n"


@dataclass
class Stand:
    """The one task, everything that was asked of it, and the files that it has."""

    script: Callable[["Stand"], None]
    url: str = ""
    began_ms: int = AT_MS  # long ago: always the same
    events: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # for idempotency
    waiting: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    state: str = "queued"
    row: dict[str, Any] = field(default_factory=dict)  # what is told besides
    breaks: list[int] = field(default_factory=list)  # streams end without their end behind these events
    changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, kind: str, data: Any = None, *, by: str = "host") -> None:
        with self.changed:
            seq = len(self.events) + 1
            event = {
                "seq": seq,
                "kind": kind,
                "at_ms": self.began_ms + seq * 1000,
                "by": by,
                "data": data or {},
                "stream": TASK,
            }
            self.events.append(event)
            if by == "host":
                self.state = STATES.get(kind, self.state)
            self.changed.notify_all()

    def ask(self, name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
        """Ask a person, and wait for what is said."""
        question = {"id": name, "kind": kind, "text": text, "tool": None, "arguments": None, "since_ms": AT_MS, **more}
        self.waiting = [question]
        self.tell("approval.requested", {"waiting": question})
        said = self.wait_for("POST", "/input")
        self.waiting = []
        self.tell("approval.answered", {"id": name, "kind": said["kind"], "by": "anna"})
        return said

    def wait_for(self, method: str, end: str) -> Any:
        """The body of the first such request."""

        def found() -> Any:
            return next((body for how, path, body in self.asked if how == method and path.endswith(end)), None)

        with self.changed:
            assert self.changed.wait_for(lambda: found() is not None, LIMIT_S), f"nobody asked {method} {end}"
        return found()

    def view(self) -> dict[str, Any]:
        is_over = self.state in FINAL.values()
        return {
            "id": TASK,
            "state": self.state,
            "agent": "mock",
            "prompt": "mend it",
            "created_ms": AT_MS,
            "sandbox": SANDBOX,
            "waiting": self.waiting,
            "usage": USAGE,
            "result": RESULT if is_over else None,
            "from_the_future": 1,
            **self.row,
        }


@contextlib.contextmanager
def open_stand(script: Callable[[Stand], None] = lambda stand: None, began_ms: int = AT_MS) -> Iterator[Stand]:
    """The script begins when the task is created, or at once if it was before."""
    stand = Stand(script, began_ms=began_ms)

    class Handler(_Handler):
        pass

    Handler.stand = stand
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        stand.url = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        try:
            yield stand
        finally:
            server.shutdown()
            serving.join(LIMIT_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand: Stand

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts, stand = urlsplit(self.path), self.stand
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with stand.changed:
            stand.asked.append((self.command, parts.path, json.loads(body) if body else {}))
            if "Idempotency-Key" in self.headers:
                stand.keys.append(self.headers["Idempotency-Key"])
            stand.changed.notify_all()
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        rest = parts.path.removeprefix(f"/api/v1/tasks/{TASK}")
        with contextlib.suppress(OSError):
            self._route(rest, query)

    def _route(self, rest: str, query: dict[str, str]) -> None:
        stand = self.stand
        if rest == "/api/v1/tasks" and self.command == "POST":
            made = stand.view()
            threading.Thread(target=stand.script, args=(stand,), daemon=True).start()
            self._json(202, made)
        elif rest == "/api/v1/tasks":
            self._json(200, {"tasks": [] if "before" in query else [stand.view()], "next": None, "incomplete": []})
        elif rest in ("", "/input", "/stop", "/pause", "/resume", "/retry"):
            self._json(200, stand.view())
        elif rest == "/events":
            self._events(query)
        elif rest == "/diff":
            self._bytes(DIFF, "text/plain; charset=utf-8")
        elif rest == "/artifacts":
            self._json(200, {"artifacts": [{"name": name, "bytes": len(data)} for name, data in stand.files.items()]})
        elif rest == "/archive" and "archive" in stand.files:
            self._bytes(stand.files["archive"], "application/zstd")
        elif rest.removeprefix("/artifacts/") in stand.files:
            self._bytes(stand.files[rest.removeprefix("/artifacts/")], "application/octet-stream")
        elif rest == "/steps":
            step = {
                "number": 1,
                "tool": "Bash",
                "arguments": {"command": "make test"},
                "output": "ok",
                "output_bytes": 2,
            }
            self._json(200, {"steps": [] if int(query["after"]) else [step | {"started_ms": 1, "ended_ms": 1201}]})
        else:
            self._json(404, {"error": {"code": "not_found", "message": f"there is no {rest}"}})

    def _events(self, query: dict[str, str]) -> None:
        stand = self.stand
        if "text/event-stream" not in self.headers.get("Accept", ""):
            return self._json(200, {"events": [each for each in stand.events if each["seq"] > int(query["after"])]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        last = int(self.headers.get("Last-Event-ID", "0"))
        while True:
            with stand.changed:
                if not stand.changed.wait_for(lambda last=last: len(stand.events) > last, LIMIT_S):
                    return None  # the test is over
                event = stand.events[last]
            last += 1
            text = f"id: {last}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
            if last in stand.breaks:
                stand.breaks.remove(last)
                self.close_connection = True
                return None
            if event["kind"] in FINAL and event["by"] == "host":
                self.wfile.write(b"0\r\n\r\n")
                return None

    def _json(self, status: int, value: Any) -> None:
        self._bytes(json.dumps(value).encode(), "application/json", status)

    def _bytes(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

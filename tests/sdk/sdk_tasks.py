"""A gateway that has one task: its routes as documented, on a real socket, and a script of what happens in it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sdk.sdk_http import LIMIT_S, Replying, serving

TASK = "tk-2zkqmnb5wc7hxv3a"
SANDBOX = "sb-2zkqmnb5wc7hxv3a"
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
    with serving(Handler) as stand.url:
        yield stand


class _Handler(Replying):
    stand: Stand

    def answer(self, path: str, query: dict[str, str], body: Any) -> None:
        stand = self.stand
        with stand.changed:
            stand.asked.append((self.command, path, body))
            if "Idempotency-Key" in self.headers:
                stand.keys.append(self.headers["Idempotency-Key"])
            stand.changed.notify_all()
        self._route(path.removeprefix(f"/api/v1/tasks/{TASK}"), query)

    def _route(self, rest: str, query: dict[str, str]) -> None:
        stand = self.stand
        if rest == "/api/v1/tasks" and self.command == "POST":
            made = stand.view()
            threading.Thread(target=stand.script, args=(stand,), daemon=True).start()
            self.json(202, made)
        elif rest == "/api/v1/tasks":
            self.json(200, {"tasks": [] if "before" in query else [stand.view()], "next": None, "incomplete": []})
        elif rest in ("", "/input", "/stop", "/pause", "/resume", "/retry"):
            self.json(200, stand.view())
        elif rest == "/events":
            self._events(query)
        elif rest == "/diff":
            self.bytes(DIFF, "text/plain; charset=utf-8")
        elif rest == "/artifacts":
            self.json(200, {"artifacts": [{"name": name, "bytes": len(data)} for name, data in stand.files.items()]})
        elif rest == "/archive" and "archive" in stand.files:
            self.bytes(stand.files["archive"], "application/zstd")
        elif rest.removeprefix("/artifacts/") in stand.files:
            self.bytes(stand.files[rest.removeprefix("/artifacts/")], "application/octet-stream")
        elif rest == "/steps":
            step = {
                "number": 1,
                "tool": "Bash",
                "arguments": {"command": "make test"},
                "output": "ok",
                "output_bytes": 2,
            }
            self.json(200, {"steps": [] if int(query["after"]) else [step | {"started_ms": 1, "ended_ms": 1201}]})
        else:
            self.refuse(404, "not_found", f"there is no {rest}")

    def _events(self, query: dict[str, str]) -> None:
        stand = self.stand
        if "text/event-stream" not in self.headers.get("Accept", ""):
            return self.json(200, {"events": [each for each in stand.events if each["seq"] > int(query["after"])]})
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

"""A small server that plays poold on a unix socket, by the interface document, for the tests of its client."""

import base64
import contextlib
import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

NOW_MS = 1_790_000_000_000
RULES = {"timeout_sec": 3600, "on_timeout": "destroy", "idle_sec": 300, "paused_sec": None, "auto_resume": True}
SHARE = {
    "image": "python",
    "vcpus": 1,
    "memory_mb": 512,
    "disk_mb": 4096,
    "warm": 2,
    "wanted": 2,
    "floor": 2,
    "ceiling": 8,
}


def sandbox_id(text: str) -> str:
    return "sb-" + text.ljust(16, "a")


def sandbox(name: str, state: str = "running", **fields: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    return {
        "id": sandbox_id(name),
        "state": state,
        "owner": "local",
        "image": "python",
        "vcpus": 1,
        "memory_mb": 512,
        "disk_mb": 4096,
        "metadata": {},
        "created_ms": now_ms - 180_000,
        "started_ms": now_ms - 179_000,
        "paused_ms": None,
        "ended_ms": None,
        "expires_ms": now_ms + 3_000_000,
        "rules": RULES,
        "next": {"action": "pause", "at_ms": now_ms + 125_000, "why": "idle"},
        "reason": None,
        **fields,
    }


def status() -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "engine": "qemu",
        "accel": "tcg",
        "serving": True,
        "draining": False,
        "started_ms": time.time_ns() // 1_000_000 - 7_200_000,
        "slots": {"all": 64, "free": 61},
        "memory": {"budget_mb": 19_660, "left_mb": 17_612},
        "sandboxes": {"running": 1, "paused": 1, "stopped": 0},
        "pool": [SHARE],
        "pressure": None,
        "ledger": {"path": "/var/lib/warren/ledger.db", "bytes": 123_456, "wal_bytes": 4096},
        "images_dir": "/var/lib/warren/images",
        "store": {"place": "s3://bucket/prefix", "cluster": "cl-00000000000000000000000000000000"},
        "recovery": {"at_ms": time.time_ns() // 1_000_000 - 7_200_000, "adopted": ["a", "b"], "lost": [], "undone": []},
    }


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    accept: str


@dataclass
class Stream:
    """An answer in server-sent events: (id, kind, data); a text is a comment. `is_cut` ends it without an end."""

    events: list[Any]
    is_cut: bool = False


@dataclass
class Poold:
    """The host that is played. Tests change it, and look at what was asked."""

    sandboxes: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    exec_events: Stream = field(default_factory=lambda: Stream([]))
    answers: dict[tuple[str, str], Any] = field(default_factory=dict)  # in place of what would be answered
    cpu_s: float = 0.0
    rules: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in (sandbox("one", metadata={"job": "7"}), sandbox("onetwo"), sandbox("paused", "paused", next=None)):
            self.sandboxes[row["id"]] = row
        self.events = [
            {"id": n, "stream": sandbox_id("one"), "seq": n, "at_ms": NOW_MS + n, "kind": "state", "data": {"n": n}}
            for n in range(1, 2501)
        ]
        self.audit = [
            {
                "seq": n,
                "at_ms": NOW_MS + n,
                "owner": "local" if n % 2 else "anna",
                "sandbox": sandbox_id("one"),
                "request": "r",
                "action": "exec",
                "detail": {"cmd": f"row {n}", "reason": None},
                "exit_code": 0,
                "duration_ms": 12,
                "bytes": 2048,
            }
            for n in range(1, 301)
        ]

    def answer(self, asked: Asked) -> Any:
        self.asked.append(asked)
        if (asked.method, asked.path) in self.answers:
            answer = self.answers[asked.method, asked.path]
            if isinstance(answer, Refusal):
                raise answer
            return answer(asked) if callable(answer) else answer
        for method, pattern, act in ROUTES:
            match = re.fullmatch(pattern, asked.path)
            if match and method == asked.method:
                return act(self, asked, *match.groups())
        raise Refusal(404, "no_such_route", "Not Found")

    def one(self, name: str) -> dict[str, Any]:
        if name not in self.sandboxes:
            raise Refusal(404, "not_found", f"no sandbox {name!r}")
        return self.sandboxes[name]

    def change(self, name: str, **fields: Any) -> dict[str, Any]:
        self.one(name).update(fields)
        return self.one(name)

    def listed(self, asked: Asked) -> dict[str, Any]:
        states = asked.query["state"].split(",") if "state" in asked.query else None
        rows = [row for row in self.sandboxes.values() if _has_state(row, states)]
        before = asked.query.get("before")
        start = [_cursor(row) for row in rows].index(before) + 1 if before else 0
        limit = min(int(asked.query.get("limit", "100")), 2)  # pages are short here, so that there are several
        page = rows[start : start + limit]
        return {"sandboxes": page, "next": _cursor(page[-1]) if start + limit < len(rows) else None}

    def create(self, asked: Asked) -> Any:
        row = sandbox("new", image=asked.body.get("image", "python"))
        self.sandboxes[row["id"]] = row
        return 201, row

    def pause(self, name: str) -> dict[str, Any]:
        if self.one(name)["state"] == "paused":
            raise Refusal(409, "wrong_state", "cannot pause a sandbox that is paused")
        return self.change(name, state="paused")

    def page(self, rows: list[dict[str, Any]], number: str, asked: Asked) -> list[dict[str, Any]]:
        after, limit = int(asked.query.get("after", "0")), int(asked.query.get("limit", "100"))
        return [row for row in rows if row[number] > after][:limit]

    def events_of(self, asked: Asked, name: str | None) -> Any:
        number = "id" if name is None else "seq"
        rows = [row for row in self.events if name is None or row["stream"] == name]
        if asked.accept != "text/event-stream":
            return {"events": self.page(rows, number, asked)}
        after = int(asked.query.get("after", rows[-1][number] if rows else 0))
        rows = [row for row in rows if row[number] > after]
        new = {"id": 9001, "stream": name or "host", "seq": 9001, "at_ms": NOW_MS, "kind": "fresh", "data": {"new": 1}}
        return Stream(["hello", *((row[number], row["kind"], row) for row in [*rows, new])])

    def audited(self, asked: Asked) -> dict[str, Any]:
        rows = [
            row
            for row in self.audit
            if all(row[name] == asked.query[name] for name in ("owner", "sandbox", "action") if name in asked.query)
        ]
        return {"rows": self.page(rows, "seq", asked), "next": None}

    def top(self) -> dict[str, Any]:
        self.cpu_s += 0.5
        machine = {
            "sandbox": sandbox_id("one"),
            "machine": "vm-1",
            "owner": "local",
            "image": "python",
            "vcpus": 1,
            "memory_mb": 512,
            "cpu_s": self.cpu_s,
            "memory_used_mb": 200,
            "pids": 3,
            "started_ms": NOW_MS,
            "next": None,
        }
        idle = {**machine, "sandbox": None, "machine": "vm-2", "owner": None, "cpu_s": 1.0}
        return {"at_ms": NOW_MS + int(self.cpu_s * 2000), "machines": [idle, machine]}

    def put_rules(self, asked: Asked) -> dict[str, Any]:
        self.rules = asked.body
        return self.rules

    def drain(self, asked: Asked) -> Stream:
        if asked.body["mode"] == "move":
            return Stream([("", kind, told) for kind, told in MOVED])
        progress = {"left": 1, "done": 1, "sandbox": sandbox_id("one")}
        counts = {"paused": 2, "destroyed": 0, "failed": 0}
        if asked.body["mode"] == "destroy":
            counts = {"paused": 0, "destroyed": 2, "failed": 0}
        return Stream([("", "progress", progress), ("", "progress", {**progress, "left": 0}), ("", "drained", counts)])


MOVED: list[tuple[str, dict[str, Any]]] = [
    ("progress", {"sandbox": None, "step": "begun", "drain": "dr-1", "why": "the operator asked for it"}),
    ("progress", {"sandbox": None, "step": "emptying", "sandboxes": 2, "running": 1}),
    ("progress", {"sandbox": sandbox_id("one"), "step": "pausing"}),
    ("progress", {"sandbox": sandbox_id("one"), "step": "hibernated", "bytes": 12_300_000}),
    ("progress", {"sandbox": None, "step": "handing_over", "host": "host-b"}),
    ("progress", {"sandbox": None, "step": "carried_on", "host": "host-b"}),
    ("progress", {"sandbox": sandbox_id("one"), "step": "resumed", "host": "host-b"}),
    (
        "drained",
        {
            "to": "host-b",
            "moved": {sandbox_id("one"): "host-b"},
            "asleep": {},
            "failed": {},
            "unknown": [],
            "undone": None,
        },
    ),
]
NOTHING_SWEPT: dict[str, Any] = {"dry_run": False, "swept": [], "bytes": 0, "spared": [], "unsure": []}


def _cursor(row: dict[str, Any]) -> str:
    return f"{row['created_ms']}.{row['id']}"


def _has_state(row: dict[str, Any], states: list[str] | None) -> bool:
    return row["state"] in states if states is not None else row["state"] != "stopped"


ONE = r"/v1/sandboxes/([^/]+)"
Act = Callable[..., Any]
ROUTES: list[tuple[str, str, Act]] = [
    ("GET", "/healthz", lambda p, a: {"ok": True, "pool": [SHARE]}),
    ("GET", "/readyz", lambda p, a: {"ready": True}),
    ("GET", "/v1/sandboxes", lambda p, a: p.listed(a)),
    ("POST", "/v1/sandboxes", lambda p, a: p.create(a)),
    ("GET", ONE, lambda p, a, name: p.one(name)),
    ("DELETE", ONE, lambda p, a, name: p.change(name, state="stopped")),
    ("POST", f"{ONE}/pause", lambda p, a, name: p.pause(name)),
    ("POST", f"{ONE}/resume", lambda p, a, name: p.change(name, state="running")),
    ("POST", f"{ONE}/timeout", lambda p, a, name: p.one(name)),
    ("GET", f"{ONE}/logs", lambda p, a, name: f"first\nlast of {a.query['lines']}\n"),
    ("GET", f"{ONE}/events", lambda p, a, name: p.events_of(a, p.one(name)["id"])),
    ("POST", f"{ONE}/exec", lambda p, a, name: p.exec_events if p.one(name) else None),
    ("GET", "/admin/status", lambda p, a: status()),
    ("GET", "/admin/top", lambda p, a: p.top()),
    ("PUT", "/admin/pool", lambda p, a: {"pool": [{**SHARE, **a.body}]}),
    ("POST", "/admin/pool/refill", lambda p, a: {"pool": [{**SHARE, "warm": 0}]}),
    ("GET", "/admin/images", lambda p, a: {"images": [{"name": "minimal", "key": "k" * 64, "in_use": True}]}),
    ("DELETE", "/admin/images/([^/]+)", lambda p, a, name: {"name": name}),
    ("GET", "/admin/events", lambda p, a: p.events_of(a, None)),
    ("GET", "/admin/audit", lambda p, a: p.audited(a)),
    ("GET", "/admin/audit/verify", lambda p, a: {"ok": True, "rows": 300, "first": 1, "last": 300, "broken_at": None}),
    ("POST", "/admin/ledger/backup", lambda p, a: {"path": a.body["path"], "bytes": 1_234_567}),
    ("GET", "/admin/ledger/check", lambda p, a: {"ok": True, "problems": [], "version": 7, "bytes": 123_456}),
    ("POST", "/admin/drain", lambda p, a: p.drain(a)),
    ("POST", "/admin/undrain", lambda p, a: {"draining": False}),
    (
        "POST",
        "/admin/store/sweep",
        lambda p, a: {"dry_run": False, "swept": [], "bytes": 0, "spared": [], "unsure": []},
    ),
    ("GET", "/admin/owners/([^/]+)/rules", lambda p, a, owner: p.rules),
    ("PUT", "/admin/owners/([^/]+)/rules", lambda p, a, owner: p.put_rules(a)),
]


def output(kind: str, data: bytes) -> tuple[str, str, dict[str, str]]:
    return "", kind, {"data": base64.b64encode(data).decode()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    poold: Poold

    def log_message(self, *_: Any) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def _serve(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        body = self.rfile.read(length)
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked = Asked(
            self.command,
            unquote(parts.path),
            query,
            json.loads(body) if body else None,
            self.headers.get("accept", ""),
        )
        try:
            answer = self.poold.answer(asked)
        except Refusal as refusal:
            error = {"error": {"code": refusal.code, "message": refusal.message}}
            return self._whole(refusal.status, json.dumps(error).encode(), "application/json")
        if isinstance(answer, Stream):
            return self._stream(answer)
        if isinstance(answer, str):
            return self._whole(200, answer.encode(), "text/plain")
        code, value = answer if isinstance(answer, tuple) else (200, answer)
        return self._whole(code, json.dumps(value).encode(), "application/json")

    def __getattr__(self, name: str) -> Any:
        """`do_GET` and the others, which are all the same."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _whole(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, stream: Stream) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for event in stream.events:
                if callable(event):
                    event()
                else:
                    self._chunk(_sse(event))
            if not stream.is_cut:
                self._chunk(b"")
        self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _sse(event: Any) -> bytes:
    if isinstance(event, str):
        return f": {event}\n\n".encode()
    number, kind, data = event
    return (
        f"id: {number}\n" if number != "" else ""
    ).encode() + f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16


@contextlib.contextmanager
def serve(path: Path, poold: Poold) -> Iterator[None]:
    """Play `poold` on `path` during the block."""
    handler = type("Handler", (_Handler,), {"poold": poold})
    with _Server(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

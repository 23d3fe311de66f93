"""A model that follows a script, for agents that must not know the difference, and the server that it is behind.

Each request for an answer takes the next turn of the script; after the last one it says `AFTER_THE_END`. Requests and
the usage that was told for them are kept, so that a test can compare what an agent reports with what it really used.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

BODY_LIMIT = 64 << 20
HOLD_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model calls. Arguments that are a text are of a tool that takes no JSON (`apply_patch`)."""

    tool: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Usage:
    """What one turn costs. `input_tokens` has neither of the two cached ones in it."""

    input_tokens: int = 100
    output_tokens: int = 10
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: thoughts, a text, tool calls. With `status` it is a refusal; with `hold` it waits for that."""

    text: str = ""
    calls: Sequence[Call] = ()
    thought: str = ""
    usage: Usage = field(default_factory=Usage)
    status: int = 200
    hold: threading.Event | None = None


AFTER_THE_END = Turn("The script is over.")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came. `turn` is the number of the turn that answered it, from 0; None for anything else."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    turn: int | None


class ScriptedModel:
    """A model behind plain HTTP during the block, on any address; port 0 is a free one. Safe to look at meanwhile."""

    #: The path, without its query, at which an answer is asked for.
    answers_at: str = ""

    def __init__(self, script: Sequence[Turn], address: str = "127.0.0.1", port: int = 0) -> None:
        self._script = list(script)
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.usages: list[Usage] = []
        self._server = ThreadingHTTPServer((address, port), _handler_of(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def url(self, host: str = "127.0.0.1") -> str:
        """Where agents are told to go, by the name or address that they reach this server at."""
        return f"http://{host}:{self.port}"

    @property
    def used(self) -> Usage:
        """The sum of what was told for all turns so far."""
        total = Usage(0, 0)
        for usage in list(self.usages):
            total = total.plus(usage)
        return total

    @property
    def turns_asked(self) -> list[Asked]:
        return [asked for asked in list(self.asked) if asked.turn is not None]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for turn in self._script:
            if turn.hold is not None:
                turn.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> tuple[int, Turn] | None:
        """Write the request down, and find the turn that answers it, if it asks for one."""
        with self._lock:
            asks = method == "POST" and path.split("?", maxsplit=1)[0].endswith(self.answers_at)
            number = len([known for known in self.asked if known.turn is not None]) if asks else None
            self.asked.append(Asked(method, path, headers, body, number))
            if number is None:
                return None
            return number, self._script[number] if number < len(self._script) else AFTER_THE_END

    def told(self, usage: Usage) -> None:
        with self._lock:
            self.usages.append(usage)

    def stream(self, turn: Turn, number: int, asked: Mapping[str, Any]) -> bytes:
        """The whole answer as server-sent events, in the words of the provider."""
        raise NotImplementedError

    def other(self, method: str, path: str) -> tuple[int, Any]:
        """What is answered to requests that ask for no turn."""
        return 404, {"error": {"type": "not_found_error", "message": f"the script has no {method} {path}"}}


def sse(kind: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _handler_of(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        answered_by = model

    return Handler


class _Handler(BaseHTTPRequestHandler):
    answered_by: ScriptedModel
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: tests look at `asked`."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        model = self.answered_by
        body = self._body()
        found = model.take(self.command, self.path, dict(self.headers), body)
        self.close_connection = True
        try:
            if found is None:
                self._send_json(*model.other(self.command, self.path))
            else:
                self._send_turn(*found, body if isinstance(body, dict) else {})
        except (BrokenPipeError, ConnectionResetError):
            pass  # the agent left

    def _body(self) -> Any:
        size = min(int(self.headers.get("content-length") or 0), BODY_LIMIT)
        raw = self.rfile.read(size)
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            return raw

    def _send_turn(self, number: int, turn: Turn, asked: Mapping[str, Any]) -> None:
        if turn.hold is not None:
            turn.hold.wait(HOLD_LIMIT_S)
        if turn.status != 200:
            error = {"type": "invalid_request_error", "message": turn.text or "refused by the script"}
            self._send_json(turn.status, {"type": "error", "error": error})
            return
        answer = self.answered_by.stream(turn, number, asked)
        self.answered_by.told(turn.usage)
        self._send(200, "text/event-stream", answer)

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

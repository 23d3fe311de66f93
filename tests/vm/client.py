"""A caller of poold, as a gateway calls it: HTTP and WebSockets, with no knowledge of its insides.

Safe to use from many threads.
"""

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.bench.host import Host, UnixConnection

T = TypeVar("T")

LIMIT_S = 60.0  # of patience with any one answer: machines are emulated, on a host that does other things too
PIECE_BYTES = 1 << 16
Body = bytes | Iterable[bytes]


def until(is_so: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    """Wait for a state, with a limit; gives what `is_so` said in the end."""
    give_up = time.monotonic() + limit_s
    while not (so := is_so()):
        assert time.monotonic() < give_up, f"it did not come about within {limit_s:g} s"
        time.sleep(0.02)
    return so


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and code of an error."""
        return self.status, self.json["error"]["code"]


class Api:
    """One poold: at its port, with a ticket for each request, or at the operator's entrance."""

    def __init__(self, host: Host, *, limit_s: float = LIMIT_S, as_operator: bool = False) -> None:
        self.host = host
        self._limit_s = limit_s
        self._as_operator = as_operator

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: Body | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read piece by piece. Whoever leaves the block early hangs up."""
        ticket: Mapping[str, str] = {}
        if self._as_operator:
            connection: http.client.HTTPConnection = UnixConnection(self.host.socket, self._limit_s)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.host.port, timeout=self._limit_s)
            ticket = self.host.gateway.headers(method, path)
        try:
            # Who is refused in the middle of a long body may find nobody to send the rest to, but the refusal is there.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, path, body, {**ticket, **(headers or {})})
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Body | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        with self.open(method, path, body, headers) as answer:
            content = answer.read()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)

    def post(self, path: str, **fields: Any) -> Reply:
        return self.call("POST", path, json.dumps(fields).encode())

    def create(self, **fields: Any) -> "Sandbox":
        reply = self.post("/v1/sandboxes", **fields)
        assert reply.status == 201, reply
        return Sandbox(self, reply.json["id"], reply.json)

    @contextlib.contextmanager
    def sandbox(self, **fields: Any) -> Iterator["Sandbox"]:
        """A sandbox during the block."""
        sandbox = self.create(**fields)
        try:
            yield sandbox
        finally:
            assert sandbox.destroy().status == 200

    def ids(self, **query: str) -> list[str]:
        """The sandboxes that poold lists; the running ones unless others are asked for."""
        reply = self.call("GET", f"/v1/sandboxes?{urlencode({'state': 'running', 'limit': '1000', **query})}")
        assert reply.status == 200, reply
        return [sandbox["id"] for sandbox in reply.json["sandboxes"]]

    def share(self, image: str = "minimal") -> dict[str, Any]:
        """What the pool has of machines of the image's usual shape."""
        pool = self.call("GET", "/healthz").json["pool"]
        share: dict[str, Any] = next(share for share in pool if share["image"] == image)
        return share


@dataclass(frozen=True)
class Sandbox:
    api: Api
    id: str
    created: Mapping[str, Any]  # as the creation was answered

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.id}"

    @property
    def view(self) -> dict[str, Any]:
        reply = self.api.call("GET", self.path)
        assert reply.status == 200, reply
        view: dict[str, Any] = reply.json
        return view

    def destroy(self) -> Reply:
        return self.api.call("DELETE", self.path)

    def pause(self) -> dict[str, Any]:
        """The sandbox, paused."""
        return self._changed("pause", "paused")

    def resume(self) -> dict[str, Any]:
        """The sandbox, running again."""
        return self._changed("resume", "running")

    def _changed(self, change: str, state: str) -> dict[str, Any]:
        reply = self.api.post(f"{self.path}/{change}")
        assert reply.status == 200, reply
        view: dict[str, Any] = reply.json
        assert view["state"] == state
        return view

    def events(self) -> list[dict[str, Any]]:
        """Its timeline."""
        reply = self.api.call("GET", f"{self.path}/events?limit=1000")
        assert reply.status == 200, reply
        events: list[dict[str, Any]] = reply.json["events"]
        return events

    def execute(self, cmd: str | list[str], **fields: Any) -> Reply:
        return self.api.post(f"{self.path}/exec", cmd=cmd, **fields)

    def run(self, cmd: str | list[str], **fields: Any) -> dict[str, Any]:
        """What a command that could be started came to."""
        reply = self.execute(cmd, **fields)
        assert reply.status == 200, reply
        done: dict[str, Any] = reply.json
        return done

    def sh(self, cmd: str, **fields: Any) -> str:
        """What a command that succeeds says."""
        done = self.run(cmd, **fields)
        assert done["exit_code"] == 0, done
        said: str = done["stdout"].strip()
        return said

    def python(self, program: str, **fields: Any) -> Any:
        """What a Python program in the sandbox prints, which is JSON."""
        done = self.run(["python3", "-c", program], **fields)
        assert done["exit_code"] == 0, done
        return json.loads(done["stdout"])

    @contextlib.contextmanager
    def follow(self, cmd: str, encoding: str = "text", **fields: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        """A command's server-sent events, as they come."""
        body = json.dumps({"cmd": cmd, **fields}).encode()
        path = f"{self.path}/exec?encoding={encoding}"
        with self.api.open("POST", path, body, {"Accept": "text/event-stream"}) as answer:
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type", "").startswith("text/event-stream")
            yield server_sent(answer)

    def files(self, **query: str) -> str:
        return f"{self.path}/files?{urlencode(query)}"

    def put(self, path: str, data: Body, headers: Mapping[str, str] | None = None, **query: str) -> Reply:
        return self.api.call("PUT", self.files(path=path, **query), data, headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.api.call("GET", self.files(path=path), headers=headers)

    @contextlib.contextmanager
    def terminal(self, **query: str | int) -> Iterator["Terminal"]:
        host, target = self.api.host, f"{self.path}/terminal?{urlencode(query)}"
        with connect(
            f"ws://127.0.0.1:{host.port}{target}",
            proxy=None,
            open_timeout=LIMIT_S,
            close_timeout=LIMIT_S,
            additional_headers=host.gateway.headers("WS", target),
        ) as socket:
            yield Terminal(socket)


def server_sent(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Server-sent events: the kind and the data of each."""
    kind = ""
    for line in lines:
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name == b"event":
            kind = value.decode()
        elif name == b"data":
            yield kind, json.loads(value)


class Terminal:
    """One client of a terminal."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._screen = b""

    def told(self) -> dict[str, Any]:
        """The next message; what is printed before it is kept for `sees`."""
        while not isinstance(message := self._socket.recv(LIMIT_S), str):
            self._screen += message
        told: dict[str, Any] = json.loads(message)
        return told

    def sees(self, pattern: bytes) -> "re.Match[bytes]":
        """Read until the screen shows `pattern`; what it showed up to there is not looked at again."""
        while (found := re.search(pattern, self._screen)) is None:
            message = self._socket.recv(LIMIT_S)
            assert isinstance(message, bytes), f"{message!r} came before {pattern!r} in {self._screen!r}"
            self._screen += message
        self._screen = self._screen[found.end() :]
        return found

    def types(self, text: bytes) -> None:
        self._socket.send(text)

    def says(self, text: str) -> None:
        """Send a text frame."""
        self._socket.send(text)

    def closed(self) -> tuple[int, str]:
        """Read to the end: the code and the reason with which poold closed."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._socket.recv(LIMIT_S)
        assert self._socket.close_code is not None
        return self._socket.close_code, self._socket.close_reason or ""

    def vanish(self) -> None:
        """Cut the connection without a word."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

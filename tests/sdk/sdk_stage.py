"""A server on a real socket that behaves as badly as it is told: refuses, breaks off, hangs up, says too little."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

LIMIT_S = 20.0


@dataclass
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Act = bytes | Callable[[Asked], bytes]  # what is sent; then the connection is closed, if it is not held


@dataclass
class Stage:
    """One act for each request, in order; the last one is played again and again."""

    port: int
    acts: list[Act] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    is_holding: bool = False  # connections stay open for as long as the stage does

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def play(self, *acts: Act) -> None:
        self.acts = list(acts)

    def answer(self, asked: Asked) -> bytes:
        self.asked.append(asked)
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        return act(asked) if callable(act) else act


def reply(status: int, value: Any, **headers: str) -> bytes:
    body = json.dumps(value).encode()
    more = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
    # It is closed behind each answer: who is not told may be about to use it again.
    more += "Connection: close\r\n"
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def refusal(status: int, code: str, **headers: str) -> bytes:
    return reply(status, {"error": {"code": code, "message": "no"}}, **headers)


def stream(*pieces: bytes, is_whole: bool) -> bytes:
    """A chunked reply; one that is not whole lacks its end."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    head += b"Connection: close\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + chunks + (b"0\r\n\r\n" if is_whole else b"")


HANG_UP = b""


@contextlib.contextmanager
def open_stage() -> Iterator[Stage]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stage = Stage(listener.getsockname()[1])
        serving = threading.Thread(target=_serve, args=(listener, stage), daemon=True)
        serving.start()
        try:
            yield stage
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            serving.join(LIMIT_S)


def _serve(listener: socket.socket, stage: Stage) -> None:
    with contextlib.ExitStack() as held:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.ExitStack() as served, contextlib.suppress(OSError):
                served.enter_context(connection)
                connection.settimeout(LIMIT_S)
                connection.sendall(stage.answer(_read(connection)))
                if stage.is_holding:
                    held.push(served.pop_all())


def _read(connection: socket.socket) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("it left")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", ""):
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65536)
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    method, target, _ = first.split(" ")
    return Asked(method, target, headers, body)

"""poold over its unix socket: requests with JSON answers, and answers that are streams of events."""

import contextlib
import http.client
import io
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, urlencode

from poold.ctl.errors import CtlError, Refused, Unreachable
from poold.ctl.parser import MAX_PAGE

EVENT_STREAM = "text/event-stream"
RUN = Path("/run")
MAX_LINE_BYTES = 16 << 20  # of an event; poold's are far shorter

Query = Mapping[str, str | int | None]


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str
    kind: str
    data: Any


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Client:
    """One poold. What goes wrong with it is a `CtlError`."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s

    def get(self, path: str, **query: str | int | None) -> Any:
        return self.call("GET", path, query=query)

    def call(self, method: str, path: str, body: object = None, query: Query | None = None) -> Any:
        """The answer's JSON."""
        with self._open(method, path, body, query, accept="application/json") as answer, self.translated():
            return _json(answer.read())

    def send(self, method: str, path: str, file: IO[bytes]) -> Any:
        """The answer's JSON, to a request with all of `file` as its body."""
        with self._open(method, path, file, None, accept="application/json") as answer, self.translated():
            return _json(answer.read())

    def text(self, path: str, **query: str | int | None) -> str:
        with self._open("GET", path, None, query, accept="text/plain") as answer, self.translated():
            return answer.read().decode("utf-8", "replace")

    @contextlib.contextmanager
    def stream(
        self, method: str, path: str, body: object = None, query: Query | None = None
    ) -> Iterator[Iterator[Event]]:
        """The answer's events, as they come. Whoever leaves the block hangs up.

        The events also end if poold goes away: who needs a last one must look for it.
        """
        with self._open(method, path, body, query, accept=EVENT_STREAM) as answer:
            yield parse_events(self._lines(answer))

    def pages(self, path: str, rows: str, **query: str | int | None) -> Iterator[dict[str, Any]]:
        """Every row of a list that poold gives in pages, newest first."""
        before: str | None = None
        while True:
            page = self.get(path, limit=MAX_PAGE, **query, before=before)
            yield from page[rows]
            before = page.get("next")
            if before is None:
                return

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: object, query: Query | None, *, accept: str
    ) -> Iterator[http.client.HTTPResponse]:
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        target = quote(path) + (f"?{urlencode(asked)}" if asked else "")
        with contextlib.closing(_UnixConnection(self.path, self.timeout_s)) as connection:
            with self.translated():
                data = cast(IO[bytes], body) if isinstance(body, io.IOBase) else encoded(body)
                connection.request(method, target, data, {"Accept": accept})
                wire = connection.sock  # the connection forgets it once the answer is the last one
                answer = connection.getresponse()
                if answer.status >= 400:
                    raise _refusal(answer.status, answer.read())
                if accept == EVENT_STREAM:
                    wire.settimeout(None)  # silence is no fault: a command may say nothing for hours
            with answer:
                yield answer

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            with self.translated():
                line = answer.readline(MAX_LINE_BYTES)
            if not line:
                return
            yield line

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """What goes wrong with the socket, as an error that says what to do about it."""
        try:
            yield
        except FileNotFoundError:
            raise Unreachable(f"there is no socket {self.path}", hint=_elsewhere()) from None
        except PermissionError:
            raise Unreachable(f"no permission for {self.path}", hint="are you root? Try it with sudo") from None
        except ConnectionRefusedError:
            hint = "poold has ended and left its socket: start it again"
            raise Unreachable(f"nobody listens on {self.path}", hint=hint) from None
        except TimeoutError:
            hint = "it may be busy: wait longer with --timeout SECONDS, and see poold's log"
            message = f"poold did not answer within {self.timeout_s:g} s on {self.path}"
            raise Unreachable(message, hint=hint) from None
        except (OSError, http.client.HTTPException) as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Unreachable(f"the connection to {self.path} broke ({why})", hint="see poold's log") from error


def _elsewhere() -> str:
    """What helps who looked for a socket where there is none: those that there are."""
    found = ", ".join(map(str, sorted(RUN.glob("warren*/poold.sock"))))
    if found:
        return f"is poold running? These are there: {found}; name one with --socket PATH or POOLD_SOCKET"
    return "is poold running? If its socket is elsewhere: --socket PATH or POOLD_SOCKET"


def encoded(body: object) -> bytes | None:
    """A request's body. Not in ASCII: poold limits its bytes."""
    return None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogateescape")


def parse_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Server-sent events; one that was cut short is not given."""
    fields: dict[str, str] = {}
    for line in lines:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            if "data" in fields:
                yield Event(fields.get("id", ""), fields.get("event", "message"), _json(fields["data"]))
            fields = {}
        elif not text.startswith(":"):
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value


def _json(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise CtlError(f"poold's answer is not JSON: {body[:80]!r}", hint="is it poold that listens there?") from None


def _refusal(status: int, body: bytes) -> Refused:
    try:
        error = json.loads(body)["error"]
        return Refused(status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Refused(status, f"http_{status}", repr(body[:200]))

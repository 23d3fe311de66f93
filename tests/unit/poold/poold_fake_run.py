"""The run of an agent, in memory: a test tells its events, and sees what it was asked and told."""

import asyncio
import base64
import io
import tarfile
from typing import Any

import orjson

HASH = "a" * 40
PNG = b"\x89PNG a picture"
GIT = {
    "clone": {"head": HASH, "base": HASH, "branch": "a-branch"},
    "commit": {"commit": None, "head": HASH},
    "push": {"pushed": True, "from": None, "to": HASH},
    "log": {"commits": [{"hash": HASH, "subject": "a commit"}]},
    "diff": {"files": 1, "insertions": 2, "deletions": 3, "hash": "h"},
}


class FakeRun:
    """`tell` puts an event at the end of the run's stream. `said` is what came as input, `asked` all requests."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}
        self.said: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.events: list[bytes] = []
        self.is_over = False
        self.more = asyncio.Event()

    def tell(self, kind: str, /, **data: object) -> None:
        self.tell_raw(b"id: %d\nevent: %b\ndata: %b\n\n" % (len(self.events) + 1, kind.encode(), orjson.dumps(data)))

    def tell_raw(self, block: bytes) -> None:
        self.events.append(block)
        self.more.set()

    def end(self, outcome: str = "success", **data: object) -> None:
        if not self.is_over:
            self.is_over = True
            self.tell("agent.ended", run=1, outcome=outcome, result="done", **data)

    def answer(self, path: list[str], request: dict[str, Any]) -> dict[str, Any] | None:
        """What a route says; None if there is none."""
        self.asked.append(("/".join(path), request))
        match path:
            case ["run", *rest]:
                return self._run(rest, request)
            case ["git", what]:
                return GIT.get(what, {})
            case ["browser", action]:
                return {"action": action, "screenshot": base64.b64encode(PNG).decode()}
        return None

    def _run(self, path: list[str], request: dict[str, Any]) -> dict[str, Any]:
        if path == ["input"]:
            self.said.append(request)
        elif path == ["stop"]:
            self.end("stopped")
        elif request:
            self.request = self.request or request
        state = "none" if not self.request else "ended" if self.is_over else "running"
        return {"task": self.request.get("task"), "run": 1, "state": state}


def archive() -> bytes:
    """A workspace with one file in it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("./a.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"a"))
    return data.getvalue()

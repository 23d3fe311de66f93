"""A gateway that has workspaces in memory: its routes as documented, on a real socket, for one sandbox that saves."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from typing import Any

from contract.workspaces import Change, Saved, Summary, Template, Version
from tests.sdk.sdk_http import Replying, serving
from tests.sdk.sdk_replies import ID, ROW

AT_MS = 1_700_000_000_000
Files = dict[str, bytes]
TEMPLATES = (
    Template("node", 120, 2, AT_MS, is_shipped=True),
    Template("shop", 4_000_000, 31, AT_MS, is_shipped=False),
)


@dataclass
class Shelf:
    """All versions of all workspaces, the files of the sandbox, and everything that was asked."""

    url: str = ""
    saved: dict[str, list[tuple[Version, Files]]] = field(default_factory=dict)
    archives: dict[tuple[str, int], bytes] = field(default_factory=dict)
    files: Files = field(default_factory=dict)  # in the sandbox
    held: dict[str, Any] | None = None  # its workspace
    state: str = "running"
    is_store_away: bool = False
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    enough: threading.Event | None = None  # archives come slowly until then
    page: int = 2  # rows on one, whatever is asked for

    def add(self, name: str, files: Files, **more: Any) -> Version:
        versions = self.saved.setdefault(name, [])
        number = versions[-1][0].version + 1 if versions else 1
        facts = {"parent": number - 1 or None, "sandbox": ID, "task": None, "restored_from": None, "template": None}
        size = sum(map(len, files.values()))
        version = Version(number, created_ms=AT_MS + number, size_bytes=size, files=len(files), **{**facts, **more})
        versions.append((version, dict(files)))
        return version

    def save(self) -> Saved:
        """As a host does when it is asked to, and before a sandbox ends."""
        assert self.held is not None
        name = self.held["name"]
        last = self.saved.get(name, [])
        is_new = not last or last[-1][1] != self.files
        version = self.add(name, self.files) if is_new else last[-1][0]
        self.held = {**self.held, "saved_version": version.version}
        return Saved(self.held, version.version, is_new)

    def row(self) -> dict[str, Any]:
        return {**ROW, "state": self.state, "workspace": self.held}


@contextlib.contextmanager
def open_shelf() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(_Handler):
        pass

    Handler.shelf = shelf
    with serving(Handler) as shelf.url:
        yield shelf


class _Handler(Replying):
    shelf: Shelf

    def answer(self, path: str, query: dict[str, str], body: Any) -> None:
        self.shelf.asked.append((self.command, path, body or query))
        parts = path.strip("/").split("/")
        match parts:
            case ["v1", "sandboxes", *rest]:
                self._sandbox(rest, query, body)
            case ["v1", "templates"]:
                self.json(200, {"templates": [asdict(template) for template in TEMPLATES]})
            case ["v1", "workspaces"]:
                self._list(query)
            case ["v1", "workspaces", name, *rest] if name in self.shelf.saved:
                self._workspace(name, rest, query, body)
            case _:
                self.refuse(404, "not_found", f"no workspace {parts[-1]!r}")

    def _sandbox(self, rest: list[str], query: dict[str, str], body: Any) -> None:
        shelf = self.shelf
        if self.command == "POST" and not rest:
            name = body.get("workspace")
            last = shelf.saved.get(name, [])
            shelf.files = dict(last[-1][1]) if last else {}
            template = None if last else body.get("template")
            version = last[-1][0].version if last else None
            shelf.held = {"name": name, "from_version": version, "saved_version": None, "template": template}
            return self.json(201, shelf.row())
        if self.command == "GET" or shelf.held is None:
            return self.json(200, shelf.row())
        if shelf.is_store_away and not query.get("discard"):
            return self.refuse(503, "workspace_unsaved", "workspace 'w' could not be saved")
        saved = None if query.get("discard") else shelf.save()
        if self.command == "DELETE":
            shelf.state = "stopped"
            return self.json(200, shelf.row())
        return self.json(200, None if saved is None else asdict(saved))

    def _list(self, query: dict[str, str]) -> None:
        names = sorted(name for name in self.shelf.saved if name > query.get("after", ""))
        page = names[: self.shelf.page]
        rows = [asdict(_summary(name, self.shelf.saved[name][-1][0])) for name in page]
        self.json(200, {"workspaces": rows, "next": page[-1] if len(names) > len(page) else None})

    def _workspace(self, name: str, rest: list[str], query: dict[str, str], body: Any) -> None:
        versions = self.shelf.saved[name]
        match self.command, rest:
            case "GET", []:
                self.json(200, asdict(_summary(name, versions[-1][0])))
            case "DELETE", []:
                self.json(200, {"name": name, "versions": len(self.shelf.saved.pop(name))})
            case "GET", ["versions"]:
                before = int(query.get("before", 10**12))
                older = [version for version, _ in reversed(versions) if version.version < before]
                page = older[: self.shelf.page]
                following = page[-1].version if len(older) > len(page) else None
                self.json(200, {"versions": [asdict(version) for version in page], "next": following})
            case "GET", ["versions", number, "archive"] if (name, int(number)) in self.shelf.archives:
                self._archive(self.shelf.archives[name, int(number)])
            case "POST", ["restore"] if body["version"] <= len(versions):
                files = versions[body["version"] - 1][1]
                self.json(201, asdict(self.shelf.add(name, files, sandbox=None, restored_from=body["version"])))
            case "GET", ["diff"]:
                self._diff(name, query)
            case _:
                self.refuse(404, "not_found", f"workspace {name!r} has no version {body or rest}")

    def _archive(self, data: bytes) -> None:
        """Whole, or piece after piece until somebody has seen enough."""
        if self.shelf.enough is None:
            return self.bytes(data, "application/zstd")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not self.shelf.enough.wait(0.1):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _diff(self, name: str, query: dict[str, str]) -> None:
        versions = self.shelf.saved[name]
        to = int(query.get("to", len(versions)))
        begin = int(query["from"]) if "from" in query else versions[to - 1][0].parent
        before = {} if begin is None else versions[begin - 1][1]
        after = versions[to - 1][1]
        path = query.get("path")
        changes = [
            Change(each, _kind(each in before, each in after), _size(before, each), _size(after, each))
            for each in sorted(before.keys() | after.keys())
            if before.get(each) != after.get(each) and path in (None, each)
        ]
        text = _text(before.get(path, b""), after.get(path, b""), path) if path is not None and changes else None
        rows = [asdict(change) for change in changes]
        self.json(200, {"from": begin, "to": to, "changes": rows, "truncated": False, "text": text})


def _summary(name: str, version: Version) -> Summary:
    return Summary(name, version.version, version.size_bytes, version.files, version.created_ms)


def _kind(was: bool, is_now: bool) -> str:
    return "changed" if was and is_now else "removed" if was else "added"


def _size(files: Files, path: str) -> int | None:
    return len(files[path]) if path in files else None


def _text(before: bytes, after: bytes, path: str) -> str | None:
    if b"\0" in before + after:
        return None
    old, new = (data.decode().splitlines(keepends=True) for data in (before, after))
    return "".join(unified_diff(old, new, f"a/{path}", f"b/{path}"))

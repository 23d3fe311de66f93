"""Every request about workspaces and templates, and how its reply is read. As `calls`: no I/O."""

import re

from warren.calls import SAVE_S, Call, Reply, given, nothing, object_of, one, query_of, rows_of
from warren.errors import NotFound
from warren.models import Page, read
from warren.workspace_models import Saved, Template, Version, WorkspaceDiff, WorkspaceInfo, read_diff, read_saved

WORKSPACES = "/v1/workspaces"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PAGE = 100  # every row is an object of the store, which takes a while


def get(name: str) -> Call[WorkspaceInfo]:
    return Call("GET", _one(name), lambda reply: read(WorkspaceInfo, reply.json()), is_repeatable=True)


def listed(after: str | None) -> Call[Page[WorkspaceInfo]]:
    query = query_of({"after": after, "limit": PAGE})
    return Call("GET", WORKSPACES, _workspaces, query=query, is_repeatable=True)


def versions(name: str, before: str | None) -> Call[Page[Version]]:
    query = query_of({"before": before, "limit": PAGE})
    return Call("GET", f"{_one(name)}/versions", _versions, query=query, is_repeatable=True)


def diff(name: str, before: int | None, after: int | None, path: str | None) -> Call[WorkspaceDiff]:
    query = query_of({"from": before, "to": after, "path": path})
    return Call("GET", f"{_one(name)}/diff", lambda reply: read_diff(reply.json()), query=query, is_repeatable=True)


def archive(name: str, version: int) -> Call[None]:
    headers = {"Accept": "*/*"}
    return Call("GET", f"{_one(name)}/versions/{version:d}/archive", nothing, headers=headers, is_repeatable=True)


def restore(name: str, version: int) -> Call[Version]:
    """Never sent twice: each time there would be one more version."""
    body = given({"version": version})
    return Call("POST", f"{_one(name)}/restore", lambda reply: read(Version, reply.json()), body=body)


def delete(name: str) -> Call[int]:
    """How many versions it had. Never sent twice: a sandbox may have saved it anew in between."""
    return Call("DELETE", _one(name), _count)


def save(sandbox: str) -> Call[Saved]:
    """If nothing has changed, a second time saves nothing."""
    path = f"{one(sandbox)}/workspace/save"
    return Call("POST", path, lambda reply: read_saved(reply.json()), body={}, is_repeatable=True, answer_s=SAVE_S)


def templates() -> Call[list[Template]]:
    return Call("GET", "/v1/templates", _templates, is_repeatable=True)


def _one(name: str) -> str:
    """What can be no name is none here either: `..` would be another address."""
    if not NAME.fullmatch(name):
        raise NotFound(f"no workspace {name!r}", code="not_found")
    return f"{WORKSPACES}/{name}"


def _workspaces(reply: Reply) -> Page[WorkspaceInfo]:
    rows = [read(WorkspaceInfo, row) for row in rows_of(reply, "workspaces")]
    return Page(rows, object_of(reply).get("next"))


def _versions(reply: Reply) -> Page[Version]:
    rows = [read(Version, row) for row in rows_of(reply, "versions")]
    before = object_of(reply).get("next")
    return Page(rows, None if before is None else str(before))


def _templates(reply: Reply) -> list[Template]:
    return [read(Template, row) for row in rows_of(reply, "templates")]


def _count(reply: Reply) -> int:
    return int(object_of(reply).get("versions", 0))

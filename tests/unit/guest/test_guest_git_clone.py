"""Clones from a real server, by a real guest."""

import asyncio
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gitserver import Asked, GitServer, git, serve
from tests.unit.guest.client import Client, end, launch
from tests.unit.guest.gits import AUTHOR, CREDENTIALS, SECRET, clone, everything_readable, left_of, programs_of


async def test_a_clone_has_the_branch_its_history_and_an_origin(guest: Client, folder: Path, server: GitServer) -> None:
    server.make("p", {"a.txt": "1\n"})
    head = server.commit("p", {"b/c.txt": "2\n"})
    reply = await clone(guest, folder, server.url("p"))
    assert reply.json == {"head": head, "branch": "main", "base": head}
    repo = folder / "repo"
    assert (repo / "b" / "c.txt").read_text() == "2\n"
    assert git("rev-list", "--count", "HEAD", cwd=repo) == "2"
    assert git("remote", "get-url", "origin", cwd=repo) == server.url("p")
    assert git("status", "--porcelain", "--branch", cwd=repo) == "## main...origin/main"
    assert git("config", "user.email", cwd=repo) == AUTHOR["email"]
    assert list((repo / ".git").glob("hooks/*")) == []


async def test_the_work_is_on_a_branch_of_its_own(guest: Client, folder: Path, server: GitServer) -> None:
    head = server.make("p", {"a": "1"})
    reply = await clone(guest, folder, server.url("p"), branch="warren/tk-1")
    assert reply.json == {"head": head, "branch": "warren/tk-1", "base": head}
    assert git("symbolic-ref", "HEAD", cwd=folder / "repo") == "refs/heads/warren/tk-1"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", ["branch", "tag", "commit", "full name"])
async def test_a_ref_is_a_branch_a_tag_or_a_commit(
    guest: Client, folder: Path, server: GitServer, kind: str, depth: int
) -> None:
    first = server.make("p", {"a": "1"})
    second = server.commit("p", {"a": "2"}, branch="dev", start=first)
    server.commit("p", {"a": "3"})
    git("tag", "-a", "-m", "x", "v1", second, cwd=server.path("p"))
    git("update-ref", "refs/pull/7/head", second, cwd=server.path("p"))
    ref = {"branch": "dev", "tag": "v1", "commit": second, "full name": "refs/pull/7/head"}[kind]
    reply = await clone(guest, folder, server.url("p"), ref=ref, depth=depth)
    assert reply.json == {"head": second, "branch": "dev" if kind == "branch" else None, "base": second}
    assert (folder / "repo" / "a").read_text() == "2"
    assert git("rev-parse", "HEAD", cwd=folder / "repo") == second
    assert git("rev-list", "--count", "HEAD", cwd=folder / "repo") == ("1" if depth else "2")


async def test_an_empty_repository_can_be_worked_in(guest: Client, folder: Path, server: GitServer) -> None:
    server.make("p")
    reply = await clone(guest, folder, server.url("p"), branch="work")
    assert reply.json == {"head": None, "branch": "work", "base": None}
    assert git("symbolic-ref", "HEAD", cwd=folder / "repo") == "refs/heads/work"


async def test_an_empty_folder_is_filled_and_another_one_is_left_alone(
    guest: Client, folder: Path, server: GitServer
) -> None:
    server.make("p", {"a": "1"})
    (folder / "repo").mkdir()
    assert (await clone(guest, folder, server.url("p"))).status == 200
    (folder / "repo" / "mine").write_text("mine")
    reply = await clone(guest, folder, server.url("p"))
    assert (reply.status, reply.code) == (409, "already_exists")
    assert (folder / "repo" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("depth", "ref"), [(0, "nope"), (1, "nope"), (0, "1" * 40), (1, "1" * 40), (0, "refs/pull/9/head")]
)
async def test_a_missing_ref_is_told_and_nothing_remains(
    guest: Client, folder: Path, server: GitServer, ref: str, depth: int
) -> None:
    server.make("p", {"a": "1"})
    reply = await clone(guest, folder, server.url("p"), ref=ref, depth=depth)
    assert (reply.status, reply.code, reply.json["error"]["reason"]) == (502, "clone_failed", "ref_not_found"), reply
    assert list(folder.iterdir()) == []


async def test_a_missing_repository_is_told(guest: Client, folder: Path, server: GitServer) -> None:
    reply = await clone(guest, folder, server.url("nothing"))
    assert reply.json["error"]["reason"] == "not_found"


async def test_a_server_that_does_not_answer_is_told(guest: Client, folder: Path, unused_port: int) -> None:
    reply = await clone(guest, folder, f"http://127.0.0.1:{unused_port}/p.git")
    assert reply.json["error"]["reason"] == "unreachable"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_wrong_credentials_are_told_without_being_repeated(
    guest: Client, folder: Path, private: GitServer
) -> None:
    private.make("p", {"a": "1"})
    wrong = {"username": "bot", "password": "not-the-pa55-w0rd"}
    for credentials, hidden in ((wrong, "not-the-pa55-w0rd"), (None, "\0")):
        reply = await clone(guest, folder, private.url("p"), credentials=credentials)
        assert reply.json["error"]["reason"] == "authentication", reply
        assert hidden not in reply.body.decode()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://bot:pa55@example.org/p.git"),
        ("url", "ssh://example.org/p.git"),
        ("url", "file:///etc"),
        ("url", "/etc"),
        ("url", "ext::sh -c id"),
        ("url", "--upload-pack=id"),
        ("url", "http://exa mple.org/"),
        ("ref", "--upload-pack=id"),
        ("ref", "a..b"),
        ("branch", "-x"),
        ("branch", "refs/heads/x"),
        ("depth", -1),
        ("path", "/a/../b"),
        ("operation", "a b"),
        ("author", {"name": "x\n", "email": "<y>"}),
    ],
)
async def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(
    guest: Client, folder: Path, field: str, value: Any
) -> None:
    body = {"operation": "x", "url": "http://example.org/p.git", "path": str(folder / "repo"), field: value}
    reply = await guest.call("POST", "/git/clone", body)
    assert reply.status == 400
    assert reply.json["error"]["field"].split(".")[0] == field
    assert "pa55" not in reply.body.decode()


async def test_credentials_are_nowhere(guest: Client, folder: Path, private: GitServer) -> None:
    head = private.make("p", {"a": "1"})
    seen = []

    def look(asked: Asked) -> None:
        if asked.user is not None:
            seen.append(everything_readable())

    private.on_request = look
    reply = await clone(guest, folder, private.url("p"), credentials=CREDENTIALS)
    assert reply.json["head"] == head
    assert len(seen) >= 2
    assert all("git-remote-http" in each for each in seen), "the clone was seen at work"
    assert not any(SECRET in each for each in seen)
    for path in folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in (await guest.call("GET", "/logs")).body.decode()
    assert "credential" not in (folder / "repo" / ".git" / "config").read_text()


async def test_credentials_go_to_their_own_server_only(
    guest: Client, folder: Path, private: GitServer, tmp_path: Path
) -> None:
    """A server that leads elsewhere must not make git tell the other one who we are."""
    (tmp_path / "other").mkdir()
    with serve(tmp_path / "other", users={"bot": SECRET}) as other:
        other.make("p", {"a": "1"})
        private.redirects["/p.git"] = other.url("p")
        reply = await clone(guest, folder, private.url("p"), credentials=CREDENTIALS)
        assert reply.json["error"]["reason"] == "authentication", reply
        assert {asked.user for asked in other.asked} == {None}
        private.redirects["/p.git"] = "file:///etc"
        reply = await clone(guest, folder, private.url("p"), credentials=CREDENTIALS)
        assert reply.code == "clone_failed"


async def test_the_same_operation_is_done_once(guest: Client, folder: Path, server: GitServer) -> None:
    server.make("p", {"a": "1"})
    going = threading.Event()
    server.on_request = lambda _asked: going.wait(20) and None
    first = asyncio.create_task(clone(guest, folder, server.url("p"), "once"))
    second = asyncio.create_task(clone(guest, folder, server.url("p"), "once"))
    await guest.until(lambda: _is(len(server.asked) == 1))
    going.set()
    replies = await asyncio.gather(first, second)
    replies.append(await clone(guest, folder, server.url("p"), "once"))
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert len({reply.body for reply in replies}) == 1
    assert sum(asked.path.endswith("/info/refs") for asked in server.asked) == 1
    other = await clone(guest, folder, server.url("p"), "once", branch="another")
    assert (other.status, other.code) == (409, "operation_taken")


async def _is(value: bool) -> bool:
    return value


async def test_a_failure_is_the_answer_too(guest: Client, folder: Path, server: GitServer) -> None:
    first = await clone(guest, folder, server.url("late"), "failing")
    server.make("late", {"a": "1"})
    again = await clone(guest, folder, server.url("late"), "failing")
    assert first.body == again.body
    assert (await clone(guest, folder, server.url("late"), "another-try")).status == 200


@pytest.mark.parametrize("stage", ["/info/refs", "/git-upload-pack"])
@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_a_clone_that_is_broken_off_leaves_nothing(
    fresh_guest: Client, tmp_path: Path, server: GitServer, stage: str, way: str
) -> None:
    server.make("p", {"a": "1"})
    folder = fresh_guest.workspace
    arrived, going = threading.Event(), threading.Event()

    def hold(asked: Asked) -> None:
        if asked.path.endswith(stage):
            arrived.set()
            going.wait(20)

    server.on_request = hold
    before = left_of(folder)
    limit = {"limit_ms": 1500} if way == "timeout" else {}
    asking = asyncio.create_task(clone(fresh_guest, folder, server.url("p"), "held", **limit))
    await fresh_guest.until(lambda: _is(arrived.is_set()))
    if way == "cancel":
        assert (await fresh_guest.call("POST", "/git/cancel", {"operation": "held"})).json == {"cancelled": True}
    reply = await asking
    assert (reply.code, reply.json["error"].get("reason")) == (
        ("cancelled", None) if way == "cancel" else ("clone_failed", "timeout")
    )
    assert left_of(folder) == before
    assert str(fresh_guest.workspace) not in everything_readable().replace(f"--workspace\0{folder}", "")
    going.set()
    server.on_request = lambda _asked: None
    again = "held" if way == "cancel" else "again"
    assert (await clone(fresh_guest, folder, server.url("p"), again)).status == 200


async def test_a_clone_that_is_broken_off_while_the_work_tree_is_made_leaves_nothing(
    fresh_guest: Client, server: GitServer
) -> None:
    server.make("p", {f"{n}/{m}": f"{n} {m}\n" for n in range(20) for m in range(50)})
    folder = fresh_guest.workspace
    before = left_of(folder)
    for number in range(4):
        asking = asyncio.create_task(clone(fresh_guest, folder, server.url("p"), f"held-{number}"))
        await fresh_guest.until(lambda: _is((folder / "repo").exists()))
        await asyncio.sleep(0.02 * number)
        await fresh_guest.call("POST", "/git/cancel", {"operation": f"held-{number}"})
        reply = await asking
        if reply.status == 200:  # it was quicker than we were
            break
        assert reply.code == "cancelled"
        assert left_of(folder) == before
    else:
        assert (await clone(fresh_guest, folder, server.url("p"), "at last")).code == "bad_field"
        assert (await clone(fresh_guest, folder, server.url("p"), "at-last")).status == 200


async def test_a_clone_that_is_cancelled_at_any_moment_leaves_nothing(fresh_guest: Client, server: GitServer) -> None:
    server.make("p", {"a": "1"})
    folder = fresh_guest.workspace
    before = left_of(folder)
    began = time.monotonic()
    assert (await clone(fresh_guest, folder / "first", server.url("p"))).status == 200
    took = time.monotonic() - began
    shutil.rmtree(folder / "first")
    moments = 16
    for number in range(moments):
        name = f"cancelled-{number}"
        asking = asyncio.create_task(clone(fresh_guest, folder / "x", server.url("p"), name))
        await asyncio.sleep(took * number / moments)
        await fresh_guest.call("POST", "/git/cancel", {"operation": name})
        if (await asking).status == 200:  # it was quicker than we were
            shutil.rmtree(folder / "x")
        assert left_of(folder) == before, number
        assert programs_of(fresh_guest) == [], number
    assert (await clone(fresh_guest, folder, server.url("p"))).status == 200


async def test_a_host_that_was_away_finds_its_clone_under_way(fresh_guest: Client, server: GitServer) -> None:
    server.make("p", {"a": "1"})
    arrived, going = threading.Event(), threading.Event()

    def hold(_asked: Asked) -> None:
        arrived.set()
        going.wait(20)

    server.on_request = hold
    body = {"operation": "once", "url": server.url("p"), "path": str(fresh_guest.workspace / "repo"), "author": AUTHOR}
    conversation = await fresh_guest.connect()
    await conversation.send("POST", "/git/clone", json.dumps(body).encode())
    await fresh_guest.until(lambda: _is(arrived.is_set()))
    await conversation.close()
    again = asyncio.create_task(clone(fresh_guest, fresh_guest.workspace, server.url("p"), "once"))
    going.set()
    assert (await again).status == 200
    assert sum(asked.path.endswith("/info/refs") for asked in server.asked) == 1


async def test_folders_that_were_made_for_a_clone_that_failed_are_gone(fresh_guest: Client, server: GitServer) -> None:
    """It fails in the work tree, after everything was fetched: a name that no file system holds."""
    server.make("p", {"a": "1"})
    work = fresh_guest.workspace.parent / "made"
    git("clone", "--quiet", server.path("p"), work)
    blob = git("hash-object", "-w", "a", cwd=work)
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},{'n' * 300}", cwd=work)
    git("commit", "--quiet", "--message", "A long name", cwd=work)
    git("fetch", "--quiet", work, "+HEAD:refs/heads/main", cwd=server.path("p"))
    folder = fresh_guest.workspace
    before = left_of(folder)
    reply = await clone(fresh_guest, folder / "x" / "y", server.url("p"))
    assert reply.code == "clone_failed"
    assert left_of(folder) == before
    (folder / "there" / "repo").mkdir(parents=True)
    assert (await clone(fresh_guest, folder / "there", server.url("p"))).code == "clone_failed"
    assert list((folder / "there").iterdir()) == [folder / "there" / "repo"]
    assert list((folder / "there" / "repo").iterdir()) == []


async def test_a_link_out_of_the_workspace_is_only_a_link(guest: Client, folder: Path, server: GitServer) -> None:
    server.make("p")
    work = folder / "made"
    git("clone", "--quiet", server.path("p"), work)
    (work / "out").symlink_to("/etc")
    (work / "in").mkdir()
    (work / "in" / "passwd").write_text("not yours")
    server.publish("p", work, "main")
    assert (await clone(guest, folder, server.url("p"))).status == 200
    assert os.readlink(folder / "repo" / "out") == "/etc"


async def test_nothing_that_a_repository_says_runs(guest: Client, folder: Path, server: GitServer) -> None:
    mark = folder / "ran"
    submodule = f'[submodule "s"]\n\tpath = s\n\turl = {server.url("sub")}\n\tupdate = !touch {mark}\n'
    server.make("sub", {"x": "1"})
    server.make("p", {".gitattributes": "* filter=evil\n", "a": "1", ".gitmodules": submodule})
    assert (await clone(guest, folder, server.url("p"))).status == 200
    assert not mark.exists()
    assert not any("sub.git" in asked.path for asked in server.asked)


async def test_a_long_complaint_is_cut(guest: Client, folder: Path, server: GitServer) -> None:
    reply = await clone(guest, folder, server.url("x" * 1500))
    assert reply.code == "clone_failed"
    assert len(json.dumps(reply.json)) < 4000


async def test_the_rails_of_a_local_guest_are_beside_its_socket_and_go_with_it(
    tmp_path: Path, server: GitServer
) -> None:
    server.make("p", {"a": "1"})
    (tmp_path / "workspace").mkdir()
    process, path = launch(tmp_path)
    client = Client(path, process.pid, tmp_path / "workspace")
    assert (await clone(client, tmp_path / "workspace", server.url("p"), protected=["main"])).status == 200
    told = json.loads((tmp_path / "guest.sock.git" / "policy.json").read_text())
    assert (told["url"], told["protected"]) == (server.url("p"), ["main"])
    await client.close()
    end(process)
    assert not (tmp_path / "guest.sock.git").exists()

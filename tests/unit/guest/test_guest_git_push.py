"""Pushes to a real server, and the rails that they run on."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gitserver import Asked, GitServer, git
from tests.unit.guest.client import Client, Reply
from tests.unit.guest.gits import (
    AUTHOR,
    CREDENTIALS,
    SECRET,
    clone,
    everything_readable,
    left_of,
    programs_of,
    some_operation,
)
from tests.unit.guest.test_guest_git_work import traps


async def push(guest: Client, path: Path, url: str, branch: str = "work", **more: Any) -> Reply:
    body = {"operation": some_operation(), "path": str(path), "url": url, "branch": branch, "author": AUTHOR, **more}
    return await guest.call("POST", "/git/push", body)


async def change(guest: Client, path: Path, name: str = "a", text: str = "") -> str:
    (path / name).write_text(text or os.urandom(8).hex())
    body = {"operation": some_operation(), "path": str(path), "message": "A change", "author": AUTHOR}
    return str((await guest.call("POST", "/git/commit", body)).json["commit"])


@pytest.fixture
async def repo(guest: Client, folder: Path, private: GitServer) -> Path:
    """A clone of `p` on the branch `work`."""
    private.make("p", {"a": "1\n"})
    private.commit("p", {"a": "2\n"})
    reply = await clone(guest, folder, private.url("p"), branch="work", credentials=CREDENTIALS)
    assert reply.status == 200, reply
    return folder / "repo"


async def test_a_push_brings_the_branch_and_nothing_else(guest: Client, repo: Path, private: GitServer) -> None:
    git("tag", "mine", cwd=repo)
    git("branch", "other", cwd=repo)
    first = await change(guest, repo)
    url = private.url("p")
    reply = await push(guest, repo, url, credentials=CREDENTIALS)
    assert reply.json == {"pushed": True, "from": None, "to": first}
    second = await change(guest, repo)
    reply = await push(guest, repo, url, credentials=CREDENTIALS)
    assert reply.json == {"pushed": True, "from": first, "to": second}
    arrived = [(each.ref, each.new) for each in private.pushes()]
    assert arrived == [
        ("refs/heads/work", first),
        ("refs/heads/work", second),
    ]
    assert private.head("p", "refs/heads/other") is None
    again = await push(guest, repo, url, credentials=CREDENTIALS)
    assert again.json == {"pushed": True, "from": second, "to": second}
    assert len(private.pushes()) == 2


async def test_a_push_of_a_commit_pushes_that_one(guest: Client, repo: Path, private: GitServer) -> None:
    first = await change(guest, repo)
    await change(guest, repo)
    reply = await push(guest, repo, private.url("p"), commit=first, credentials=CREDENTIALS)
    assert reply.json["to"] == first == private.head("p", "refs/heads/work")
    missing = await push(guest, repo, private.url("p"), commit="1" * 40, credentials=CREDENTIALS)
    assert (missing.code, missing.json["error"]["reason"]) == ("push_failed", "nothing")


async def test_work_on_another_branch_is_pushed_as_the_one_that_was_asked_for(
    guest: Client, repo: Path, private: GitServer
) -> None:
    git("checkout", "--quiet", "-b", "mine", cwd=repo)
    git("branch", "--quiet", "-D", "work", cwd=repo)
    commit = await change(guest, repo)
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.json["to"] == commit == private.head("p", "refs/heads/work")


@pytest.mark.parametrize("pattern", ["main", "refs/heads/main", "ma*", "*"])
async def test_a_protected_branch_is_refused_before_anything_is_asked(
    guest: Client, repo: Path, private: GitServer, pattern: str
) -> None:
    await change(guest, repo)
    private.asked.clear()
    reply = await push(guest, repo, private.url("p"), "main", protected=["release/*", pattern], credentials=CREDENTIALS)
    assert (reply.status, reply.code, reply.json["error"]["rail"]) == (409, "push_refused", "protected")
    assert private.asked == []


async def test_rewritten_history_is_refused(guest: Client, repo: Path, private: GitServer) -> None:
    await change(guest, repo)
    await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=repo)
    await change(guest, repo)
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert (reply.code, reply.json["error"]["rail"]) == ("push_refused", "not_fast_forward")
    assert len(private.pushes()) == 1


async def test_what_somebody_else_pushed_is_not_overwritten(guest: Client, repo: Path, private: GitServer) -> None:
    await change(guest, repo)
    theirs = private.commit("p", {"b": "3"}, branch="work", start="main")
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.json["error"]["rail"] == "not_fast_forward"
    assert private.head("p", "refs/heads/work") == theirs


async def test_what_somebody_else_pushes_meanwhile_is_not_overwritten(
    guest: Client, repo: Path, private: GitServer
) -> None:
    """Between our look at the server and our push."""
    await change(guest, repo)
    looks = []

    def interfere(asked: Asked) -> None:
        if asked.path.endswith("/git-receive-pack"):
            looks.append(private.commit("p", {"b": "3"}, branch="work", start="main"))

    private.on_request = interfere
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.status in (409, 502), reply
    assert private.head("p", "refs/heads/work") == looks[0]


@pytest.mark.parametrize("role", ["author", "committer"])
async def test_a_commit_of_somebody_else_is_refused(guest: Client, repo: Path, private: GitServer, role: str) -> None:
    (repo / "a").write_text("forged")
    git("add", "a", cwd=repo)
    git("commit", "--quiet", "-m", "Forged", cwd=repo)  # by Ada, who is not the policy's
    if role == "committer":
        git("commit", "--quiet", "--amend", "--no-edit", f"--author={AUTHOR['name']} <{AUTHOR['email']}>", cwd=repo)
    await change(guest, repo)
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert (reply.code, reply.json["error"]["rail"]) == ("push_refused", "author")
    assert f"the {role} Ada" in reply.json["error"]["message"]
    assert private.pushes() == []
    assert (await push(guest, repo, private.url("p"), author=None, credentials=CREDENTIALS)).status == 200


def forged(repo: Path, *header: str) -> str:
    """A commit with this header, which no git would make, as what the branch is now."""
    tree = git("rev-parse", "HEAD^{tree}", cwd=repo)
    content = "\n".join([f"tree {tree}", *header, "", "forged", ""])
    words = ("hash-object", "-w", "-t", "commit", "--literally", "--stdin")
    commit = git(*words, cwd=repo, stdin=content.encode())
    git("update-ref", "HEAD", commit, cwd=repo)
    return commit


async def test_a_commit_with_two_authors_is_nobodys(guest: Client, repo: Path, private: GitServer) -> None:
    head = git("rev-parse", "HEAD", cwd=repo)
    mine = f"{AUTHOR['name']} <{AUTHOR['email']}> 1700000000 +0000"
    other = "Somebody <else@example.com> 1700000000 +0000"
    forged(repo, f"parent {head}", f"author {other}", f"author {mine}", f"committer {mine}")
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert (reply.code, reply.json["error"]["rail"]) == ("push_refused", "author")
    assert private.pushes() == []
    git("update-ref", "HEAD", head, cwd=repo)
    forged(repo, f"parent {head}", f"author {mine}", f"committer {mine}")
    assert (await push(guest, repo, private.url("p"), credentials=CREDENTIALS)).status == 200


async def test_a_commit_of_somebody_else_is_not_hidden_behind_the_end_of_a_shallow_history(
    guest: Client, repo: Path, private: GitServer
) -> None:
    (repo / "a").write_text("of somebody else")
    who = ("-c", "user.name=Somebody", "-c", "user.email=else@example.com")
    git(*who, "commit", "--quiet", "--all", "--message=Theirs", "--author=Somebody <else@example.com>", cwd=repo)
    (repo / ".git" / "shallow").write_text(await change(guest, repo) + "\n")
    assert (await push(guest, repo, private.url("p"), credentials=CREDENTIALS)).status != 200
    assert private.pushes() == []


async def test_commits_that_the_server_had_are_nobodys_fault(guest: Client, repo: Path, private: GitServer) -> None:
    """Also if its branch has moved on since: what was there when it was cloned is known."""
    commit = await change(guest, repo)
    private.commit("p", {"c": "moved on"})
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.json["to"] == commit


async def test_a_shallow_clone_can_be_pushed_from(guest: Client, folder: Path, private: GitServer) -> None:
    private.make("p", {"a": "1\n"})
    for number in range(3):
        private.commit("p", {"a": f"{number}\n"})
    await clone(guest, folder, private.url("p"), branch="work", depth=1, credentials=CREDENTIALS)
    commit = await change(guest, folder / "repo")
    reply = await push(guest, folder / "repo", private.url("p"), credentials=CREDENTIALS)
    assert reply.json == {"pushed": True, "from": None, "to": commit}
    assert git("rev-list", "--count", "work", cwd=private.path("p")) == "5"


async def test_no_trap_in_a_workspace_is_sprung_by_a_push(guest: Client, repo: Path, private: GitServer) -> None:
    await change(guest, repo)
    mark = repo.parent / "sprung"
    traps(repo, mark)
    git("config", f"url.{private.url('evil')}.insteadOf", private.url("p"), cwd=repo)
    git("config", "http.proxy", "http://127.0.0.1:1", cwd=repo)
    git("config", "remote.origin.receivepack", f"touch {mark};", cwd=repo)
    git("config", "uploadpack.packObjectsHook", repo.parent / "trap", cwd=repo)
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.status == 200, reply
    assert not mark.exists(), mark.read_text()
    assert private.head("p", "refs/heads/work") == reply.json["to"]


async def test_credentials_are_nowhere_while_it_is_pushed(guest: Client, repo: Path, private: GitServer) -> None:
    await change(guest, repo)
    seen = []
    private.on_request = lambda asked: seen.append(everything_readable()) if asked.user else None
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert reply.status == 200
    assert any("git-remote-http" in each and "push" in each for each in seen)
    assert not any(SECRET in each for each in seen)
    assert SECRET not in (await guest.call("GET", "/logs")).body.decode()


async def test_wrong_credentials_and_a_server_that_declines_are_told(
    guest: Client, repo: Path, private: GitServer
) -> None:
    await change(guest, repo)
    wrong = {"username": "bot", "password": "not-the-pa55-w0rd"}
    reply = await push(guest, repo, private.url("p"), credentials=wrong)
    assert (reply.status, reply.code, reply.json["error"]["reason"]) == (502, "push_failed", "authentication")
    assert "not-the-pa55" not in reply.body.decode()
    hook = private.path("p") / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\necho 'not on a Friday {SECRET}'; exit 1\n")
    hook.chmod(0o755)
    reply = await push(guest, repo, private.url("p"), credentials=CREDENTIALS)
    assert (reply.code, reply.json["error"]["rail"]) == ("push_refused", "server")
    assert "not on a Friday ***" in reply.json["error"]["message"]


async def test_a_push_is_made_once(guest: Client, repo: Path, private: GitServer) -> None:
    await change(guest, repo)
    name = some_operation()
    calls = (push(guest, repo, private.url("p"), operation=name, credentials=CREDENTIALS) for _ in range(3))
    replies = await asyncio.gather(*calls)
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert len(private.pushes()) == 1


async def test_nothing_to_push_is_told(guest: Client, folder: Path, private: GitServer) -> None:
    private.make("p")
    git("init", "--quiet", folder / "empty")
    reply = await push(guest, folder / "empty", private.url("p"), credentials=CREDENTIALS)
    assert (reply.code, reply.json["error"]["reason"]) == ("push_failed", "nothing")
    assert (await push(guest, Path("/"), private.url("p"), credentials=CREDENTIALS)).code == "not_a_repository"


@pytest.mark.parametrize("stage", ["/info/refs", "/git-receive-pack"])
async def test_a_push_that_is_broken_off_leaves_nothing(fresh_guest: Client, private: GitServer, stage: str) -> None:
    private.make("p", {"a": "1\n"})
    folder = fresh_guest.workspace
    await clone(fresh_guest, folder, private.url("p"), branch="work", credentials=CREDENTIALS)
    await change(fresh_guest, folder / "repo")
    arrived, going = threading.Event(), threading.Event()

    def hold(asked: Asked) -> None:
        if asked.path.endswith(stage):
            arrived.set()
            going.wait(20)

    private.on_request = hold
    before = left_of(folder)
    asking = asyncio.create_task(
        push(fresh_guest, folder / "repo", private.url("p"), operation="held", credentials=CREDENTIALS)
    )

    async def has_arrived() -> bool:
        return arrived.is_set()

    await fresh_guest.until(has_arrived)
    assert (await fresh_guest.call("POST", "/git/cancel", {"operation": "held"})).json == {"cancelled": True}
    assert (await asking).code == "cancelled"
    assert left_of(folder) == before
    assert "git-remote-http" not in everything_readable()
    going.set()


async def test_a_push_that_is_cancelled_at_any_moment_leaves_nothing(fresh_guest: Client, private: GitServer) -> None:
    private.make("p", {"a": "1\n"})
    folder, repo = fresh_guest.workspace, fresh_guest.workspace / "repo"
    await clone(fresh_guest, folder, private.url("p"), branch="work", credentials=CREDENTIALS)
    await change(fresh_guest, repo)
    before = left_of(folder)
    began = time.monotonic()
    assert (await push(fresh_guest, repo, private.url("p"), credentials=CREDENTIALS)).status == 200
    took = time.monotonic() - began
    moments = 12
    for number in range(moments):
        await change(fresh_guest, repo)
        name = f"cancelled-{number}"
        given = {"operation": name, "credentials": CREDENTIALS}
        asking = asyncio.create_task(push(fresh_guest, repo, private.url("p"), **given))
        await asyncio.sleep(took * number / moments)
        await fresh_guest.call("POST", "/git/cancel", {"operation": name})
        assert (await asking).status in (200, 409)
        assert left_of(folder) == before, number
        assert programs_of(fresh_guest) == [], number
    commit = await change(fresh_guest, repo)
    assert (await push(fresh_guest, repo, private.url("p"), credentials=CREDENTIALS)).json["to"] == commit

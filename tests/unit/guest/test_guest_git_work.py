"""Commits, differences and logs of a workspace, however its repository is set up."""

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.gitserver import git
from tests.unit.guest.client import Client, Reply
from tests.unit.guest.gits import AUTHOR, some_operation


async def commit(guest: Client, path: Path, message: str = "A change", **more: Any) -> Reply:
    body = {"operation": some_operation(), "path": str(path), "message": message, "author": AUTHOR, **more}
    return await guest.call("POST", "/git/commit", body)


async def look(guest: Client, what: str, path: Path, **more: Any) -> Reply:
    query = "&".join(f"{name}={quote(str(value))}" for name, value in {"path": path, **more}.items())
    return await guest.call("GET", f"/git/{what}?{query}")


@pytest.fixture
def repo(folder: Path) -> Path:
    """A repository with one commit."""
    path = folder / "repo"
    git("init", "--quiet", "--initial-branch=main", path)
    (path / "known").write_text("one\n")
    (path / ".gitignore").write_text("ignored\n")
    git("add", "--all", cwd=path)
    git("commit", "--quiet", "-m", "First", cwd=path)
    return path


async def test_a_commit_has_everything_and_the_author(guest: Client, repo: Path) -> None:
    (repo / "new").write_text("new\n")
    (repo / "known").unlink()
    (repo / "ignored").write_text("x")
    message = "Subject\n\n# not a comment\n'quoted' \"twice\" $(id)\n"
    reply = await commit(guest, repo, message)
    assert reply.status == 200, reply
    assert reply.json["commit"] == reply.json["head"] == git("rev-parse", "HEAD", cwd=repo)
    assert git("log", "-1", "--format=%an <%ae> %cn <%ce>", cwd=repo) == " ".join(
        [f"{AUTHOR['name']} <{AUTHOR['email']}>"] * 2
    )
    assert git("log", "-1", "--format=%B", cwd=repo) == message.strip()
    assert git("ls-tree", "--name-only", "HEAD", cwd=repo).split() == [".gitignore", "new"]


async def test_nothing_to_commit_is_no_commit(guest: Client, repo: Path) -> None:
    head = git("rev-parse", "HEAD", cwd=repo)
    assert (await commit(guest, repo)).json == {"commit": None, "head": head}


async def test_without_all_only_what_is_staged_is_committed(guest: Client, repo: Path) -> None:
    (repo / "staged").write_text("1")
    (repo / "other").write_text("1")
    git("add", "staged", cwd=repo)
    await commit(guest, repo, all=False)
    assert git("status", "--porcelain", cwd=repo) == "?? other"


async def test_a_folder_without_a_repository_becomes_one(guest: Client, folder: Path) -> None:
    (folder / "a").write_text("1")
    reply = await commit(guest, folder)
    assert reply.json["commit"] == git("rev-parse", "refs/heads/main", cwd=folder)


async def test_a_folder_inside_another_repository_becomes_its_own(guest: Client, repo: Path) -> None:
    inner = repo / "inner"
    inner.mkdir()
    (inner / "a").write_text("1")
    await commit(guest, inner)
    assert git("rev-list", "--count", "HEAD", cwd=inner) == "1"


async def test_a_lock_that_a_killed_git_left_is_no_obstacle(guest: Client, repo: Path) -> None:
    (repo / "a").write_text("1")
    (repo / ".git" / "index.lock").touch()
    reply = await commit(guest, repo)
    assert reply.status == 200, reply
    assert reply.json["commit"] is not None


async def test_a_commit_is_made_once(guest: Client, repo: Path) -> None:
    (repo / "a").write_text("1")
    replies = await asyncio.gather(*(commit(guest, repo, operation=f"once-{repo.parent.name}") for _ in range(3)))
    (repo / "b").write_text("1")
    replies.append(await commit(guest, repo, operation=f"once-{repo.parent.name}"))
    assert len({reply.body for reply in replies}) == 1
    assert git("rev-list", "--count", "HEAD", cwd=repo) == "2"


@pytest.mark.parametrize("message", ["", "  \n", None, 5])
async def test_a_commit_has_a_message(guest: Client, repo: Path, message: Any) -> None:
    reply = await commit(guest, repo, message)
    assert (reply.status, reply.json["error"]["field"]) == (400, "message")


def traps(repo: Path, mark: Path) -> None:
    """Set up everything in a repository that could make git run a program."""
    trap = repo.parent / "trap"
    trap.write_text(f"#!/bin/sh\necho $0 >> {mark}\ncat\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "diff.external", "core.pager", "gpg.program", "core.editor"):
        git("config", key, trap, cwd=repo)
    for key in ("commit.gpgSign", "log.showSignature"):
        git("config", key, "true", cwd=repo)
    git("config", "diff.evil.textconv", trap, cwd=repo)
    git("config", "diff.evil.command", trap, cwd=repo)
    git("config", "credential.helper", f"!{trap}", cwd=repo)
    git("config", "core.hooksPath", repo.parent / "hooks", cwd=repo)
    (repo.parent / "hooks").mkdir()
    for hook in ("pre-commit", "post-commit", "prepare-commit-msg", "commit-msg", "post-index-change", "pre-push"):
        (repo.parent / "hooks" / hook).symlink_to(trap)
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "attributes").write_text("* diff=evil\n")


async def test_no_trap_in_a_repository_is_sprung(guest: Client, repo: Path) -> None:
    mark = repo.parent / "sprung"
    traps(repo, mark)
    (repo / "known").write_text("two\n")
    (repo / "new").write_text("new\n")
    patch = await look(guest, "diff", repo)
    assert b"+two" in patch.body
    assert (await look(guest, "diff", repo, format="stat")).json["files"] == 2
    assert (await commit(guest, repo)).json["commit"] is not None
    assert len((await look(guest, "log", repo)).json["commits"]) == 2
    assert not mark.exists(), mark.read_text()


async def test_a_filter_of_a_repository_gets_no_more_rights(guest: Client, repo: Path) -> None:
    """What a filter makes of a file belongs to the commit, so filters do run: with the rights of who set them up."""
    mark = repo.parent / "rights"
    script = repo.parent / "filter"
    script.write_text(f"#!/bin/sh\ngrep NoNewPrivs /proc/self/status >> {mark}\nenv >> {mark}\ntr a-z A-Z\n")
    script.chmod(0o755)
    git("config", "filter.evil.clean", script, cwd=repo)
    (repo / ".gitattributes").write_text("*.up filter=evil\n")
    (repo / "a.up").write_text("loud\n")
    assert (await commit(guest, repo)).status == 200
    assert git("show", "HEAD:a.up", cwd=repo) == "LOUD"
    told = mark.read_text()
    assert "NoNewPrivs:\t1" in told
    assert "NoNewPrivs:\t0" not in told


async def test_a_difference_has_new_files_and_not_ignored_ones(guest: Client, repo: Path) -> None:
    base = git("rev-parse", "HEAD", cwd=repo)
    (repo / "known").write_text("two\n")
    git("commit", "--quiet", "-a", "-m", "Second", cwd=repo)
    (repo / "new file").write_text("new\n")
    (repo / "ignored").write_text("not me\n")
    before = (repo / ".git" / "index").read_bytes()
    patch = (await look(guest, "diff", repo, base=base)).body.decode()
    assert "-one\n+two\n" in patch
    assert "+++ b/new file" in patch
    assert "not me" not in patch
    assert (repo / ".git" / "index").read_bytes() == before
    assert "known" not in (await look(guest, "diff", repo)).body.decode()
    stat = (await look(guest, "diff", repo, base=base, format="stat")).json
    assert {name: stat[name] for name in ("files", "insertions", "deletions", "truncated")} == {
        "files": 2,
        "insertions": 2,
        "deletions": 1,
        "truncated": False,
    }


async def test_the_hash_of_a_difference_changes_with_it(guest: Client, repo: Path) -> None:
    async def hash_now() -> str:
        return str((await look(guest, "diff", repo, format="stat")).json["hash"])

    empty = await hash_now()
    (repo / "a").write_text("1")
    first = await hash_now()
    os.utime(repo / "a", (1, 1))
    assert await hash_now() == first
    (repo / "a").write_text("2")
    assert len({empty, first, await hash_now()}) == 3


async def test_a_patch_with_binary_files_can_be_applied(guest: Client, repo: Path) -> None:
    noise = bytes(range(256)) * 20
    (repo / "image.bin").write_bytes(noise)
    (repo / 'läng \t"name').write_bytes(b"\xff\xfe")
    patch = await look(guest, "diff", repo)
    assert patch.headers["content-type"] == "text/x-diff"
    other = repo.parent / "other"
    git("clone", "--quiet", repo, other)
    git("apply", cwd=other, stdin=patch.body)
    assert (other / "image.bin").read_bytes() == noise
    assert (other / 'läng \t"name').read_bytes() == b"\xff\xfe"


async def test_a_long_patch_is_cut_and_says_so(guest: Client, repo: Path) -> None:
    (repo / "long").write_text("line\n" * 100_000)
    reply = await look(guest, "diff", repo, limit=1000)
    assert len(reply.body) == 1000
    assert reply.headers["warren-truncated"] == "true"
    assert "warren-truncated" not in (await look(guest, "diff", repo)).headers
    assert (await look(guest, "diff", repo, limit=1000, format="stat")).json["truncated"] is True


async def test_a_repository_without_commits_has_a_difference_and_no_log(guest: Client, folder: Path) -> None:
    git("init", "--quiet", folder)
    (folder / "a").write_text("1\n")
    assert b"+1" in (await look(guest, "diff", folder)).body
    assert (await look(guest, "log", folder)).json == {"commits": []}


async def test_everything_is_different_from_nothing(guest: Client, repo: Path) -> None:
    nothing = git("hash-object", "-t", "tree", "/dev/null", cwd=repo)
    everything = git("ls-files", cwd=repo).split()
    assert (await look(guest, "diff", repo, base=nothing, format="stat")).json["files"] == len(everything) > 0
    assert (await look(guest, "log", repo, base=nothing)).json == (await look(guest, "log", repo)).json


async def test_a_log_tells_the_newest_first(guest: Client, repo: Path) -> None:
    base = git("rev-parse", "HEAD", cwd=repo)
    hashes = [base]
    for number in range(3):
        (repo / "known").write_text(str(number))
        hashes.insert(0, (await commit(guest, repo, f"Change {number}\n\nmore")).json["commit"])
    told = (await look(guest, "log", repo)).json["commits"]
    assert [each["hash"] for each in told] == hashes
    assert told[0]["subject"] == "Change 2"
    assert told[0]["author"] == AUTHOR
    assert told[-1]["at_ms"] == 1767323045000
    assert len((await look(guest, "log", repo, base=base)).json["commits"]) == 3
    assert len((await look(guest, "log", repo, limit=2)).json["commits"]) == 2


@pytest.mark.parametrize("what", ["diff", "log"])
async def test_what_is_no_repository_and_no_commit_is_told(guest: Client, folder: Path, repo: Path, what: str) -> None:
    (folder / "plain").mkdir()
    git("init", "--quiet", "--bare", folder / "x.git")
    assert (await look(guest, what, Path("/"))).code == "not_a_repository"
    for base in ("nope", "-p", "a b", "--output=x", "HEAD~99"):
        reply = await look(guest, what, repo, base=base)
        assert (reply.status, reply.json["error"]["field"]) == (400, "base"), base
    assert (await look(guest, what, repo / "nothing")).status == 400

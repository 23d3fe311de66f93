"""What is kept of a task's work: a last commit, its patch, its workspace as an archive."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from contract.tasks import Task
from poold.archives import archive as archives
from poold.errors import GuestError
from poold.ledger import artifacts
from poold.ledger.tasks import Row
from poold.link import FAR_AWAY
from poold.tasks.artifacts import Stored
from poold.tasks.life import Life, ask
from poold.tasks.progress import Progress
from poold.tasks.words import number, text_of

GIT_S = 300.0
COMMIT_S = 600.0  # of a workspace that may be large
ANSWER_S = 30.0  # beyond what the guest allows itself
ARCHIVE_S = 300.0  # until its first byte
PATCH = "final.patch"
ARCHIVE = "workspace.tar.zst"
MAX_PATCH_BYTES = 16 << 20
MAX_COMMITS = 100
MB = 1 << 20


def path_of(life: Life, task: Task) -> str:
    """Where the task's agent works."""
    return life.workspace if task.repo is None else life.cwd


async def at_most(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """What a guest tells, and no more of it than it was asked for: one that goes on is broken off."""
    told = 0
    async for chunk in chunks:
        told += len(chunk)
        if told > limit:
            raise GuestError(f"the guest tells more than the {limit} bytes that it was asked for")
        yield chunk


async def commit(life: Life, row: Row) -> dict[str, Any]:
    """What the agent left uncommitted is committed for it."""
    task = row.task
    request = {
        "operation": f"{life.id}:commit:end",
        "path": path_of(life, task),
        "message": "What was left uncommitted",
        "author": vars(life.tools.config.author),
        "all": True,
        "limit_ms": int(COMMIT_S * 1000),
    }
    async with life.inside(task.sandbox or "") as guest:
        answer = await ask(guest, "POST", "/git/commit", request, limit_s=COMMIT_S + ANSWER_S)
    told = {name: text_of(answer.get(name), 64) for name in ("commit", "head")}
    if told["commit"] is not None:
        await life.tell("git.committed", told)
    return told


async def work(life: Life, row: Row) -> dict[str, Any]:
    """The commits and the difference to where the task began, which becomes an artifact."""
    task, base = row.task, base_of(row)
    query = {"path": path_of(life, task), **({} if base is None else {"base": base})}
    async with life.inside(task.sandbox or "") as guest:
        log = await ask(guest, "GET", f"/git/log?{urlencode({**query, 'limit': MAX_COMMITS})}", limit_s=GIT_S)
        since = base or EMPTY_TREE
        seen = {**query, "base": since}
        stat = await ask(guest, "GET", f"/git/diff?{urlencode({**seen, 'format': 'stat'})}", limit_s=GIT_S)
        target = f"/git/diff?{urlencode({**seen, 'format': 'patch', 'limit': MAX_PATCH_BYTES})}"
        async with guest.exchange("GET", target, limit_s=GIT_S, refusals=FAR_AWAY) as answer:
            is_cut = answer.headers.get("warren-truncated") == "true"
            stored = await life.tools.artifacts.put(life.id, PATCH, answer.chunks(), limit_bytes=2 * MAX_PATCH_BYTES)
    diff: dict[str, Any] = {name: number(stat.get(name)) for name in ("files", "insertions", "deletions")} | {
        "bytes": stored.bytes
    }
    diff |= {"truncated": True} if is_cut else {}
    entry = artifacts.Entry(PATCH, "patch", stored.bytes, stored.sha256, life.tools.now_ms())
    await life.write(lambda db: artifacts.put(db, life.id, entry))
    await life.tell("file.diff", {**diff, "hash": text_of(stat.get("hash"), 128), "artifact": PATCH})
    head = (row.kept.get("commit") or {}).get("head")
    return {"commits": _commits(log), "base": base, "head": head, "diff": diff}


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # what everything in a new repository is different from


def base_of(row: Row) -> str | None:
    """The commit that the task began with; None in a repository that it made."""
    return (row.kept.get("cloned") or {}).get("base")


def has_work(row: Row) -> bool:
    """Whether there is something in its machine to be kept: an agent was let in, or it was restored."""
    return "cloned" in row.kept and (row.kept.get("continued") or {"is_restored": True}).get("is_restored", False)


def is_cut(row: Row) -> bool:
    """Whether the patch that was kept is only the beginning of it."""
    return bool(((row.kept.get("work") or {}).get("diff") or {}).get("truncated"))


def _commits(log: dict[str, Any]) -> list[dict[str, Any]]:
    commits = log.get("commits")
    found = [each for each in commits[:MAX_COMMITS] if isinstance(each, dict)] if isinstance(commits, list) else []
    return [{"hash": text_of(each.get("hash"), 64), "subject": text_of(each.get("subject"), 200)} for each in found]


async def archive(life: Life, row: Row) -> dict[str, Any]:
    """The whole workspace, as a file of the store."""
    limit = life.tools.config.archive_mb * MB
    # A guest breaks off at its limit without a word. We are to notice before, and to say why.
    target = f"/archive?{urlencode({'path': life.workspace, 'limit': limit + MB})}"
    path = life.tools.artifacts.path(life.id, ARCHIVE)
    async with (
        life.inside(row.task.sandbox or "") as guest,
        guest.exchange("GET", target, limit_s=ARCHIVE_S) as answer,
    ):
        kept = await archives.keep(answer.chunks(), path, limit_bytes=limit)
    await life.tools.artifacts.share(life.id, Stored(ARCHIVE, kept.bytes, kept.sha256))
    entry = artifacts.Entry(ARCHIVE, "archive", kept.bytes, kept.sha256, life.tools.now_ms())
    await life.write(lambda db: artifacts.put(db, life.id, entry))
    told = {"bytes": kept.bytes, "sha256": kept.sha256, "files": kept.files}
    await life.tell("task.archived", told)
    return told


def result_of(row: Row) -> dict[str, Any]:
    """What a task's caller gets, with what could not be kept."""
    kept = row.kept
    work = kept.get("work") or {}
    found = {name: work.get(name) for name in ("commits", "base", "head", "diff")}
    archive = kept.get("archive")
    problems = {name: told["problem"] for name, told in kept.items() if isinstance(told, dict) and "problem" in told}
    ended = Progress.decode(row.progress).ended
    return {
        "summary": None if ended is None else ended["result"],
        **found,
        "commits": found["commits"] or [],
        "archive": archive if archive and "problem" not in archive else None,
        "pushed": kept.get("pushed"),
        "problems": problems,
    }

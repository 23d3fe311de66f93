"""Looking at a workspace: what is different from a commit, and which commits there are. Nothing of it is changed.

Files that git does not know yet are part of a difference, ignored ones are not. For that they are entered into a copy
of the index, which is thrown away.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from warren_guest.accounts import Account
from warren_guest.children import Children, Done
from warren_guest.errors import RefusedError
from warren_guest.git.commands import by_user, script_by_user
from warren_guest.git.commits import git_failed, no_repository
from warren_guest.git.scratch import InThread, scratch

_NO_REPOSITORY, _NO_BASE = 66, 67
# What everything in a new repository is different from, by both of git's hashes.
EMPTY_TREES = (
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
)
# $1: a folder of our own, $2: the commit to compare with, $3: more options.
_DIFF = f"""
index=$("$GIT" rev-parse --git-path index) || exit {_NO_REPOSITORY}
cp -- "$index" "$1/index" 2>/dev/null
GIT_INDEX_FILE=$1/index
export GIT_INDEX_FILE
"$GIT" add --intent-to-add --ignore-errors -- . >/dev/null 2>&1
base=$2
empty=$("$GIT" hash-object -t tree /dev/null)
if [ -z "$base" ]; then
    base=$("$GIT" rev-parse --verify --quiet HEAD) || base=$empty
elif [ "$base" != "$empty" ]; then
    base=$("$GIT" rev-parse --verify --quiet --end-of-options "$base^{{commit}}") || exit {_NO_BASE}
fi
shift 2
exec "$GIT" diff --no-color --no-ext-diff --no-textconv --no-relative --src-prefix=a/ --dst-prefix=b/ --full-index \
    --binary --unified=3 --inter-hunk-context=0 --find-renames --ignore-submodules=dirty -O/dev/null "$@" "$base" --
"""
_COUNT = re.compile(rb"(\d{1,15}|-)\t(\d{1,15}|-)\t")
_FIELDS = 5
_SUBJECT_LIMIT = 500
_LOG_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Look:
    path: str
    base: str | None
    limit: int


class Looks:
    """Looks of one account."""

    def __init__(self, children: Children, user: Account, env: Mapping[str, str], in_thread: InThread) -> None:
        self._children = children
        self._user = user
        self._env = env
        self._in_thread = in_thread

    async def patch(self, asked: Look) -> Done:
        """The difference to `base` (or HEAD) as a patch that git applies, at most `limit` bytes of it."""
        return await self._diff(asked, "--patch")

    async def stat(self, asked: Look) -> dict[str, object]:
        """How much is different, with a hash that is the same for the same difference."""
        done = await self._diff(asked, "--numstat", "--patch")
        files = insertions = deletions = 0
        for line in done.output.split(b"\n"):
            counts = _COUNT.match(line)
            if counts is None:
                break  # after the numbers comes an empty line, then the patch
            files += 1
            insertions += int(counts[1]) if counts[1] != b"-" else 0
            deletions += int(counts[2]) if counts[2] != b"-" else 0
        told = {"files": files, "insertions": insertions, "deletions": deletions}
        return {**told, "hash": hashlib.sha256(done.output).hexdigest(), "truncated": done.is_cut}

    async def _diff(self, asked: Look, *options: str) -> Done:
        async with scratch(self._in_thread, None, self._user, 0o700) as folder:
            words = (folder, asked.base or "", *options)
            program = script_by_user(self._user, self._env, asked.path, _DIFF, *words)
            done = await self._children.run(program, limit=asked.limit)
        if done.code == _NO_REPOSITORY:
            raise no_repository(asked.path)
        if done.code == _NO_BASE:
            raise _no_base(asked)
        if done.code:
            raise git_failed(f"git diff failed in {asked.path}", done)
        return done

    async def log(self, asked: Look) -> dict[str, object]:
        """The newest commits first; only those after `base`, if it is given."""
        if (await self._git(asked, "rev-parse", "--git-dir")).code:
            raise no_repository(asked.path)
        if (await self._git(asked, "rev-parse", "--verify", "--quiet", "HEAD")).code:
            return {"commits": []}
        since = [f"^{await self._commit(asked)}"] if asked.base and asked.base not in EMPTY_TREES else []
        shape = "--format=%H%x00%an%x00%ae%x00%at%x00%s"
        options = (
            "log",
            "-z",
            "--no-color",
            "--no-show-signature",
            "--no-mailmap",
            shape,
            f"--max-count={asked.limit}",
        )
        done = await self._git(asked, *options, "HEAD", *since, "--", limit=_LOG_BYTES)
        if done.code:
            raise git_failed(f"git log failed in {asked.path}", done)
        return {"commits": commits_of(done.output)}

    async def _commit(self, asked: Look) -> str:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked.base}^{{commit}}")
        base = await self._git(asked, *words)
        if base.code:
            raise _no_base(asked)
        return base.text

    async def _git(self, asked: Look, *arguments: str, limit: int = 1 << 16) -> Done:
        return await self._children.run(by_user(self._user, self._env, asked.path, *arguments), limit=limit)


def _no_base(asked: Look) -> RefusedError:
    return RefusedError("bad_field", f"base: {asked.path} has no commit {asked.base}", field="base")


def commits_of(output: bytes) -> list[dict[str, object]]:
    """What `git log` told, five fields a commit. One that was cut off is left out."""
    fields = [field.decode("utf-8", "replace") for field in output.split(b"\0")]
    whole = len(fields) // _FIELDS
    commits: list[dict[str, object]] = []
    for name, author, email, at, subject in (fields[i * _FIELDS : (i + 1) * _FIELDS] for i in range(whole)):
        at_ms = int(at) * 1000 if at.isascii() and at.isdigit() and len(at) < 12 else 0
        who = {"name": author[:_SUBJECT_LIMIT], "email": email[:_SUBJECT_LIMIT]}
        commits.append({"hash": name, "subject": subject[:_SUBJECT_LIMIT], "author": who, "at_ms": at_ms})
    return commits

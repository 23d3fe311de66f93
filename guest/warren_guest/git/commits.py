"""Commits in a workspace, as `user`: hooks, signatures and editors of the repository have no part in them."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

from warren_guest.accounts import Account
from warren_guest.children import Children, Done
from warren_guest.errors import RefusedError
from warren_guest.git.asked import Author
from warren_guest.git.commands import by_user, script_by_user
from warren_guest.git.reasons import shown

# A git that was killed leaves its lock behind. One that lives gives it back within this time.
_LOCK_TRIES, _LOCK_WAIT_S = 6, 0.5
_UNLOCK = 'rm -f -- "$("$GIT" rev-parse --git-path index.lock)"'


@dataclass(frozen=True, slots=True)
class Commit:
    path: str
    message: str
    author: Author | None
    all: bool


def no_repository(path: str) -> RefusedError:
    return RefusedError("not_a_repository", f"there is no repository at {path}", field="path")


def git_failed(what: str, done: Done) -> RefusedError:
    return RefusedError("git_failed", f"{what}: {shown(done.errors)}")


class Commits:
    """Commits of one account."""

    def __init__(self, children: Children, user: Account, env: Mapping[str, str]) -> None:
        self._children = children
        self._user = user
        self._env = env

    async def commit(self, asked: Commit) -> dict[str, object]:
        """Commit what has changed, in a new repository if there is none. `commit` is None if nothing has."""
        if not await self._is_repository(asked.path):
            await self._must(asked, "init", "--quiet", "--template=", "--initial-branch=main")
        if asked.all:
            await self._stage(asked)
        is_same = (await self._git(asked, "diff", "--cached", "--quiet", "--no-ext-diff")).code == 0
        if not is_same:
            options = ["--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "--file=-"]
            await self._must(asked, "commit", *options, stdin=asked.message.encode())
        head = await self._git(asked, "rev-parse", "--verify", "--quiet", "HEAD")
        found = head.text or None
        return {"commit": None if is_same else found, "head": found}

    async def _is_repository(self, path: str) -> bool:
        """Whether `path` itself is one; a folder inside another repository is not."""
        above = {"GIT_CEILING_DIRECTORIES": os.path.dirname(path)}  # noqa: PTH120
        done = await self._children.run(by_user(self._user, self._env, path, "rev-parse", "--git-dir", more=above))
        return done.code == 0

    async def _stage(self, asked: Commit) -> None:
        for _ in range(_LOCK_TRIES):
            done = await self._git(asked, "add", "--all")
            if done.code == 0:
                return
            if "index.lock" not in done.errors:
                raise git_failed("the changes were not staged", done)
            await asyncio.sleep(_LOCK_WAIT_S)
        await self._children.run(script_by_user(self._user, self._env, asked.path, _UNLOCK))
        await self._must(asked, "add", "--all")

    async def _git(self, asked: Commit, *arguments: str, stdin: bytes | None = None) -> Done:
        program = by_user(self._user, self._env, asked.path, *arguments, author=asked.author, stdin=stdin is not None)
        return await self._children.run(program, stdin=stdin)

    async def _must(self, asked: Commit, *arguments: str, stdin: bytes | None = None) -> None:
        done = await self._git(asked, *arguments, stdin=stdin)
        if done.code:
            raise git_failed(f"git {arguments[0]} failed in {asked.path}", done)

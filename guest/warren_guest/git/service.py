"""Git as a whole: what the routes ask for, each with the account and the folders that it needs."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from warren_guest.accounts import Account, Accounts
from warren_guest.children import Children, Done, outlasting
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.git import rails
from warren_guest.git.asked import Author, Credentials
from warren_guest.git.clone import Clone, Fetch, Settle, failed, place_of
from warren_guest.git.commits import Commit, Commits
from warren_guest.git.guard import Guard, write_author
from warren_guest.git.looks import Look, Looks
from warren_guest.git.operations import Operations, Result
from warren_guest.git.places import Places
from warren_guest.git.push import Pack, Push, Send
from warren_guest.git.push import failed as push_failed
from warren_guest.git.scratch import InThread, scratch
from warren_guest.processes import Processes

# Commits that the server had when it was cloned, for each address; a push is compared with them.
_TIPS_LIMIT = 20_000
_URLS_LIMIT = 16

Environment = Callable[[Account], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What git needs of the guest."""

    processes: Processes
    accounts: Accounts
    in_thread: InThread
    environment: Environment


class Git:
    """Clones, commits, looks and pushes. Lives on the loop."""

    def __init__(self, places: Places, guest: Surroundings) -> None:
        self.operations = Operations()
        self.guard = Guard(places, guest.accounts)
        self.children = Children(guest.processes)
        self._places = places
        self._guest = guest
        self._tips: dict[str, frozenset[str]] = {}

    async def close(self) -> None:
        await self.operations.close()
        await self.guard.close()

    def _keeper(self) -> Account:
        """The account that holds credentials. Raises `not_possible` where the image has none."""
        if self._places.keeper is None:
            return self._guest.accounts.find(None)
        try:
            return self._guest.accounts.find(self._places.keeper)
        except RefusedError as exc:
            message = f"this image has no account {self._places.keeper}, which git needs; build the image again"
            raise RefusedError("not_possible", message) from exc

    def _user(self) -> tuple[Account, dict[str, str]]:
        user = self._guest.accounts.find(None)
        return user, self._guest.environment(user)

    async def enforce(self, policy: rails.Policy) -> str:
        """From now on pushes of whoever works here are asked for, and commits have the policy's author."""
        await self._introduce(policy.author)
        return await self.guard.enforce(policy)

    async def _introduce(self, author: Author | None) -> None:
        """Tell every git of the machine who commits, unless it is told otherwise."""
        if author is None or self._places.config is None:
            return
        try:
            await self._guest.in_thread(write_author, self._places.config, author.name, author.email)
        except OSError as exc:
            raise refusal_of(exc, self._places.config) from exc

    async def clone(self, asked: Clone, credentials: Credentials | None, limit_s: float) -> Result:
        try:
            async with asyncio.timeout(limit_s):
                return await self._clone(asked, credentials)
        except TimeoutError as exc:
            raise failed("timeout", f"{asked.url} was not cloned within {limit_s:g} s") from exc

    async def _clone(self, asked: Clone, credentials: Credentials | None) -> Result:
        keeper, (user, env) = self._keeper(), self._user()
        await self._introduce(asked.author)
        place = await self._guest.in_thread(place_of, asked.path)
        settle = Settle(self.children, user, env)
        is_begun = False
        try:
            async with scratch(self._guest.in_thread, self._places.copies, keeper, 0o755) as folder:
                fetch = Fetch(self.children, keeper, folder, env, credentials)
                tip = await fetch.fetch(asked)
                self._remember(asked.url, await fetch.tips())
                safe = await self._safe(folder)
                is_begun = True
                branch = await settle.settle(asked, fetch.copy, tip, safe)
        except BaseException:
            # Also if it was broken off when all was there but the copy not yet gone: it is done as a whole, or not.
            if is_begun:
                await outlasting(settle.remove(place))
            raise
        return {"head": tip.commit, "branch": branch, "base": tip.commit}

    async def _safe(self, folder: str) -> str:
        path = f"{folder}/safe.config"
        await self._guest.in_thread(_write_safe, path)
        return path

    def _remember(self, url: str, tips: frozenset[str]) -> None:
        self._tips.pop(url, None)
        self._tips[url] = tips if len(tips) <= _TIPS_LIMIT else frozenset()
        while len(self._tips) > _URLS_LIMIT:
            del self._tips[next(iter(self._tips))]

    async def commit(self, asked: Commit, limit_s: float) -> Result:
        user, env = self._user()
        try:
            async with asyncio.timeout(limit_s):
                return await Commits(self.children, user, env).commit(asked)
        except TimeoutError as exc:
            raise RefusedError("git_failed", f"{asked.path} was not committed within {limit_s:g} s") from exc

    async def patch(self, asked: Look, limit_s: float) -> Done:
        async with self._looking(asked, limit_s):
            return await self._looks().patch(asked)

    async def stat(self, asked: Look, limit_s: float) -> Result:
        async with self._looking(asked, limit_s):
            return await self._looks().stat(asked)

    async def log(self, asked: Look, limit_s: float) -> Result:
        async with self._looking(asked, limit_s):
            return await self._looks().log(asked)

    def _looks(self) -> Looks:
        user, env = self._user()
        return Looks(self.children, user, env, self._guest.in_thread)

    @contextlib.asynccontextmanager
    async def _looking(self, asked: Look, limit_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as exc:
            raise RefusedError("git_failed", f"{asked.path} was not looked at within {limit_s:g} s") from exc

    async def push(self, asked: Push, credentials: Credentials | None, limit_s: float) -> Result:
        rails.check_branch(asked.branch, asked.policy)
        try:
            async with asyncio.timeout(limit_s):
                return await self._push(asked, credentials)
        except TimeoutError as exc:
            raise push_failed("timeout", f"{asked.url} was not pushed to within {limit_s:g} s") from exc

    async def _push(self, asked: Push, credentials: Credentials | None) -> Result:
        keeper, (user, env) = self._keeper(), self._user()
        async with scratch(self._guest.in_thread, self._places.copies, keeper, 0o700) as folder:
            pack = Pack(self.children, user, env, self._guest.in_thread)
            await pack.bundle(asked.path, f"{folder}/theirs.bundle")
            send = Send(self.children, keeper, folder, env, credentials)
            await send.receive(f"{folder}/theirs.bundle", await pack.shallow(asked.path))
            commit = await send.commit_of(asked)
            remote = await send.remote(asked)
            old = remote.get(asked.ref)
            rails.check_history(asked.branch, is_forward=await send.is_forward(old, commit))
            known = frozenset(remote.values()) | self._tips.get(asked.url, frozenset())
            rails.check_makers(await send.made(commit, known), asked.policy)
            if old != commit:
                await send.push(asked, commit)
            return {"pushed": True, "from": old, "to": commit}


def _write_safe(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "w") as file:
        file.write("[safe]\n\tdirectory = *\n")

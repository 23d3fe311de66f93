"""Pushing: what `user` has committed goes into a clean copy of the keeper's, and from there to the server.

The way into the copy is a bundle, which is data: no hook, filter or configuration of the workspace is near when git has
credentials. The rails are checked in the copy, on what would really be pushed.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from warren_guest.accounts import Account
from warren_guest.children import Children, Done
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.git import rails
from warren_guest.git.asked import Author, Credentials, is_hash
from warren_guest.git.commands import by_keeper, by_user, script_by_user
from warren_guest.git.commits import no_repository
from warren_guest.git.reasons import reason_of, shown
from warren_guest.git.scratch import InThread

_BUNDLE_LIMIT = 8 << 30
_LISTED_LIMIT = 32 << 20
_SHALLOW = 'cat -- "$("$GIT" rev-parse --git-path shallow)" 2>/dev/null'
_PERSON = re.compile(rb"([^<>\n]*) <([^<>\n]*)> [0-9]+ [+-][0-9]+")
_STALE = ("non-fast-forward", "fetch first", "stale info")


@dataclass(frozen=True, slots=True)
class Push:
    """A request to push. `commit` None: what the branch is in the workspace, or else its HEAD."""

    path: str
    url: str
    branch: str
    commit: str | None
    policy: rails.Policy

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


class Pack:
    """The part of `user`: all of its branches as one bundle."""

    def __init__(self, children: Children, user: Account, env: Mapping[str, str], in_thread: InThread) -> None:
        self._children = children
        self._user = user
        self._env = env
        self._in_thread = in_thread

    async def bundle(self, path: str, into: str) -> None:
        """Write every branch of the repository at `path`, and its HEAD, to the file `into`."""
        words = ("bundle", "create", "--quiet", "-", "HEAD", "--branches", "--remotes")
        fd = _create(into)
        try:
            async with self._children.running(by_user(self._user, self._env, path, *words)) as running:
                size = 0
                async with contextlib.aclosing(running.output()) as output:
                    async for piece in output:
                        size += len(piece)
                        if size > _BUNDLE_LIMIT:
                            raise failed("too_large", f"{path} has more than {_BUNDLE_LIMIT} bytes of commits")
                        await self._write(fd, piece)
                errors = running.errors.decode("utf-8", "replace")
                done = Done(running.code, b"", errors)
        finally:
            os.close(fd)
        self._check(path, done)

    async def _write(self, fd: int, piece: bytes) -> None:
        try:
            view = memoryview(piece)
            while view:
                view = view[await self._in_thread(os.write, fd, view) :]
        except OSError as exc:
            raise refusal_of(exc, "the copy for a push") from exc

    def _check(self, path: str, done: Done) -> None:
        if done.code == 0:
            return
        if "Need a repository" in done.errors or "not a git repository" in done.errors:
            raise no_repository(path)
        if "empty bundle" in done.errors or "HEAD" in done.errors:
            raise failed("nothing", f"{path} has no commit yet")
        raise failed("other", f"the commits of {path} cannot be read: {shown(done.errors)}")

    async def shallow(self, path: str) -> list[str]:
        """The commits at which the history of a shallow clone ends."""
        program = script_by_user(self._user, self._env, path, _SHALLOW)
        done = await self._children.run(program, limit=_LISTED_LIMIT)
        return [line for line in done.text.split() if is_hash(line)]


class Send:
    """The keeper's part: a bare copy in `folder`, checked and pushed."""

    def __init__(
        self,
        children: Children,
        keeper: Account,
        folder: str,
        machine: Mapping[str, str],
        credentials: Credentials | None,
    ) -> None:
        self._children = children
        self._keeper = keeper
        self._folder = folder
        self._machine = machine
        self._credentials = credentials
        self._copy = f"{folder}/copy.git"

    async def receive(self, bundle: str, shallow: list[str]) -> None:
        """Take all that is in `bundle`."""
        await self._must("init", "--quiet", "--bare", "--template=", self._copy)
        if shallow:
            text = "".join(f"{each}\n" for each in shallow).encode()
            _write_file(f"{self._copy}/shallow", text)
        fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
        refs = ["+refs/*:refs/theirs/*", "+HEAD:refs/their-head"]
        await self._must("--git-dir", self._copy, *fetch, "--", bundle, *refs, protocols="file")

    async def commit_of(self, asked: Push) -> str:
        """The commit that is to be pushed, which has to be among what was received."""
        wanted = [asked.commit] if asked.commit else [f"refs/theirs/heads/{asked.branch}", "refs/their-head"]
        for name in wanted:
            words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
            found = await self._in_copy(*words)
            if found.code == 0:
                return found.text
        raise failed("nothing", f"{asked.path} has no commit {asked.commit or asked.branch}")

    async def remote(self, asked: Push) -> dict[str, str]:
        """Every ref of the server with its hash."""
        done = await self._remote(asked, "ls-remote", "--quiet", "--", asked.url)
        if done.code or done.is_cut:
            raise self._told(asked, done)
        pairs = (line.split("\t") for line in done.text.splitlines() if line.count("\t") == 1)
        return {ref: name for name, ref in pairs if is_hash(name)}

    async def is_forward(self, old: str | None, new: str) -> bool:
        """Whether `new` has all of `old`; an `old` that is not here is one that it does not have."""
        if old is None or old == new:
            return True
        return (await self._in_copy("merge-base", "--is-ancestor", old, new)).code == 0

    async def made(self, commit: str, known: frozenset[str]) -> list[rails.Made]:
        """Who made each commit that leads to `commit` and to none of `known`."""
        revisions = "".join([f"{commit}\n", *(f"^{each}\n" for each in sorted(known))]).encode()
        # As they are written: what git shows of a commit with two authors, or another encoding, is not what others see.
        words = ["rev-list", "--header", "--encoding=", "--ignore-missing", "--stdin"]
        program = by_keeper(self._keeper, self._folder, "--git-dir", self._copy, *words)
        done = await self._children.run(replace(program, stdin=True), stdin=revisions, limit=_LISTED_LIMIT)
        if done.code or done.is_cut:
            raise failed("other", f"the commits to push cannot be listed: {shown(done.errors)}")
        return _made_of(done.output)

    async def push(self, asked: Push, commit: str) -> None:
        """Push `commit` and nothing else, never with force: what changed meanwhile is refused by git itself."""
        options = ["push", "--porcelain", "--no-verify", "--no-follow-tags", "--no-force", "--no-signed"]
        done = await self._remote(asked, "--git-dir", self._copy, *options, "--", asked.url, f"{commit}:{asked.ref}")
        if done.code == 0:
            return
        line = next((each for each in done.text.splitlines() if each.startswith("!")), "")
        rails.check_history(asked.branch, is_forward=not any(word in line for word in _STALE))
        if "[remote rejected]" in line:
            why = shown(f"{line.split(chr(9))[-1]}\n{done.errors}", self._secrets)
            raise rails.refused("server", f"the server refused it: {why}")
        raise self._told(asked, done)

    async def _in_copy(self, *arguments: str) -> Done:
        program = by_keeper(self._keeper, self._folder, "--git-dir", self._copy, *arguments)
        return await self._children.run(program)

    async def _must(self, *arguments: str, protocols: str = "none") -> None:
        program = by_keeper(self._keeper, self._folder, *arguments, protocols=protocols)
        done = await self._children.run(program)
        if done.code:
            raise failed("other", f"the commits cannot be copied: {shown(done.errors)}")

    async def _remote(self, asked: Push, *arguments: str) -> Done:
        given = {"url": asked.url, "credentials": self._credentials, "machine": self._machine}
        program = by_keeper(self._keeper, self._folder, *arguments, protocols="http:https", **given)  # type: ignore[arg-type]
        fed = self._credentials.for_helper() if self._credentials else None
        return await self._children.run(program, stdin=fed, limit=_LISTED_LIMIT)

    @property
    def _secrets(self) -> tuple[str, ...]:
        return () if self._credentials is None else (self._credentials.password, self._credentials.username)

    def _told(self, asked: Push, done: Done) -> RefusedError:
        reason, explanation = reason_of(done.errors)
        return failed(reason, f"{asked.url} was not pushed to: {explanation} ({shown(done.errors, self._secrets)})")


def failed(reason: str, message: str) -> RefusedError:
    return RefusedError("push_failed", message, facts={"reason": reason})


def _create(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        raise refusal_of(exc, path) from exc


def _write_file(path: str, content: bytes) -> None:
    try:
        with os.fdopen(_create(path), "wb") as file:
            file.write(content)
    except OSError as exc:
        raise refusal_of(exc, path) from exc


def _made_of(output: bytes) -> list[rails.Made]:
    """Each commit with its makers, from its own header."""
    return [_maker_of(record) for record in output.split(b"\0") if record]


def _maker_of(record: bytes) -> rails.Made:
    commit, *header = record.partition(b"\n\n")[0].split(b"\n")
    return rails.Made(commit.decode("ascii", "replace"), _person(header, b"author "), _person(header, b"committer "))


def _person(header: list[bytes], role: bytes) -> Author:
    """Who has this role. If it is not exactly one, in git's own way of writing, it is nobody whom a policy allows."""
    told = [line.removeprefix(role) for line in header if line.startswith(role)]
    match = _PERSON.fullmatch(told[0]) if len(told) == 1 else None
    if match is None:
        return Author(b", ".join(told).decode("utf-8", "replace"), "?")
    return Author(*(part.decode("utf-8", "replace") for part in match.groups()))

"""Cloning: the keeper fetches a bare copy with credentials, then `user` clones from that copy without any."""

import os
from dataclasses import dataclass

from warren_guest.accounts import Account
from warren_guest.children import Children, Done
from warren_guest.errors import RefusedError
from warren_guest.git.asked import Author, Credentials, is_hash
from warren_guest.git.commands import by_keeper, by_user
from warren_guest.git.reasons import reason_of, shown
from warren_guest.spawn import Program

# The one ref that is fetched by its full name or its hash.
_WANTED = "refs/warren/wanted"


@dataclass(frozen=True, slots=True)
class Clone:
    """A request to clone. `ref` None: what the server's HEAD is; `depth` 0: the whole history."""

    url: str
    ref: str | None
    depth: int
    path: str
    branch: str | None
    author: Author | None

    @property
    def is_exact(self) -> bool:
        """Whether `ref` is no branch or tag but one commit, or a ref by its full name."""
        return self.ref is not None and (is_hash(self.ref) or self.ref.startswith("refs/"))


@dataclass(frozen=True, slots=True)
class Tip:
    """Where the clone begins. `branch` is None for a tag or a commit, `commit` for a repository without any.

    `is_apart`: no branch or tag leads to it, so that it has to be fetched by itself.
    """

    commit: str | None
    branch: str | None
    is_apart: bool = False


class Fetch:
    """The keeper's part: a bare copy in `folder`."""

    def __init__(
        self, children: Children, keeper: Account, folder: str, machine: dict[str, str], credentials: Credentials | None
    ) -> None:
        self._children = children
        self._keeper = keeper
        self._folder = folder
        self._machine = machine
        self._credentials = credentials
        self.copy = f"{folder}/copy.git"

    async def fetch(self, asked: Clone) -> Tip:
        """Get all that was asked for. Raises `clone_failed`."""
        depth = [f"--depth={asked.depth}"] if asked.depth else []
        if asked.depth and asked.is_exact:
            await self._local("init", "--quiet", "--bare", "--template=", self.copy)
            await self._want(asked, depth)
        else:
            only = ["--single-branch"] if depth else []
            named = [f"--branch={asked.ref}"] if depth and asked.ref else []
            options = ["--quiet", "--bare", "--template=", "--no-recurse-submodules", *depth, *only, *named]
            await self._remote(asked, "clone", *options, "--", asked.url, self.copy)
        return await self._tip(asked, depth)

    async def _want(self, asked: Clone, depth: list[str]) -> None:
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", *depth]
        where = ["--git-dir", self.copy, "fetch"]
        await self._remote(asked, *where, *options, "--", asked.url, f"+{asked.ref}:{_WANTED}")

    async def _tip(self, asked: Clone, depth: list[str]) -> Tip:
        if asked.ref is None:
            head = await self._known("HEAD")
            return Tip(head, (await self._asked("symbolic-ref", "--short", "HEAD")).text or None)
        if asked.is_exact and not await self._known(_WANTED) and not await self._known(asked.ref):
            await self._want(asked, depth)
        for full in (f"refs/heads/{asked.ref}", _WANTED, f"refs/tags/{asked.ref}", asked.ref):
            commit = await self._known(full)
            if commit is not None:
                branch = asked.ref if full == f"refs/heads/{asked.ref}" else None
                return Tip(commit, branch, is_apart=full == _WANTED)
        raise failed("ref_not_found", f"{asked.url} has no branch, tag or commit {asked.ref}")

    async def tips(self) -> frozenset[str]:
        """Every commit that a ref of the copy leads to: what the server had."""
        listed = await self._asked("for-each-ref", "--format=%(objectname) %(*objectname)", limit=8 << 20)
        return frozenset(listed.text.split())

    async def _known(self, ref: str) -> str | None:
        found = await self._asked("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        return found.text if found.code == 0 else None

    async def _asked(self, *arguments: str, limit: int = 1 << 20) -> Done:
        program = by_keeper(self._keeper, self._folder, "--git-dir", self.copy, *arguments)
        return await self._children.run(program, limit=limit)

    async def _local(self, *arguments: str) -> None:
        done = await self._children.run(by_keeper(self._keeper, self._folder, *arguments))
        if done.code:
            raise told(done.errors, "the machine cannot make a repository", ())

    async def _remote(self, asked: Clone, *arguments: str) -> None:
        program = self._program(asked, arguments)
        done = await self._children.run(program, stdin=self._pipe(program))
        if done.code:
            secrets = () if self._credentials is None else (self._credentials.password, self._credentials.username)
            raise told(done.errors, f"{asked.url} was not cloned", secrets)

    def _program(self, asked: Clone, arguments: tuple[str, ...]) -> Program:
        return by_keeper(
            self._keeper,
            self._folder,
            *arguments,
            protocols="http:https",
            url=asked.url,
            credentials=self._credentials,
            machine=self._machine,
        )

    def _pipe(self, program: Program) -> bytes | None:
        return self._credentials.for_helper() if self._credentials and program.stdin else None


def failed(reason: str, message: str) -> RefusedError:
    return RefusedError("clone_failed", message, facts={"reason": reason})


def told(errors: str, what: str, secrets: tuple[str, ...]) -> RefusedError:
    reason, explanation = reason_of(errors)
    return failed(reason, f"{what}: {explanation} ({shown(errors, secrets)})")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a work tree will be. `is_there`: an empty folder; `missing`: what is not above it, deepest first."""

    path: str
    is_there: bool
    missing: tuple[str, ...]


def place_of(path: str) -> Place:
    """Look at `path`. Raises `already_exists` if anything but an empty folder is there."""
    if os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path):  # noqa: PTH112, PTH114, PTH208
            return Place(path, True, ())
        raise RefusedError("already_exists", f"{path} is there, and is not an empty folder", field="path")
    missing = []
    above = os.path.dirname(path)  # noqa: PTH120
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)  # noqa: PTH120
    return Place(path, False, tuple(missing))


class Settle:
    """The part of `user`: a work tree at its path, made from the keeper's copy."""

    def __init__(self, children: Children, user: Account, env: dict[str, str]) -> None:
        self._children = children
        self._user = user
        self._env = env
        self._safe = "/dev/null"

    async def settle(self, asked: Clone, copy: str, tip: Tip, safe: str) -> str | None:
        """Make the work tree. Returns its branch. Raises `clone_failed`; the path then holds what there is so far.

        `safe` is a configuration that lets `user` read the copy: of that, git asks a file and not its environment.
        """
        self._safe = safe
        options = ["--quiet", "--no-checkout", "--no-hardlinks", "--template=", "--no-recurse-submodules"]
        await self._git("/", "clone", *options, "--", copy, asked.path)
        if tip.is_apart:
            fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow"]
            await self._git(asked.path, *fetch, "--", copy, f"+{_WANTED}:{_WANTED}")
        await self._git(asked.path, "remote", "set-url", "origin", asked.url)
        for key, value in self._author(asked.author):
            await self._git(asked.path, "config", key, value)
        return await self._check_out(asked, tip)

    async def _check_out(self, asked: Clone, tip: Tip) -> str | None:
        branch = asked.branch or tip.branch
        if tip.commit is None:
            await self._git(asked.path, "symbolic-ref", "HEAD", f"refs/heads/{branch or 'main'}")
            return branch or "main"
        if branch is None:
            await self._git(asked.path, "checkout", "--quiet", "--detach", tip.commit)
            return None
        await self._git(asked.path, "checkout", "--quiet", "--no-track", "-B", branch, tip.commit)
        if branch == tip.branch:
            await self._git(asked.path, "config", f"branch.{branch}.remote", "origin")
            await self._git(asked.path, "config", f"branch.{branch}.merge", f"refs/heads/{branch}")
        return branch

    def _author(self, author: Author | None) -> list[tuple[str, str]]:
        return [] if author is None else [("user.name", author.name), ("user.email", author.email)]

    async def _git(self, cwd: str, *arguments: str) -> None:
        more = {"GIT_CONFIG_GLOBAL": self._safe}
        program = by_user(self._user, self._env, cwd, *arguments, is_clean=True, more=more)
        done = await self._children.run(program)
        if done.code:
            raise told(done.errors, "the work tree was not made", ())

    async def remove(self, place: Place) -> None:
        """Remove what was made, as `user`: it may be anything by now. A folder that was there stays, empty."""
        path = place.path
        if place.is_there:
            await self._run("find", path, "-xdev", "-mindepth", "1", "-delete")
        else:
            await self._run("rm", "-rf", "--", path)
        if place.missing:
            await self._run("rmdir", "--ignore-fail-on-non-empty", "--", *place.missing)

    async def _run(self, *argv: str) -> None:
        await self._children.run(Program(argv[0], argv[1:], self._env, "/", self._user, no_new_privs=True))

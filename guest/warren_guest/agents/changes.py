"""What an agent changed in its workspace: git says it, as the agent's own account, and is given little time for it.

Tracked changes against the commit that the task began with, and new files that are not ignored. Nothing is written
into the repository: new files are noted in a copy of its index. No hook, monitor or viewer of the repository runs, and
what git runs nevertheless (a filter) has the rights of the agent that wrote it there.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from warren_guest.accounts import Account
from warren_guest.frames import STDOUT
from warren_guest.processes import Processes, Start
from warren_guest.spawn import Program

_LIMIT_S = 15.0
_BYTES_LIMIT = 64 << 20
_LINE_LIMIT = 64 << 10
_DIGITS_LIMIT = 15
# After a look that took too long, none for this long.
_REST_S = 120.0
_GIT = (
    "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.untrackedCache=false "
    "-c advice.addEmbeddedRepo=false -c core.quotePath=true -c diff.renames=false"
)
_PATCH = "--numstat -p --full-index --no-ext-diff --no-textconv --no-color --ignore-submodules=dirty"
_BASE = f"{_GIT} rev-parse --verify -q HEAD"
_LOOK = f"""
top=$({_GIT} rev-parse --show-toplevel) && cd "$top" || exit 3
index=$({_GIT} rev-parse --git-path index) || exit 3
base=${{WARREN_BASE:-$({_GIT} hash-object -t tree /dev/null)}}
copy=$(mktemp -d) || exit 3
trap 'rm -rf "$copy"' EXIT
if [ -f "$index" ]; then cp "$index" "$copy/index" || exit 3; fi
export GIT_INDEX_FILE="$copy/index"
{_GIT} add -A -N . 2>/dev/null
{_GIT} diff {_PATCH} "$base" -- || exit 3
"""
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C.UTF-8"}


S = TypeVar("S", bound="_Sink")


@dataclass(frozen=True, slots=True)
class Change:
    """The workspace's diff: its hash and its size in files and lines."""

    hash: str
    files: int
    insertions: int
    deletions: int


class Changes:
    """Looks at one workspace. `now` is the loop's time."""

    def __init__(
        self, processes: Processes, account: Account, env: Mapping[str, str], cwd: str, now: Callable[[], float]
    ) -> None:
        self._processes = processes
        self._account = account
        self._env = {**env, **_QUIET}
        self.cwd = cwd
        self._now = now
        self._base = ""
        self._last = _Sums().change()
        self._not_before = 0.0

    async def begin(self) -> None:
        """Note what the work begins with: a commit, if there is one yet."""
        said = await self._shell(_BASE, _Kept())
        self._base = said.kept.decode("ascii", "replace").strip() if said is not None else ""

    async def news(self) -> Change | None:
        """What is changed now, if that is not what it was at the last look."""
        if self._now() < self._not_before:
            return None
        sums = await self._shell(_LOOK, _Sums())
        change = None if sums is None else sums.change()
        if change is None or change == self._last:
            return None
        self._last = change
        return change

    async def _shell(self, script: str, sink: S) -> S | None:
        """Run `script`, with its output into `sink`. None if it failed, took too long or said too much."""
        env = {**self._env, "WARREN_BASE": self._base}
        program = Program("sh", ("-c", script), env, self.cwd, self._account, no_new_privs=True)
        started = self._now()
        process, reader = await self._processes.start(Start(program, deadline=started + _LIMIT_S), quiet=True)
        try:
            while (chunks := reader.take()) or reader.final is None:
                for kind, data in chunks:
                    if kind == STDOUT:
                        sink.feed(data)
                if sink.size > _BYTES_LIMIT:
                    process.kill()
                    break
                if not chunks:
                    await reader.wait(1.0)
        finally:
            reader.detach()
        if sink.size > _BYTES_LIMIT or self._now() - started >= _LIMIT_S:
            self._not_before = self._now() + _REST_S
            return None
        return sink if process.outcome.get("exit_code") == 0 else None


class _Sink:
    """Takes what git says."""

    def __init__(self) -> None:
        self.size = 0
        self.kept = bytearray()

    def feed(self, data: bytes) -> None:
        self.size += len(data)


class _Kept(_Sink):
    def feed(self, data: bytes) -> None:
        super().feed(data)
        self.kept += data[: max(200 - len(self.kept), 0)]


class _Sums(_Sink):
    """Hashes all of it, and adds up the lines before the first empty one: the numbers of each file."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._numbers = [0, 0, 0]
        self._is_patch = False

    def feed(self, data: bytes) -> None:
        super().feed(data)
        self._hash.update(data)
        if self._is_patch:
            return
        self.kept += data
        *lines, rest = bytes(self.kept).split(b"\n")
        self.kept = bytearray(rest)
        if len(rest) > _LINE_LIMIT:  # none of git's: not looked at again with each piece that is added to it
            self._is_patch = True
        for line in lines:
            if not line:
                self._is_patch = True
                return
            self._count(line)

    def _count(self, line: bytes) -> None:
        added, removed = [*line.split(b"\t", 2), b"", b""][:2]
        self._numbers[0] += 1
        self._numbers[1] += _lines_of(added)
        self._numbers[2] += _lines_of(removed)

    def change(self) -> Change:
        return Change(self._hash.hexdigest(), *self._numbers)


def _lines_of(text: bytes) -> int:
    """A number of lines; whoever works here may have git say any."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_LIMIT else 0

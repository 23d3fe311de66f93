"""`warren cp`: files and folders into a sandbox and out of it. One side is `ID:PATH`, the other a path here or `-`."""

import contextlib
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from warren.calls import RunOptions
from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import Failure, UsageError
from warren.cli.execute import STDOUT
from warren.cli.ids import find
from warren.cli.program import say
from warren.cli.progress import Bar
from warren.cli.tree import Packed, Pieces, size_of, unpack
from warren.client import Sandbox
from warren.errors import CallerError, WarrenError
from warren.flows import Carried
from warren.models import Exited, Stderr, Stdout, Transfer
from warren_console.output import write_all
from warren_console.text import size

STREAM = "-"
# $1 the target, $2 its name if the target is a folder already, $3 the tar.
HOME = "~/"
EXPAND = 'p=$1; case $p in "~/"*) p=$HOME/${p#"~/"};; esac; '
UNPACK = EXPAND + '[ ! -d "$p" ] || p=$p/$2; mkdir -p -- "$p" && tar -xf "$3" --no-same-owner -C "$p"'
PACK = EXPAND + 'cd -- "$p" && exec tar --hard-dereference -cf - .'


@dataclass(frozen=True)
class Place:
    """One side of a copy: a path here, or in a sandbox."""

    path: str
    sandbox: str | None = None


def place(text: str) -> Place:
    """`ID:/path` is in a sandbox; `./a:b` and `/a:b` are here."""
    name, colon, path = text.partition(":")
    return Place(path or HOME, name) if colon and name and "/" not in name else Place(text)


def copy(context: Context) -> int:
    source, target = place(context.asked.source), place(context.asked.target)
    if (source.sandbox is None) == (target.sandbox is None):
        hint = "warren cp A:/file - | warren cp - B:/file" if source.sandbox else "write it like sb-abcd:/path"
        raise UsageError("one side must be ID:PATH, and the other one here", hint=hint)
    carry = _Carry(context, find(context.warren, str(source.sandbox or target.sandbox)))
    try:
        done = carry.into(source.path, target.path) if target.sandbox else carry.out_of(source.path, target.path)
    except OSError as error:
        raise Failure(f"{error.filename or context.asked.source}: {error.strerror or error}") from error
    if context.out.as_json and target.path != STREAM:
        context.out.json(asdict(done))
    elif sys.stderr.isatty():
        say(f"{size(done.bytes)} copied")
    return errors.DONE


class _Carry:
    """Copies for one sandbox."""

    def __init__(self, context: Context, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._user: str | None = context.asked.user
        self._as: RunOptions = {"user": self._user} if self._user else {}

    def into(self, source: str, target: str) -> Transfer:
        if source == STREAM:
            if target.endswith("/"):
                raise UsageError("what comes from standard input needs the name of a file")
            return self._upload(sys.stdin.buffer, target, "standard input")
        if Path(source).is_dir():
            return self._pack(Path(source), target)
        name = Path(source).name
        if target.endswith("/"):
            return self._upload(source, target + name, name)
        try:
            return self._upload(source, target, name)
        except CallerError as error:
            if error.code != "is_a_directory":
                raise
            return self._upload(source, f"{target}/{name}", name)

    def out_of(self, source: str, target: str) -> Transfer:
        if target == STREAM:
            with Bar(source) as bar:
                return self._sandbox.download(source, Out(), user=self._user, progress=bar)  # type: ignore[arg-type]
        name = PurePosixPath(source).name or "home"
        here = Path(target) / name if Path(target).is_dir() else Path(target)
        try:
            with Bar(name) as bar:
                return self._sandbox.download(source, here, user=self._user, progress=bar)
        except CallerError as error:
            if error.code != "is_a_directory":
                raise
            return self._unpack(source, here)

    def _upload(self, source: Any, target: str, name: str) -> Transfer:
        mode = Path(source).stat().st_mode & 0o777 if isinstance(source, str) else None
        with Bar(name) as bar:
            return self._sandbox.upload(source, target, user=self._user, mode=mode, progress=bar)

    def _pack(self, folder: Path, target: str) -> Transfer:
        """A folder goes as a tar, which is unpacked there and then removed."""
        tar = f"/tmp/.warren-{secrets.token_hex(8)}.tar"  # noqa: S108 — the sandbox's, with a name that nobody guesses
        left_out: list[str] = []  # told behind the bar, and not in the middle of it
        source: Any = Packed(folder, left_out.append)
        try:
            with source, Bar(folder.name, size_of(folder)) as bar:
                done = self._sandbox.upload(source, tar, user=self._user, mode=0o600, progress=bar)
            for line in left_out:
                say(line)
            words = ["/bin/bash", "-c", UNPACK, "unpack", _expanded(target), folder.resolve().name, tar]
            self._sandbox.run(words, check=True, **self._as)
            return done
        finally:
            with contextlib.suppress(WarrenError):
                self._sandbox.run(["rm", "-f", "--", tar], **self._as)

    def _unpack(self, folder: str, target: Path) -> Transfer:
        left_out: list[str] = []
        with Bar(PurePosixPath(folder).name) as bar:
            carried = Carried(bar, None)
            pieces = Pieces(self._tar(folder, carried))
            unpack(pieces, target, left_out.append)
            pieces.drain()
        for line in left_out:
            say(line)
        return carried.done()

    def _tar(self, folder: str, carried: Carried) -> Iterator[bytes]:
        complaint = b""
        words = ["/bin/bash", "-c", PACK, "pack", _expanded(folder)]
        for said in self._sandbox.stream(words, **self._as):
            if isinstance(said, Stderr):
                complaint = (complaint + said.data)[-1000:]
            elif isinstance(said, Stdout):
                yield carried.saw(said.data)
            elif isinstance(said, Exited) and said.exit_code != 0:
                raise Failure(f"{folder} is not whole: tar said {complaint.decode('utf-8', 'replace').strip()!r}")


class Out:
    """Standard output, past every buffer."""

    def write(self, data: bytes) -> int:
        write_all(STDOUT, data)
        return len(data)


def _expanded(path: str) -> str:
    """As the files of the API have it: relative to the home. bash expands no `~` in an argument."""
    if path.startswith("/"):
        return path
    return path if path.startswith("~") else HOME + path

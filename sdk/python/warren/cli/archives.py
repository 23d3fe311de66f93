"""What was kept of a machine's files, carried here: as it is, or unpacked. What a guest wrote is hostile."""

import contextlib
import importlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.copy import STREAM, Out
from warren.cli.errors import Failure, UsageError
from warren.cli.program import say
from warren.cli.progress import Bar
from warren.cli.tree import PIECE_BYTES, Pieces, unpack
from warren.flows import Progress
from warren.models import Transfer
from warren_console.text import size

OWN_MODULES = ("compression.zstd", "backports.zstd")  # Python's own, from 3.14 on, and for those before it
Carry = Callable[[Any, Progress], Transfer]


def carried(context: Context, target: str, carry: Carry) -> int:
    """To a file here, or `-` for standard output."""
    is_stream = target == STREAM
    if is_stream and context.out.is_terminal:
        raise UsageError("it is not for a terminal", hint="say where to: -o FILE")
    with _files_told(target), Bar(target) as bar:
        done = carry(Out() if is_stream else target, bar)
    if context.out.as_json and not is_stream:
        context.out.json({"file": target, **asdict(done)})
    elif not is_stream:
        context.out.line(f"{target}  {size(done.bytes)}")
    return errors.DONE


def extracted(context: Context, folder: Path, carry: Carry) -> int:
    """A tar in zstd, unpacked into a folder here and nowhere else."""
    left_out: list[str] = []
    decompress = _decompressor()  # before anything is carried here
    with tempfile.TemporaryDirectory(prefix="warren-") as place, _files_told(str(folder)):
        packed = Path(place) / "workspace.tar.zst"
        with Bar(str(folder)) as bar:
            done = carry(packed, bar)
        with contextlib.closing(decompress(packed)) as pieces:
            source = Pieces(pieces)
            unpack(source, folder, left_out.append)
            source.drain()
    for line in left_out:
        say(line)
    if context.out.as_json:
        context.out.json({"folder": str(folder), "left_out": left_out, **asdict(done)})
    else:
        context.out.line(f"{folder}  {size(done.bytes)} unpacked")
    return errors.DONE


@contextlib.contextmanager
def _files_told(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{error.filename or name}: {error.strerror or error}") from error
    except tarfile.TarError as error:
        raise Failure(f"{name}: the archive is damaged ({error})") from error


def _decompressor() -> Callable[[Path], Generator[bytes, None, None]]:
    """What reads zstd here: Python itself, or the program of that name."""
    for name in OWN_MODULES:
        with contextlib.suppress(ImportError):
            return _by_module(importlib.import_module(name))
    program = shutil.which("zstd")
    if program is None:
        hint = "install the program zstd, or use Python 3.14; without --extract the archive is kept as it is"
        raise Failure("nothing here can read zstd", hint=hint)
    return lambda packed: _by_program(program, packed)


def _by_module(module: Any) -> Callable[[Path], Generator[bytes, None, None]]:
    def pieces(packed: Path) -> Generator[bytes, None, None]:
        try:
            with module.open(packed, "rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except (module.ZstdError, EOFError) as error:
            raise Failure(f"the archive cannot be read ({error})") from None

    return pieces


def _by_program(program: str, packed: Path) -> Generator[bytes, None, None]:
    # Standard input is a file and not our terminal: nothing is asked, and nothing of a name is an option.
    with packed.open("rb") as file, tempfile.TemporaryFile() as complaint:
        process = subprocess.Popen([program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=complaint)
        try:
            yield from _output(process.stdout)
            if process.wait() != 0:
                complaint.seek(0)
                why = complaint.read(1000).decode("utf-8", "replace").strip()
                raise Failure(f"the archive cannot be read: zstd said {why!r}")
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _output(stream: IO[bytes] | None) -> Generator[bytes, None, None]:
    while stream is not None and (piece := os.read(stream.fileno(), PIECE_BYTES)):
        yield piece

"""A ledger made from a replica, wherever that is and whoever wrote it. The replica is only read."""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.errors import WarrenError
from poold import files
from poold.lifetimes import finish
from poold.replica.errors import NothingToRestore, ReplicaDamaged, ReplicaError
from poold.replica.litestream import must_be_new, program, write_settings
from poold.replica.target import Target, environment

log = logging.getLogger("poold.replica")

TRIES = 3  # one that still writes may be tidying up: what was listed may be gone when it is read
RESTORE_S = 600.0  # of one try
NOTHING = ("no matching backup files available", "no snapshots available", "transaction not available")
MAX_SAID = 500
LEDGER = "ledger.db"

Check = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Restored:
    path: Path
    txid: int  # the last of Litestream's transactions that is in it
    bytes: int


async def restore(target: Target, to: Path, *, environ: Mapping[str, str], check: Check) -> Restored:
    """Make the ledger that `target` is a replica of, in the file `to`, which must not exist. It appears when it is
    whole, on disk and found to be right, and not before.

    `check` says what is wrong with a ledger; it may bring it to this program's version. Raises `NothingToRestore`, or
    `ReplicaDamaged` with what is wrong, or `ReplicaError` if the store could not be read.
    """
    await asyncio.to_thread(must_be_new, program())
    async with _workshop(to) as folder:
        made = folder / LEDGER
        txid = await _made(target, made, environ)
        problems = await finish(asyncio.to_thread(check, made))
        if problems:
            raise ReplicaDamaged("restoring", str(target), hint="; ".join(problems[:5]))
        return Restored(to, txid, await finish(asyncio.to_thread(_put, made, to)))


async def _made(target: Target, made: Path, environ: Mapping[str, str]) -> int:
    """Let Litestream make the file; the transaction that it got to."""
    settings = made.with_name("litestream.yml")
    told = {"dbs": [{"path": str(made), "replica": target.settings(environ)}]}
    await asyncio.to_thread(write_settings, settings, told)
    argv = [program(), "restore", "-no-expand-env", "-config", settings, "-force", "-json", made]
    for turn in range(1, TRIES + 1):
        code, out, said = await _run([str(word) for word in argv], environment(environ))
        if code == 0:
            return _txid(out)
        if any(words in said for words in NOTHING):
            raise await _nothing(target, settings, environ)
        log.warning("a restore failed", extra={"where": str(target), "why": said, "turn": turn})
    raise _translated(target, said)


async def _nothing(target: Target, settings: Path, environ: Mapping[str, str]) -> WarrenError:
    """Why there is nothing to restore: an epoch in which nothing was ever written is no damage, and all else is."""
    argv = [
        program(),
        "ltx",
        "-no-expand-env",
        "-config",
        settings,
        "-level",
        "all",
        "-json",
        settings.with_name(LEDGER),
    ]
    code, out, said = await _run([str(word) for word in argv], environment(environ))
    try:
        found = len(orjson.loads(out) or ())
    except (orjson.JSONDecodeError, TypeError):
        code = code or -1
    if code:
        return ReplicaError("looking for", str(target), hint=said)
    if found:
        hint = f"something of it is there ({found} files), but not what it begins with; nothing was deleted"
        return ReplicaDamaged("restoring", str(target), hint=hint)
    return NothingToRestore("restoring", str(target), hint="there is no replica; look for another epoch's beside it")


async def _run(argv: list[str], env: Mapping[str, str]) -> tuple[int, bytes, str]:
    process = await finish(
        asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        ),
        undo=Process.kill,
    )
    try:
        async with asyncio.timeout(RESTORE_S):
            out, said = await process.communicate()
    except TimeoutError:
        return -1, b"", f"it took longer than {RESTORE_S:.0f} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await finish(process.wait())
    lines = said.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, out, (lines[-1] if lines else "it said nothing")[:MAX_SAID]


def _translated(target: Target, said: str) -> ReplicaError | ReplicaDamaged:
    """What Litestream could not read in a file that is there is damage; all else may be the way to the store."""
    words = ("ltx", "checksum", "decode", "EOF", "corrupt", "non-contiguous", "page size", "lz4")
    kind = ReplicaDamaged if any(word in said for word in words) else ReplicaError
    return kind("restoring", str(target), hint=said)


def _txid(out: bytes) -> int:
    try:
        return int(orjson.loads(out)["txid"], 16)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return 0


def _put(made: Path, to: Path) -> int:
    """Give it its name; a rename could overwrite what came meanwhile. How many bytes it has."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    try:
        to.hardlink_to(made)
    except FileExistsError:
        raise _exists(to) from None
    files.sync(to.parent)
    return to.stat().st_size


def _exists(to: Path) -> ReplicaError:
    return ReplicaError("restoring to", str(to), hint="there is such a file already; a restore overwrites nothing")


@contextlib.asynccontextmanager
async def _workshop(to: Path) -> AsyncIterator[Path]:
    """A folder beside `to`, on the same disk, for us only, during the block."""
    folder = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        if await asyncio.to_thread(to.exists):
            raise _exists(to)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ReplicaError("restoring to", str(to), hint=str(error)) from error
    try:
        yield folder
    finally:
        await finish(asyncio.to_thread(shutil.rmtree, folder))

"""A task's workspace as a file: the guest's tar stream, checked member by member, compressed by a child, and kept."""

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from poold.archives.errors import ArchiveTooLarge
from poold.archives.members import Census
from poold.archives.tar import Tar
from poold.archives.writing import Writing, open_writing
from poold.errors import HostFault
from poold.lifetimes import both, finish

# One thread: an archive is nobody's hurry. Standard error has one line at most.
ZSTD = ("zstd", "-q", "-3", "--single-thread", "-c")
UNZSTD = ("zstd", "-q", "-d", "-c")
PIECE = 1 << 18
MAX_SAID = 1024
MAX_BEHIND = 1 << 16  # tar fills its last record with zeros; whoever sends more behind the end is not listened to


@dataclass(frozen=True)
class Archive:
    bytes: int  # of the file
    sha256: str
    files: int  # all but folders
    unpacked_bytes: int
    outward_links: int  # symlinks that lead out of the workspace, as to a program of the system
    left_out: int  # devices


async def keep(chunks: AsyncIterator[bytes], path: Path, *, limit_bytes: int, census: Census | None = None) -> Archive:
    """Let `path` hold the tar stream `chunks`, compressed, if it is one that can be unpacked anywhere.

    If this raises or is cancelled, nothing of it remains. `limit_bytes` is of the stream as it comes. Raises
    `BadArchive`, `ArchiveTooLarge`, `StoreFull` or `HostFault`, and what `chunks` raises.
    """
    census = census or Census()
    async with open_writing(path) as writing:
        try:
            async with _running(ZSTD) as zstd:
                await both(_pass_on(chunks, Tar(census.judge, census.hear), zstd, limit_bytes), _collect(zstd, writing))
                await _check_end(zstd)
            await writing.publish()
        except BaseException:
            await writing.withdraw()
            raise
    return Archive(
        writing.bytes, writing.sha256, census.files, census.unpacked_bytes, census.outward_links, census.left_out
    )


async def unpacked(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """What `keep` compressed, as it was: no faster than it is read, for a little may become very much."""
    async with contextlib.aclosing(_through(UNZSTD, chunks)) as told:
        async for piece in told:
            yield piece


async def packed(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """`chunks`, compressed, no faster than it is read. If they raise, so does this, behind what there was."""
    async with contextlib.aclosing(_through(ZSTD, chunks)) as told:
        async for piece in told:
            yield piece


async def _through(argv: tuple[str, ...], chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async with _running(argv) as zstd:
        feeding = asyncio.ensure_future(_feed(chunks, cast(asyncio.StreamWriter, zstd.stdin)))
        try:
            stdout = cast(asyncio.StreamReader, zstd.stdout)
            while data := await stdout.read(PIECE):
                yield data
            await feeding
            await _check_end(zstd)
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})


async def _feed(chunks: AsyncIterator[bytes], stdin: asyncio.StreamWriter) -> None:
    try:
        async for chunk in chunks:
            if not await _is_taken(stdin, chunk):
                return
    finally:
        stdin.close()  # whoever reads on is told of what went wrong here when there is nothing more to read


async def _pass_on(chunks: AsyncIterator[bytes], tar: Tar, zstd: Process, limit_bytes: int) -> None:
    """What is kept of the stream goes to the compressor, no faster than it takes it."""
    stdin = cast(asyncio.StreamWriter, zstd.stdin)
    read = behind = 0
    async for chunk in chunks:
        read += len(chunk)
        if read > limit_bytes and not tar.is_over:
            problem = f"the workspace is larger than the {limit_bytes} bytes that this host keeps of one"
            raise ArchiveTooLarge(problem, limit_bytes=limit_bytes)
        behind += len(chunk) if tar.is_over else 0
        if behind > MAX_BEHIND:
            break
        # Thousands of headers may be in a chunk: not on the loop.
        kept = await finish(asyncio.to_thread(tar.feed, chunk))
        if not await _is_taken(stdin, kept):
            raise await _failed(zstd)
    tar.end()
    stdin.close()


async def _is_taken(stdin: asyncio.StreamWriter, data: bytes) -> bool:
    """A compressor that has ended takes nothing."""
    try:
        if not stdin.is_closing():  # uvloop would raise something else then
            stdin.write(data)
            await stdin.drain()
        return not stdin.is_closing()
    except ConnectionError:
        return False


async def _collect(zstd: Process, writing: Writing) -> None:
    stdout = cast(asyncio.StreamReader, zstd.stdout)
    while data := await stdout.read(PIECE):
        await writing.write(data)


async def _check_end(zstd: Process) -> None:
    error = await _failed(zstd)
    if await zstd.wait():
        raise error


async def _failed(zstd: Process) -> HostFault:
    """Why it ended, in its own words."""
    said = await cast(asyncio.StreamReader, zstd.stderr).read(MAX_SAID)
    return HostFault("compressing with", ZSTD[0], hint=said.decode(errors="replace").strip())


@contextlib.asynccontextmanager
async def _running(argv: tuple[str, ...]) -> AsyncIterator[Process]:
    """The program, during the block. After the block it is gone."""
    try:
        # In a session of its own: an interrupt at poold's terminal is for poold, which ends it in order.
        zstd = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=PIECE, start_new_session=True
        )
    except OSError as error:
        hint = "install the package zstd" if isinstance(error, FileNotFoundError) else str(error)
        raise HostFault("starting", ZSTD[0], hint=hint) from error
    try:
        yield zstd
    finally:
        await finish(_end(zstd))


async def _end(zstd: Process) -> None:
    """Its end is noticed when nobody has to read of it any more."""
    if zstd.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            zstd.kill()
    for said in (zstd.stdout, zstd.stderr):
        while await cast(asyncio.StreamReader, said).read(PIECE):
            pass
    await zstd.wait()
    stdin = cast(asyncio.StreamWriter, zstd.stdin)
    stdin.close()
    with contextlib.suppress(ConnectionError):  # it may have ended before it took everything
        await stdin.wait_closed()

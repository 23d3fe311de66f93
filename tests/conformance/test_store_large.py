"""Objects that are larger than what a host would have in memory at once."""

import os
import subprocess
import sys

from poold.config import S3Config
from tests.conformance.stores import Bench

MB = 64
PROGRAM = """
import asyncio, hashlib, resource, sys
from pathlib import Path
from poold.config import S3Config
from poold.store import Content
from poold.store.opening import open_store

MB = int(sys.argv[3])
BLOCK = bytes(range(256)) * 4096

async def chunks():
    for number in range(MB):
        yield number.to_bytes(4, "big") + BLOCK[4:]

async def main() -> None:
    where = Path(sys.argv[1]) if sys.argv[2] == "" else S3Config(sys.argv[1], sys.argv[2])
    digest = hashlib.sha256()
    async for piece in chunks():
        digest.update(piece)
    async with open_store(where) as store:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await store.write("large", Content(chunks, MB << 20, digest.hexdigest()))
        again = hashlib.sha256()
        async with store.read("large") as reading:
            async for piece in reading.chunks:
                again.update(piece)
        assert again.hexdigest() == digest.hexdigest()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


def _grown_kb(bench: Bench, megabytes: int) -> int:
    """By how much a process grows that writes and reads an object of this size."""
    where = (bench.where.bucket, bench.where.prefix) if isinstance(bench.where, S3Config) else (str(bench.where), "")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *where, str(megabytes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


async def test_an_object_of_any_size_is_streamed_in_flat_memory(shelf: Bench) -> None:
    """Twice the size, and hardly more in memory."""
    small, large = _grown_kb(shelf, MB), _grown_kb(shelf, 2 * MB)
    assert large < small + MB * 512, (small, large)
    assert large < 2 * MB * 1024, (small, large)

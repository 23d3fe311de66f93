"""Files to put into a store and to bring back, and stores to put them into."""

import hashlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from poold.hibernate import packing, unpacking
from poold.hibernate.manifest import File
from poold.hibernate.packing import Told
from poold.store import Store, silent
from poold.store.folder import open_folder

PREFIX = "hibernated/sb-1/1-0/"
MIB = 1 << 20


def sparse_file(path: Path, size: int, ranges: dict[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in ranges.items():
            file.seek(offset)
            file.write(data)
    return path


def noise(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def allocated(path: Path) -> int:
    return os.stat(path).st_blocks * 512


@asynccontextmanager
async def folder_store(folder: Path) -> AsyncIterator[Store]:
    async with open_folder(folder) as store:
        yield store


async def pack(store: Store, path: Path, name: str = "drive") -> File:
    return await packing.pack(store, PREFIX, name, path, Told(silent, 0))


async def unpack(store: Store, file: File, path: Path) -> Path:
    await unpacking.unpack(store, PREFIX, file, path, Told(silent, 0))
    return path

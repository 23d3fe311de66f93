"""How fast the two stores are, beside doing the same without them. Prints `name=value` lines.

python -m tests.bench.bench_store [folder]

A folder is beside plain files, written, synced and renamed in as many threads; S3 beside aioboto3's own client and
beside obstore's with the same number of requests at once, against the same server. A ratio is ours to the other's, of
rounds that take turns.
"""

import asyncio
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvloop

from poold import files
from poold.config import S3Config
from poold.devstore import BUCKET, REGION, S3Server
from poold.store import Content, Store
from poold.store.folder import THREADS
from poold.store.opening import open_store
from tests.conformance.stores import as_client_of
from tests.s3server import running_s3

ROOT = Path(__file__).resolve().parent.parent.parent
ROUNDS = 5
OBJECTS = 200  # small ones, of each round
AT_ONCE = 16
SMALL = os.urandom(1000)
LARGE_MB = 64
BLOCK = os.urandom(1 << 20)
Work = Callable[[int], Awaitable[object]]


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(LARGE_MB):
        yield BLOCK


LARGE = Content(chunks, LARGE_MB << 20, hashlib.sha256(BLOCK * LARGE_MB).hexdigest())


async def small_s(work: Work) -> float:
    """Seconds for all small objects, so many at once."""
    numbers = iter(range(OBJECTS))

    async def one_after_another() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


async def large_s(work: Work) -> float:
    began = time.perf_counter()
    await work(0)
    return time.perf_counter() - began


async def read_all(store: Store) -> None:
    async with store.read("large") as reading:
        async for _ in reading.chunks:
            pass


def of_store(store: Store) -> dict[str, Work]:
    return {
        "put": lambda number: store.put(f"small/{number}", SMALL),
        "get": lambda number: store.get(f"small/{number}"),
        "write": lambda _: store.write("large", LARGE),
        "read": lambda _: read_all(store),
    }


def of_files(folder: Path, threads: ThreadPoolExecutor) -> dict[str, Work]:
    """What a program does that wants whole files after a crash."""
    folder.mkdir()
    loop = asyncio.get_running_loop()

    def write() -> None:
        with (folder / "new").open("wb") as file:
            for _ in range(LARGE_MB):
                file.write(BLOCK)
            file.flush()
            os.fsync(file.fileno())
        (folder / "new").rename(folder / "large")
        files.sync(folder)

    def read() -> None:
        with (folder / "large").open("rb") as file:
            while file.read(1 << 20):
                pass

    return {
        "put": lambda number: loop.run_in_executor(threads, files.put, folder / str(number), SMALL),
        "get": lambda number: loop.run_in_executor(threads, (folder / str(number)).read_bytes),
        "write": lambda _: loop.run_in_executor(threads, write),
        "read": lambda _: loop.run_in_executor(threads, read),
    }


def of_client(client: Any) -> dict[str, Work]:
    """The library's own calls, its own transfers included."""
    from io import BytesIO

    async def get(number: int) -> None:
        reply = await client.get_object(Bucket=BUCKET, Key=f"raw/{number}")
        async with reply["Body"] as body:
            await body.read()

    class Nowhere(BytesIO):
        def write(self, data: Any) -> int:
            return len(data)

    return {
        "put": lambda number: client.put_object(Bucket=BUCKET, Key=f"raw/{number}", Body=SMALL),
        "get": get,
        "write": lambda _: client.upload_fileobj(BytesIO(BLOCK * LARGE_MB), BUCKET, "raw/large"),
        "read": lambda _: client.download_fileobj(BUCKET, "raw/large", Nowhere()),
    }


def of_obstore(server: S3Server) -> dict[str, Work]:
    """The client that was not taken: decision 19 says why."""
    from obstore.store import S3Store

    other = S3Store(
        BUCKET,
        prefix="other",
        endpoint=server.url,
        region=REGION,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        client_options={"allow_http": True},
    )

    async def get(number: int) -> None:
        await (await other.get_async(str(number))).bytes_async()

    async def read(_number: int) -> None:
        async for _ in (await other.get_async("large")).stream():
            pass

    return {
        "put": lambda number: other.put_async(str(number), SMALL),
        "get": get,
        "write": lambda _: other.put_async("large", BLOCK * LARGE_MB),
        "read": read,
    }


async def compare(name: str, ours: dict[str, Work], **bare: dict[str, Work]) -> None:
    for what, work in ours.items():
        measured = small_s if what in ("put", "get") else large_s
        amount, unit = (OBJECTS, "per_s") if what in ("put", "get") else (LARGE_MB, "mb_per_s")
        works = [work, *(each[what] for each in bare.values())]
        took = [[await measured(each) for each in works] for _ in range(ROUNDS)]
        print(f"store_{name}_{what}_{unit}={amount / statistics.median(row[0] for row in took):.0f}")
        for column, other in enumerate(bare, 1):
            print(f"store_{name}_{what}_vs_{other}={statistics.median(row[column] / row[0] for row in took):.2f}")


async def measure(folder: Path) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        async with open_store(folder / "store") as store:
            await compare("folder", of_store(store), bare=of_files(folder / "files", threads))
    with running_s3() as server, as_client_of(server):
        import aioboto3

        async with open_store(S3Config(BUCKET, "bench")) as store, aioboto3.Session().client("s3") as client:
            await compare("s3", of_store(store), bare=of_client(client), obstore=of_obstore(server))


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        uvloop.run(measure(Path(folder)))


if __name__ == "__main__":
    main()

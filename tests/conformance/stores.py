"""Both kinds of store, opened as poold opens them, and a way behind their backs."""

import asyncio
import contextlib
import hashlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from poold.config import S3Config
from poold.devstore import BUCKET, S3Server
from poold.store import Content, Store, header
from poold.store.opening import open_store
from tests.s3server import raw_client

FOLDER, S3 = "folder", "s3"
STORES = (FOLDER, S3)


class Backdoor(Protocol):
    """What a broken disk or a careless person can do to what is stored."""

    def alter(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change the content and nothing that is told of it."""

    def plant(self, key: str, data: bytes) -> None:
        """Something that nobody wrote through a store."""

    def left_over(self) -> list[str]:
        """What is there and is no object: halves of objects."""


@dataclass
class Bench:
    """A store with a place of its own."""

    where: Path | S3Config
    store: Store
    back: Backdoor

    def opened_again(self) -> contextlib.AbstractAsyncContextManager[Store]:
        """As another process would."""
        return open_store(self.where)


@dataclass
class OfFolder:
    folder: Path

    def alter(self, key: str, change: Callable[[bytes], bytes]) -> None:
        whole = (self.folder / key).read_bytes()
        (self.folder / key).write_bytes(whole[: header.LENGTH] + change(whole[header.LENGTH :]))

    def plant(self, key: str, data: bytes) -> None:
        (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / key).write_bytes(data)

    def left_over(self) -> list[str]:
        return [path.name for path in (self.folder / ".new").iterdir()]


@dataclass
class OfS3:
    client: Any = field(repr=False)
    prefix: str

    def alter(self, key: str, change: Callable[[bytes], bytes]) -> None:
        found = self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")
        data = change(found["Body"].read())
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data, Metadata=found["Metadata"])

    def plant(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data)

    def left_over(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.prefix}/")
        return [upload["Key"] for upload in found.get("Uploads", ())]


@contextlib.contextmanager
def as_client_of(server: S3Server, url: str | None = None) -> Iterator[None]:
    """The environment of a program that uses the server, perhaps by another way."""
    given = {**server.client(), **({} if url is None else {"AWS_ENDPOINT_URL": url}), "NO_PROXY": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.asynccontextmanager
async def open_bench(where: Path | S3Config, server: S3Server | None, url: str | None = None) -> AsyncIterator[Bench]:
    """A store, and the way behind it. `url` is where clients find the server, if not where it is."""
    if isinstance(where, Path):
        async with open_store(where) as store:
            yield Bench(where, store, OfFolder(where))
        return
    assert server is not None
    client = raw_client(server)
    with as_client_of(server, url):
        try:
            async with open_store(where) as store:
                yield Bench(where, store, OfS3(client, where.prefix))
        finally:
            client.close()


def content_of(data: bytes, piece: int = 1 << 18) -> Content:
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(data), piece):
            await asyncio.sleep(0)
            yield data[at : at + piece]

    return Content(chunks, len(data), hashlib.sha256(data).hexdigest())


def some_bytes(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


async def all_of(store: Store, key: str, *, start: int = 0, end: int | None = None) -> bytes:
    async with store.read(key, start=start, end=end) as reading:
        return b"".join([piece async for piece in reading.chunks])


async def keys_of(store: Store, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]

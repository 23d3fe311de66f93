"""Litestream's word is looked at: a sync that covered less than it says is none. Here a socket answers in its place."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from poold.replica import Litestream, Replica, control
from poold.replica.errors import ReplicaError
from poold.replica.litestream import Places
from poold.replica.target import Folder
from tests.replicas import until


@contextlib.asynccontextmanager
async def answering(folder: Path, *answers: bytes) -> AsyncIterator[Replica]:
    """A replica whose control socket gives these answers, the last one for ever."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    places = Places(folder / "ledger.db", folder / "litestream", folder, 1)
    server = await asyncio.start_unix_server(answer, places.socket)
    async with server:
        yield Replica(Litestream(places, Folder(folder), {}), lambda *_: None, lambda: 7)
    places.socket.unlink(missing_ok=True)


def told(http: int = 200, /, **body: object) -> bytes:
    return b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\n\r\n" % http + json.dumps(body).encode()


GOOD = told(status="synced", txid=5, replicated_txid=5)
BAD = {
    "the replica has less": told(status="synced", txid=5, replicated_txid=4),
    "nothing is there yet": told(status="no_change", txid=0, replicated_txid=0),
    "it does not say": told(status="synced"),
    "it says something else": told(status="synced", txid="5", replicated_txid="5"),
    "no object": b"HTTP/1.1 200 OK\r\n\r\n[5]",
    "an error": told(500, error="replica sync: the store is away"),
    "garbage": b"\x00\xff garbage",
    "nothing": b"",
    "a body that is cut": told(txid=5, replicated_txid=5)[:-3],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_what_is_no_sync_is_tried_again(tmp_path: Path, bad: bytes) -> None:
    async with asyncio.timeout(30), answering(tmp_path, bad) as replica:
        covering = asyncio.ensure_future(replica.cover())
        await until(lambda: replica.why not in ("", "it was not asked yet"))
        assert not covering.done()
        assert not replica.is_up
        covering.cancel()
    async with asyncio.timeout(30), answering(tmp_path, bad, GOOD) as replica:
        await replica.cover()
        assert (replica.is_up, replica.synced_ms) == (True, 7)


async def test_a_replica_may_be_further_than_who_asked_and_never_back(tmp_path: Path) -> None:
    further, back = told(txid=6, replicated_txid=8), told(txid=1, replicated_txid=8)
    async with asyncio.timeout(30), answering(tmp_path, GOOD, further, back) as replica:
        await replica.cover()
        await replica.cover()
        covering = asyncio.ensure_future(replica.cover())
        await until(lambda: "went back from transaction 6 to 1" in replica.why)
        assert not covering.done()
        covering.cancel()


async def test_where_nobody_listens_that_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ReplicaError, match="asking Litestream failed"):
        await control.call(tmp_path / "nobody.sock", "GET", "/info")

"""S3 on a bad day: slow, unavailable, or silent after it has done what was asked."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator

import orjson
import pytest

from poold.config import S3Config
from poold.devstore import BUCKET, S3Server
from poold.store import Entry, Store
from poold.store.errors import Conflict, NoObject, Refused, Unreachable
from tests.conformance.stores import Bench, all_of, as_client_of, content_of, keys_of, open_bench, some_bytes
from tests.s3faults import Fault, S3Faults, open_faults

FAULTS = ("unavailable", "done_but_unavailable", "drop", "lose_replies", "cut_replies")


@pytest.fixture
async def faults(s3_server: S3Server) -> AsyncIterator[S3Faults]:
    async with open_faults(s3_server.ports[0]) as faults:
        yield faults


@pytest.fixture
async def shaky(s3_server: S3Server, faults: S3Faults) -> AsyncIterator[Bench]:
    """A store that is reached through the faults."""
    where = S3Config(BUCKET, f"of-test/{secrets.token_hex(8)}", timeout_s=5)
    async with open_bench(where, s3_server, faults.url) as bench:
        yield bench


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_call_outlives_a_fault_or_two(shaky: Bench, faults: S3Faults, fault: str) -> None:
    def twice() -> None:
        faults.heal()
        getattr(faults, fault)(times=2)

    twice()
    first = await shaky.store.create("a", b"one")
    twice()
    second = await shaky.store.replace("a", b"two", first.tag)
    twice()
    assert (await shaky.store.get("a")).entry == second
    twice()
    assert await shaky.store.head("a") == second
    twice()
    assert await all_of(shaky.store, "a") == b"two"
    twice()
    assert await keys_of(shaky.store) == ["a"]
    twice()
    await shaky.store.delete("a", second.tag)
    twice()
    await shaky.store.put("a", b"three")
    twice()
    await shaky.store.delete("a")
    faults.heal()
    assert await keys_of(shaky.store) == []


@pytest.mark.parametrize("fault", ["lose_replies", "done_but_unavailable"])
async def test_a_create_whose_reply_was_lost_is_known_to_be_ours(shaky: Bench, faults: S3Faults, fault: str) -> None:
    getattr(faults, fault)(times=1, method="PUT")
    written = await shaky.store.create("a", b"same for everybody")
    assert [seen.status for seen in faults.requests("PUT", "/a")] == [200]
    assert (await shaky.store.get("a")).entry == written
    with pytest.raises(Conflict):
        await shaky.store.create("a", b"same for everybody")


async def test_a_replace_whose_reply_was_lost_is_done_once(shaky: Bench, faults: S3Faults) -> None:
    first = await shaky.store.create("a", b"one")
    faults.lose_replies(times=1, method="PUT")
    second = await shaky.store.replace("a", b"two", first.tag)
    assert second.tag == (await shaky.store.head("a")).tag
    assert len(faults.requests("PUT", "/a")) == 2


async def test_a_lost_reply_and_somebody_elses_write_is_told_as_what_it_is(shaky: Bench, faults: S3Faults) -> None:
    """Ours was done, and replaced before we could look: neither a success that lasts nor a conflict."""
    first = await shaky.store.create("a", b"one")
    faults.lose_replies(times=1, method="PUT")
    faults.slow(0.2)
    ours = asyncio.create_task(shaky.store.replace("a", b"two", first.tag))
    async with asyncio.timeout(30):
        while not any(seen.fault is Fault.LOST for seen in faults.seen):
            await asyncio.sleep(0)
    shaky.back.plant("a", b"somebody else's")
    with pytest.raises(Unreachable, match="somebody else"):
        await ours


@pytest.mark.parametrize("fault", FAULTS)
async def test_of_sixteen_creators_one_wins_through_faults(shaky: Bench, faults: S3Faults, fault: str) -> None:
    getattr(faults, fault)(share=0.4)
    came = await asyncio.gather(*(shaky.store.create("a", b"%d" % who) for who in range(16)), return_exceptions=True)
    faults.heal()
    won = [who for who, outcome in enumerate(came) if isinstance(outcome, Entry)]
    assert all(isinstance(outcome, Entry | Conflict | Unreachable) for outcome in came)
    assert len(won) <= 1
    winner = int((await shaky.store.get("a")).data)
    assert won in ([], [winner])
    assert not isinstance(came[winner], Conflict)
    assert len([seen for seen in faults.requests("PUT", "/a") if seen.status == 200]) == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_update_is_lost_or_done_twice_through_faults(shaky: Bench, faults: S3Faults, fault: str) -> None:
    await shaky.store.create("list", b"[]")
    getattr(faults, fault)(share=0.25)
    await asyncio.gather(*(_added(shaky.store, f"{who}-{turn}") for who in range(4) for turn in range(2)))
    faults.heal()
    names = orjson.loads((await shaky.store.get("list")).data)
    assert sorted(names) == sorted(f"{who}-{turn}" for who in range(4) for turn in range(2))


async def _added(store: Store, name: str) -> None:
    """Who is not told what came of it looks."""
    async with asyncio.timeout(120):
        while True:
            try:
                blob = await store.get("list")
                names = orjson.loads(blob.data)
                if name in names:
                    return
                await store.replace("list", orjson.dumps([*names, name]), blob.entry.tag)
            except (Conflict, Unreachable):
                continue
            return


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_large_object_gets_there_and_back_through_faults(shaky: Bench, faults: S3Faults, fault: str) -> None:
    data = some_bytes(33 << 20)
    getattr(faults, fault)(share=0.2)
    written = await shaky.store.write("large", content_of(data, 1 << 20))
    assert await all_of(shaky.store, "large") == data
    faults.heal()
    assert await shaky.store.head("large") == written


async def test_an_upload_that_comes_to_nothing_is_taken_back(shaky: Bench, faults: S3Faults) -> None:
    faults.unavailable(method="PUT")
    with pytest.raises(Unreachable):
        await shaky.store.write("large", content_of(some_bytes(20 << 20)))
    assert shaky.back.left_over() == []
    with pytest.raises(NoObject):
        await shaky.store.head("large")


async def test_a_store_that_never_answers_is_given_up(s3_server: S3Server, faults: S3Faults) -> None:
    with as_client_of(s3_server, faults.url):
        async with open_bench(S3Config(BUCKET, "of-test/hanging", timeout_s=1), s3_server, faults.url) as bench:
            faults.hang()
            async with asyncio.timeout(30):
                with pytest.raises(Unreachable):
                    await bench.store.get("a")
                with pytest.raises(Unreachable):
                    await bench.store.create("a", b"")
            assert len(faults.seen) < 10
            faults.heal()


async def test_a_store_that_is_away_is_not_tried_without_end(shaky: Bench, faults: S3Faults) -> None:
    """The tries of all calls together are bounded: a hundred calls that fail are not six hundred requests."""
    faults.unavailable()
    came = await asyncio.gather(*(shaky.store.head("a") for _ in range(100)), return_exceptions=True)
    assert all(isinstance(outcome, Unreachable) for outcome in came)
    assert 100 <= len(faults.seen) <= 160


async def test_no_more_requests_are_under_way_than_was_set(s3_server: S3Server, faults: S3Faults) -> None:
    where = S3Config(BUCKET, f"of-test/{secrets.token_hex(8)}", requests=3)
    async with open_bench(where, s3_server, faults.url) as bench:
        faults.hang()
        waiting = [asyncio.create_task(bench.store.put(f"a/{number}", b"")) for number in range(10)]
        async with asyncio.timeout(30):
            while len(faults.seen) < 3:
                await asyncio.sleep(0)
            for _ in itertools.repeat(None, 200):
                await asyncio.sleep(0)
        assert len(faults.seen) == 3
        faults.heal()
        await asyncio.gather(*waiting)
        assert len(await keys_of(bench.store)) == 10


async def test_large_objects_leave_room_for_small_ones(s3_server: S3Server, faults: S3Faults) -> None:
    """A lease does not wait behind what is hibernated."""
    where = S3Config(BUCKET, f"of-test/{secrets.token_hex(8)}", requests=4)
    async with open_bench(where, s3_server, faults.url) as bench:
        faults.hang(key="partNumber=")
        large = [
            asyncio.create_task(bench.store.write(f"large/{n}", content_of(some_bytes(33 << 20)))) for n in range(2)
        ]
        async with asyncio.timeout(30):
            while len(faults.requests(key="partNumber=")) < 3:
                await asyncio.sleep(0)
            await bench.store.create("lease", b"mine")
        assert len(faults.requests(key="partNumber=")) == 3
        faults.heal()
        await asyncio.gather(*large)


async def test_wrong_credentials_are_told_and_not_tried_again(s3_server: S3Server, faults: S3Faults) -> None:
    wrong = S3Server(s3_server.folder, s3_server.ports, s3_server.access_key, "not the secret")
    async with open_bench(S3Config(BUCKET, "of-test/denied"), wrong, faults.url) as bench:
        with pytest.raises(Refused, match="credentials") as caught:
            await bench.store.create("a", b"")
        assert "not the secret" not in str(caught.value)
        assert len(faults.seen) == 1


async def test_a_reader_notices_that_the_object_was_replaced(shaky: Bench) -> None:
    await shaky.store.write("a", content_of(some_bytes(40 << 20, 1)))
    async with shaky.store.read("a") as reading:
        await anext(reading.chunks)
        await shaky.store.put("a", b"another")
        with pytest.raises(Conflict, match="replaced"):
            async for _ in reading.chunks:
                pass


async def test_encryption_by_the_server_is_asked_for(s3_server: S3Server, faults: S3Faults) -> None:
    where = S3Config(BUCKET, f"of-test/{secrets.token_hex(8)}", encryption="AES256")
    async with open_bench(where, s3_server, faults.url) as bench:
        await bench.store.create("small", b"x")
        await bench.store.write("large", content_of(some_bytes(9 << 20)))
        for key in ("small", "large"):
            found = bench.back.client.head_object(Bucket=BUCKET, Key=f"{where.prefix}/{key}")  # type: ignore[attr-defined]
            assert found["ServerSideEncryption"] == "AES256"

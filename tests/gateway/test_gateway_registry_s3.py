"""The registry in a real S3, with bad days between: what gateways read there, and how keys are changed."""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from contract.errors import NotFound
from contract.hosts import Host
from contract.keys import Key, key_id
from gateway.config import S3Place
from gateway.errors import ConfigError, RegistryUnreachable
from gateway.registry import bucket, s3
from gateway.registry.s3 import S3Registry, open_s3_registry
from poold import registry as poold_registry
from poold.devstore import BUCKET, S3Server
from poold.errors import ConfigError as PooldConfigError
from poold.keyring import Keyring
from poold.places import S3Config
from tests.s3faults import S3Faults, open_faults
from tests.s3server import raw_client, running_s3

KEY = Key(key_id("wrn_" + "a" * 40), "red", created_ms=1)
OTHER = Key(key_id("wrn_" + "b" * 40), "blue", created_ms=2)
HOST = Host("a", "http://127.0.0.1:7070")
LIMIT_S = 60.0
FAULTS = ("unavailable", "done_but_unavailable", "drop", "lose_replies", "cut_replies")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(scope="module")
def back(server: S3Server) -> Iterator[Any]:
    """The way behind everybody's back. One for all tests: to make one takes longer than most of them."""
    with contextlib.closing(raw_client(server)) as client:
        yield client


@pytest.fixture
async def faults(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Faults]:
    """The way to the server, for everybody here."""
    async with open_faults(server.ports[0]) as faults:
        for name, value in {**server.client(), "AWS_ENDPOINT_URL": faults.url, "NO_PROXY": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        yield faults


@pytest.fixture
def place(faults: S3Faults) -> S3Place:
    return S3Place(BUCKET, f"c-{secrets.token_hex(8)}/registry", timeout_s=2)


@pytest.fixture
async def registry(place: S3Place) -> AsyncIterator[S3Registry]:
    async with open_s3_registry(place) as registry:
        yield registry


@pytest.fixture
def ring(place: S3Place) -> Keyring:
    """As pooldctl sees it. Its calls block, and have a loop of their own."""
    return Keyring(S3Config(place.bucket, place.prefix))


def put(back: Any, place: S3Place, name: str, data: bytes, **more: Any) -> None:
    """As ours would write it, unless it is told otherwise."""
    told = {"Metadata": {"sha256": hashlib.sha256(data).hexdigest()}, **more}
    back.put_object(Bucket=place.bucket, Key=f"{place.prefix}/{name}", Body=data, **told)


def remove(back: Any, place: S3Place, name: str) -> None:
    back.delete_object(Bucket=place.bucket, Key=f"{place.prefix}/{name}")


def written(back: Any, place: S3Place, key: Key) -> None:
    put(back, place, f"keys/{key.id}.json", key.encode())


async def test_what_one_writes_the_others_read(registry: S3Registry, ring: Keyring) -> None:
    await asyncio.to_thread(ring.add, KEY)
    assert (await registry.read()).keys == {KEY.id: KEY}
    await registry.add_key(OTHER)
    assert await asyncio.to_thread(ring.all) == ([KEY, OTHER], [])
    assert await asyncio.to_thread(ring.find, OTHER.id[:8]) == OTHER
    assert await asyncio.to_thread(ring.change, OTHER.id, Key.revoked) == OTHER.revoked()
    assert await registry.key(OTHER.id) == OTHER.revoked()
    assert await registry.change_key(KEY.id, lambda key: key.ending(5)) == KEY.ending(5)
    assert (await registry.read()).keys == {KEY.id: KEY.ending(5), OTHER.id: OTHER.revoked()}
    assert await asyncio.to_thread(ring.all) == ([KEY.ending(5), OTHER.revoked()], [])


async def test_what_is_not_there_is_not_found(registry: S3Registry, ring: Keyring) -> None:
    for key in (KEY.id, "..", "x" * 1000, "a/b"):
        with pytest.raises(NotFound):
            await registry.key(key)
        with pytest.raises(NotFound):
            await registry.change_key(key, Key.revoked)
    with pytest.raises(NotFound):
        await asyncio.to_thread(ring.change, KEY.id, Key.revoked)
    assert (await registry.read()).keys == {}


async def test_hosts_come_and_go_and_only_what_changed_is_read_again(
    registry: S3Registry, back: Any, place: S3Place, faults: S3Faults
) -> None:
    put(back, place, "hosts/a.json", HOST.encode())
    written(back, place, KEY)
    first = await registry.read()
    assert (first.hosts, first.keys) == ({"a": HOST}, {KEY.id: KEY})
    put(back, place, "hosts/a.json", replace(HOST, beat=2).encode())
    faults.seen.clear()
    found = await registry.read()
    assert (found.hosts["a"].beat, found.keys[KEY.id] is first.keys[KEY.id]) == (2, True)
    assert (len(faults.requests("GET", "hosts/a.json")), faults.requests("GET", "keys/")) == (1, [])
    faults.seen.clear()
    await registry.read()
    assert len(faults.seen) == 1  # the listing
    remove(back, place, "hosts/a.json")
    assert (await registry.read()).hosts == {}


async def test_a_long_list_has_many_pages(
    registry: S3Registry, back: Any, place: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PAGE", 2)
    for number in range(7):
        put(back, place, f"hosts/h{number}.json", replace(HOST, name=f"h{number}").encode())
    assert set((await registry.read()).hosts) == {f"h{number}" for number in range(7)}
    monkeypatch.setattr(bucket, "MAX_FILES", 3)
    with pytest.raises(RegistryUnreachable, match="more than 3"):
        await registry.read()


@pytest.mark.parametrize("data", [b" ", b"{", b"[]", b'{"name": 1}', b"\xff" * 100, b" " * (2 << 20)])
async def test_what_is_no_record_is_not_there_and_hides_no_other(
    registry: S3Registry, back: Any, place: S3Place, ring: Keyring, data: bytes
) -> None:
    for name in (f"keys/{KEY.id}.json", "hosts/a.json", "hosts/..json", "other/a.json", "keys/x/y.json"):
        put(back, place, name, data)
    written(back, place, OTHER)
    found = await registry.read()
    assert (found.keys, found.hosts, found.missed) == ({OTHER.id: OTHER}, {}, "")
    with pytest.raises(NotFound):
        await registry.key(KEY.id)
    keys, broken = await asyncio.to_thread(ring.all)
    assert (keys, len(broken)) == ([OTHER], 1)


async def test_what_none_of_ours_wrote_or_stands_under_anothers_name_is_not_there(
    registry: S3Registry, back: Any, place: S3Place, ring: Keyring
) -> None:
    put(back, place, f"keys/{KEY.id}.json", KEY.encode(), Metadata={})
    put(back, place, f"keys/{'0' * 64}.json", OTHER.encode())
    put(back, place, "hosts/b.json", HOST.encode())
    found = await registry.read()
    assert (found.keys, found.hosts) == ({}, {})
    keys, broken = await asyncio.to_thread(ring.all)
    assert (keys, len(broken)) == ([], 2)


# Changes of keys.


@pytest.mark.parametrize(
    ("who", "fault"), [*(("gateway", fault) for fault in FAULTS), ("pooldctl", "lose_replies"), ("pooldctl", "drop")]
)
async def test_a_change_whose_reply_is_lost_is_done_once_and_known_to_be(
    registry: S3Registry, ring: Keyring, faults: S3Faults, who: str, fault: str
) -> None:
    async def change(how: Callable[[Key], Key]) -> Key:
        if who == "gateway":
            return await registry.change_key(KEY.id, how)
        return await asyncio.to_thread(ring.change, KEY.id, how)

    getattr(faults, fault)(times=1, method="PUT")
    await (registry.add_key(KEY) if who == "gateway" else asyncio.to_thread(ring.add, KEY))
    for how, expected in (((lambda key: key.ending(9)), KEY.ending(9)), (Key.revoked, KEY.ending(9).revoked())):
        faults.heal()
        getattr(faults, fault)(times=1, method="PUT")
        assert await change(how) == expected
        assert (await registry.read()).keys == {KEY.id: expected}


async def test_a_key_that_is_revoked_during_another_change_stays_revoked(
    registry: S3Registry, ring: Keyring, back: Any, place: S3Place
) -> None:
    await registry.add_key(KEY)

    def slowly(key: Key) -> Key:
        """Somebody else revokes it between our reading and our writing."""
        if key.active:
            written(back, place, key.revoked())
        return key.ending(7)

    expected = KEY.ending(7).revoked()
    assert await registry.change_key(KEY.id, slowly) == expected
    assert await registry.key(KEY.id) == expected
    written(back, place, KEY)
    assert await asyncio.to_thread(ring.change, KEY.id, slowly) == expected
    assert await registry.key(KEY.id) == expected


async def test_of_many_changes_at_once_none_is_lost(registry: S3Registry, ring: Keyring) -> None:
    await registry.add_key(KEY)
    changes = [registry.change_key(KEY.id, lambda key, at=at: key.ending(at)) for at in (50, 30, 40)]  # type: ignore[misc]
    await asyncio.gather(*changes, asyncio.to_thread(ring.change, KEY.id, Key.revoked))
    assert await registry.key(KEY.id) == KEY.ending(30).revoked()


async def test_a_change_that_comes_late_undoes_nothing(
    registry: S3Registry, faults: S3Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the request for long, and its writer has given up."""
    await registry.add_key(KEY)
    monkeypatch.setattr(s3, "CHANGE_S", 0.5)
    faults.slow(1.5)
    with pytest.raises(RegistryUnreachable):
        await registry.change_key(KEY.id, lambda key: key.ending(9))
    faults.heal()
    monkeypatch.setattr(s3, "CHANGE_S", 20.0)
    await registry.change_key(KEY.id, Key.revoked)
    await asyncio.sleep(2)
    assert not (await registry.key(KEY.id)).active


# Bad days.


@pytest.mark.parametrize("fault", [*FAULTS, "hang"])
async def test_a_store_that_is_away_leaves_what_is_known_and_is_found_again(
    registry: S3Registry, faults: S3Faults, fault: str
) -> None:
    await registry.add_key(KEY)
    known = await registry.read()
    getattr(faults, fault)()
    with pytest.raises(RegistryUnreachable, match="listing"):
        await registry.read()
    faults.heal()
    assert await registry.read() == known


async def test_a_fault_now_and_then_is_not_noticed(registry: S3Registry, faults: S3Faults) -> None:
    await registry.add_key(KEY)
    faults.unavailable(times=1)
    assert (await registry.read()).keys == {KEY.id: KEY}


async def test_one_key_that_cannot_be_read_is_told_and_keeps_no_other_from_being_revoked(
    registry: S3Registry, faults: S3Faults, back: Any, place: S3Place
) -> None:
    for key in (KEY, OTHER):
        await registry.add_key(key)
    await registry.read()
    for key in (KEY, OTHER):
        written(back, place, key.revoked())
    faults.unavailable(method="GET", key=f"keys/{KEY.id}")
    found = await registry.read()
    assert found.keys == {KEY.id: KEY, OTHER.id: OTHER.revoked()}
    assert "1 records of keys" in found.missed
    faults.heal()
    found = await registry.read()
    assert (found.keys[KEY.id].active, found.missed) == (False, "")


async def test_a_hosts_record_that_cannot_be_read_stays_as_it_was_and_is_logged_once(
    registry: S3Registry, faults: S3Faults, back: Any, place: S3Place, caplog: pytest.LogCaptureFixture
) -> None:
    put(back, place, "hosts/a.json", HOST.encode())
    await registry.read()
    put(back, place, "hosts/a.json", replace(HOST, beat=2).encode())
    faults.unavailable(method="GET", key="hosts/a.json")
    for _ in range(3):
        found = await registry.read()
        assert (found.hosts, found.missed) == ({"a": HOST}, "")
    assert caplog.text.count("a host's record cannot be read") == 1


async def test_a_registry_that_is_empty_all_of_a_sudden_is_not_believed(
    registry: S3Registry, back: Any, place: S3Place
) -> None:
    await registry.add_key(KEY)
    assert (await registry.read()).keys
    remove(back, place, f"keys/{KEY.id}.json")
    with pytest.raises(RegistryUnreachable, match="empty, and had 1"):
        await registry.read()


@pytest.mark.parametrize(
    ("bucket_name", "variables", "why"),
    [
        ("no-such-bucket", {}, "NoSuchBucket"),
        (BUCKET, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch|AccessDenied"),
        (BUCKET, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        (BUCKET, {"AWS_ENDPOINT_URL": "nonsense"}, "nonsense"),
    ],
)
async def test_a_gateway_does_not_start_on_what_cannot_be_read_and_says_why(
    faults: S3Faults, monkeypatch: pytest.MonkeyPatch, bucket_name: str, variables: dict[str, str], why: str
) -> None:
    monkeypatch.setattr(s3, "START_S", 0.5)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"GATEWAY_REGISTRY=s3://{bucket_name}/r cannot be read: .*({why})"):
        async with open_s3_registry(S3Place(bucket_name, "r", timeout_s=1)):
            pass
    with pytest.raises(PooldConfigError, match=f"s3://{bucket_name}/r"):
        await asyncio.to_thread(Keyring(S3Config(bucket_name, "r", timeout_s=1)).all)


async def test_whoever_waits_for_a_store_that_hangs_is_let_go_at_the_end(place: S3Place, faults: S3Faults) -> None:
    async with asyncio.timeout(30):
        async with open_s3_registry(replace(place, timeout_s=60)) as registry:
            faults.hang()
            reading = asyncio.create_task(registry.read())
            while not faults._tasks:
                await asyncio.sleep(0.01)
        with pytest.raises((asyncio.CancelledError, RegistryUnreachable)):
            await reading


# What hosts write.


@contextlib.asynccontextmanager
async def beating(place: S3Place, told: dict[str, Host]) -> AsyncIterator[None]:
    async def record() -> Host:
        told["host"] = replace(told["host"], beat=told["host"].beat + 1)
        return told["host"]

    async with (
        poold_registry.open_place(S3Config(place.bucket, place.prefix)) as where,
        poold_registry.Registry(where, record, lambda: told["host"].ready).beating(),
    ):
        yield


async def until(is_so: Callable[[Host | None], bool], registry: S3Registry) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so((await registry.read()).hosts.get("a")):
            await asyncio.sleep(0.05)


async def test_a_hosts_record_is_in_the_store_and_says_when_it_takes_nothing_new(
    registry: S3Registry, place: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poold_registry, "S3_EVERY_S", 1000)
    told = {"host": HOST}
    async with beating(place, told):
        assert (await registry.read()).hosts == {"a": told["host"]}
        told["host"] = replace(told["host"], ready=False)
        await until(lambda host: host is not None and not host.ready, registry)
        told["host"] = replace(told["host"], ready=True)
        await until(lambda host: host is not None and host.ready, registry)
    assert not (await registry.read()).hosts["a"].ready


async def test_a_host_that_cannot_write_its_record_goes_on_and_logs_it_once(
    registry: S3Registry,
    place: S3Place,
    faults: S3Faults,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(poold_registry, "S3_EVERY_S", 0.1)
    monkeypatch.setattr(poold_registry, "WRITE_S", 0.3)
    faults.hang(method="PUT")
    told = {"host": HOST}
    with caplog.at_level(logging.INFO):
        async with beating(place, told):
            while told["host"].beat < 4:
                await asyncio.sleep(0.05)
            assert (await registry.read()).hosts == {}
            faults.heal()
            await until(lambda host: host is not None, registry)
    assert caplog.text.count("cannot be written") == 1
    assert "written again" in caplog.text

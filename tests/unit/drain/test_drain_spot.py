"""A notice in the instance's metadata: the host moves everything away by itself, in the time that is left."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from drain_imds import ImdsServer, open_imds
from drain_members import RUNNING, Member, a_cluster, all_of, handed_over, looking, until

from poold.drain.imds import USUAL_ADDRESS, ImdsPlace
from poold.drain.spot import Spot
from poold.egress.addresses import Kind, kind_of
from poold.ledger import audit, drains
from tests.ports import free_port


def watcher(member: Member, place: ImdsPlace) -> Spot:
    now_ms = member.host.now_ms
    return Spot(place, member.departure, member.host, member.ledger, member.metrics, now_ms=now_ms, look_s=0.05)


def in_two_minutes(action: str = "terminate") -> bytes:
    at = datetime.now(UTC) + timedelta(seconds=120)
    return f'{{"action": "{action}", "time": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'.encode()


@contextlib.asynccontextmanager
async def watched(member: Member, server: ImdsServer):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(watcher(member, server.place).watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_host_that_is_to_be_interrupted_moves_everything_away_by_itself(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b") as other, open_imds() as server:
        told: list[dict[str, object]] = []
        with handed_over():
            async with cluster.member("a") as member, looking(other), watched(member, server):
                name = await member.create()
                await until(lambda: server.asked)
                server.notice(in_two_minutes())
                await until(lambda: member.departure.progress is not None)
                assert member.departure.progress is not None
                told = await all_of(member.departure.progress)
                assert 'poold_spot_notices_total{kind="terminate"} 1' in member.metrics.render().decode()
                await asyncio.Event().wait()
        assert told[0]["why"] == "a spot notice: terminate"
        assert told[0]["force"] is True
        assert 60_000 < told[0]["until_ms"] - member.host.now_ms() + 60_000 < 180_000  # type: ignore[operator]
        assert await other.states() == {name: RUNNING}


async def test_a_recommendation_is_told_and_moves_nothing(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("a") as member, open_imds() as server:
        server.rebalance(b'{"noticeTime": "2026-11-18T08:20:00Z"}')
        async with watched(member, server):

            async def is_told() -> bool:
                rows = await member.ledger.read(lambda db: audit.listed(db, limit=10, action="host.spot_notice"))
                return [row.detail["kind"] for row in rows] == ["rebalance"]

            await until(is_told)
            asked = len(server.asked)
            await until(lambda: len(server.asked) > asked + 4)
            assert await is_told()  # once
        assert (member.host.is_draining, await member.ledger.read(drains.under_way)) == (False, None)


async def test_a_notice_hastens_a_drain_that_is_under_way(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("b"), cluster.member("a") as member:
        await member.create()
        member.engine.held.add("parts")
        progress = await member.drain(timeout_s=3600)
        async with open_imds() as server:
            server.notice(in_two_minutes("stop"))
            async with watched(member, server):
                await until(lambda: member.departure.under_way is not None and member.departure.under_way.is_forced)
        row = await member.ledger.read(drains.under_way)
        assert row is not None
        assert (row.why, row.is_forced) == ("a spot notice: stop", True)
        assert row.until_ms < member.host.now_ms() + 120_000
        calling_off = asyncio.create_task(member.departure.undrain())
        await all_of(progress)
        await calling_off
        member.engine.held.clear()


async def test_trouble_with_the_metadata_moves_nothing_and_is_survived(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("a") as member, open_imds() as server:
        server.raw = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\x00\x01\x02"
        async with watched(member, server):
            await asyncio.sleep(0.3)
            server.raw = None
            await until(lambda: "GET /latest/meta-data/spot/instance-action" in server.asked)
        assert not member.host.is_draining


async def test_auto_watches_only_where_there_are_metadata(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, cluster.member("a") as member:
        nobody = ImdsPlace("127.0.0.1", free_port(), is_probed=True)
        async with asyncio.timeout(30):
            await watcher(member, nobody).watch()


@pytest.mark.parametrize("address", [USUAL_ADDRESS, "fd00:ec2::254", f"::ffff:{USUAL_ADDRESS}"])
def test_no_guest_reaches_the_metadata(address: str) -> None:
    assert kind_of(ip_address(address)) is Kind.FORBIDDEN

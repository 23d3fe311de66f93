"""What gateways have a host remember: books over HTTP, states, audit rows, usage, and who may ask for them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contract.errors import CapacityError
from contract.ids import new_id
from contract.keys import Pools
from contract.tickets import HEADER, Access
from tests.unit.poold.poold_host import Host, Reply, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

ROOM = {"vcpus": 1, "memory_mb": 256, "disk_mb": 1024}
POOLS = Pools(vcpus=4, memory_mb=4096, disk_mb=10_240)
ASKED = "b" * 64


def an_id(number: int) -> str:
    return new_id("sb", number.to_bytes)


async def book(
    host: Host, method: str, path: str = "", body: object = None, *, owner: str = "ada", **more: Any
) -> Reply:
    """Ask about a book as a gateway does: the ticket says what the owner may have."""
    ticket = host.gateway.sign(owner, Access.HOST, pools=more.get("pools", POOLS))
    return await host.knock(method, f"/v1/owners/{owner}/reservations{path}", body, **{HEADER: ticket})


async def reserve(host: Host, number: int, **more: Any) -> Reply:
    return await book(host, "POST", "", {"id": an_id(number), **ROOM, **more})


async def ids(host: Host) -> list[str]:
    return [row["id"] for row in (await book(host, "GET")).json["rows"]]


async def test_an_owner_reserves_until_its_pools_are_full(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        assert (await reserve(host, 0)).code == "no_book"
        assert (await book(host, "POST", "/open", {})).json == {"opened": True}
        replies = await asyncio.gather(*(reserve(host, number) for number in range(8)))
        assert sorted(reply.status for reply in replies) == [201] * 4 + [429] * 4
        full = next(reply for reply in replies if reply.status == 429)
        assert full.code == "pool_exhausted"
        assert full.headers["retry-after"]
        assert full.json["error"]["used"] == {"vcpus": 4, "memory_mb": 1024, "disk_mb": 4096}
        assert full.json["error"]["allowed"] == vars(POOLS)
        assert full.json["error"]["asked"] == ROOM
        page = (await book(host, "GET")).json
        assert len(page["rows"]) == 4
        assert all(row["created_ms"] <= page["at_ms"] for row in page["rows"])
        taken = page["rows"][0]["id"]
        assert (await book(host, "POST", "/release", {"ids": [taken, "unknown"]})).json == {"released": 1}
        assert (await reserve(host, 9)).json == {"id": an_id(9), "repeated": False}


async def test_an_owner_that_is_refused_again_and_again_fills_no_audit(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await book(host, "POST", "/open", {})
        for _ in range(5):
            assert (await reserve(host, 1, vcpus=5)).status == 429
        host.clock.advance(60)
        assert (await reserve(host, 1, vcpus=6)).status == 429
        noted = await host.audit(action="book.refused")
        assert [(row.owner, row.sandbox, row.detail["asked"]["vcpus"], row.detail["times"]) for row in noted] == [
            ("ada", an_id(1), 5, 1),
            ("ada", an_id(1), 6, 5),
        ]


async def test_what_is_reserved_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await book(host, "POST", "/open", {})
        await reserve(host, 1, key="a" * 64, asked=ASKED)
    async with open_host(tmp_path) as host:
        assert await ids(host) == [an_id(1)]
        assert (await reserve(host, 2, key="a" * 64, asked=ASKED)).json == {"id": an_id(1), "repeated": True}


async def test_a_repeat_gets_the_same_id_and_another_request_with_its_key_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await book(host, "POST", "/open", {})
        key = {"key": "a" * 64, "asked": ASKED}
        assert (await reserve(host, 1, **key)).json == {"id": an_id(1), "repeated": False}
        assert (await reserve(host, 2, **key)).json == {"id": an_id(1), "repeated": True}
        other = await reserve(host, 3, **{**key, "asked": "c" * 64})
        assert (other.status, other.code) == (422, "key_reused")
        assert await ids(host) == [an_id(1)]
        await book(host, "POST", "/release", {"ids": [an_id(1)], "forget": True})
        assert (await reserve(host, 2, **key)).json == {"id": an_id(2), "repeated": False}


async def test_a_book_moves_from_host_to_host_with_all_that_is_in_it(tmp_path: Path) -> None:
    async with open_host(tmp_path / "a") as old, open_host(tmp_path / "b") as new:
        await book(old, "POST", "/open", {})
        await reserve(old, 1, key="a" * 64, asked=ASKED)
        await reserve(old, 2)
        closed = (await book(old, "POST", "/close")).json
        assert (await reserve(old, 3)).code == "no_book"
        assert (await book(old, "POST", "/close")).json == closed  # a gateway died before it opened the next one
        assert (await book(new, "POST", "/open", closed)).json == {"opened": True}
        assert (await book(new, "POST", "/open", {})).json == {"opened": False}
        assert await ids(new) == [an_id(1), an_id(2)]
        assert (await reserve(new, 3, key="a" * 64, asked=ASKED)).json == {"id": an_id(1), "repeated": True}
        assert (await reserve(old, 3)).code == "no_book"
        assert [row.action for row in await old.audit(owner="ada")] == ["book.open", "book.close"]


async def test_a_book_is_rebuilt_from_what_lives(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        running, paused, gone = [await host.create(owner="ada") for _ in range(3)]
        await host.create(owner="bob")
        await host.ask("POST", f"/v1/sandboxes/{paused}/pause", owner="ada")
        await host.ask("DELETE", f"/v1/sandboxes/{gone}", owner="ada")
        living = (await host.ask("GET", "/v1/owners/ada/sandboxes", owner="ada")).json
        assert {row["id"] for row in living["rows"]} == {running, paused}
        assert set(living["rows"][0]) == {"id", "vcpus", "memory_mb", "disk_mb"}
        assert (await book(host, "POST", "/open", living)).json == {"opened": True}
        assert set(await ids(host)) == {running, paused}


async def test_states_tell_what_lives_what_ended_and_what_was_never_here(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        running, gone = await host.create(), await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{gone}")
        reply = await host.ask("POST", "/v1/sandboxes/states", {"ids": [running, gone, an_id(7), "nonsense"]})
        states = {running: "running", gone: "stopped", an_id(7): None, "nonsense": None}
        assert reply.json == {"states": states}


async def test_what_is_being_created_counts_before_it_is_written_down(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=1, slots=1) as host:
        await host.ready()
        host.engine.held.add("destroy")  # a warm machine of another shape has to make room first
        ticket = host.gateway.sign("ada", Access.WRITE, an_id(1))
        creating = asyncio.create_task(host.knock("POST", "/v1/sandboxes", {"memory_mb": 128}, **{HEADER: ticket}))
        await host.until(lambda: bool(host.sandboxes.creations.of("ada")))
        written = (await host.ask("GET", "/v1/sandboxes", owner="ada")).json["sandboxes"]
        states = (await host.ask("POST", "/v1/sandboxes/states", {"ids": [an_id(1)]})).json["states"]
        living = [await host.ask("GET", f"/v1/owners/{owner}/sandboxes", owner=owner) for owner in ("ada", "bob")]
        host.sandboxes.creations.end(CapacityError("that is enough"))
        host.engine.held.clear()
        assert (await creating).status == 503
        assert written == []
        assert states == {an_id(1): "pending"}
        assert [[row["id"] for row in reply.json["rows"]] for reply in living] == [[an_id(1)], []]
        assert (await host.ask("POST", "/v1/sandboxes/states", {"ids": [an_id(1)]})).json["states"] == {an_id(1): None}


async def test_rows_of_gateways_join_the_audit_and_none_is_from_the_future(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        row = {"at_ms": 5, "owner": "ada", "action": "gateway.key_refused", "detail": {"key": "ab12", "count": 3}}
        more = {"sandbox": an_id(1), "request": "rq-1"}
        rows = [row, {"at_ms": 1 << 53, "action": "gateway.throttled", **more}]
        assert (await host.ask("POST", "/v1/audit", {"rows": rows})).json == {"rows": 2}
        first, second = await host.audit()
        assert (first.at_ms, first.owner, first.action, first.detail) == (5, "ada", row["action"], row["detail"])
        assert (second.owner, second.sandbox, second.request) == ("unknown", an_id(1), "rq-1")
        assert second.at_ms <= host.sandboxes.now_ms()
        assert (await host.admin("GET", "/admin/audit/verify")).json["ok"]


async def test_an_owner_sees_its_own_usage_and_an_admin_everybodys(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        for owner in ("ada", "bob"):
            await host.create(owner=owner)
        own = (await host.ask("GET", "/v1/usage?owner=bob", owner="ada")).json
        assert [(total["owner"], total["runs"]) for total in own["owners"]] == [("ada", 1)]
        admin = {HEADER: host.gateway.sign("root", Access.ADMIN)}
        every = (await host.knock("GET", "/v1/usage", **admin)).json
        assert [total["owner"] for total in every["owners"]] == ["ada", "bob"]
        one = (await host.knock("GET", "/v1/usage?owner=bob", **admin)).json
        assert [total["owner"] for total in one["owners"]] == ["bob"]


@pytest.mark.parametrize("access", [Access.READ, Access.WRITE, Access.PORT, Access.ADMIN])
async def test_a_book_is_for_gateways_only(tmp_path: Path, access: Access) -> None:
    async with open_host(tmp_path) as host:
        ticket = {HEADER: host.gateway.sign("ada", access)}
        for method, path in (("GET", ""), ("POST", ""), ("POST", "/close"), ("POST", "/open"), ("POST", "/release")):
            reply = await host.knock(method, f"/v1/owners/ada/reservations{path}", **ticket)
            assert (reply.status, reply.code) == (403, "forbidden")


async def test_a_ticket_of_one_owner_opens_no_other_owners_book(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await book(host, "POST", "/open", {})
        ticket = {HEADER: host.gateway.sign("bob", Access.HOST, pools=POOLS)}
        reply = await host.knock("GET", "/v1/owners/ada/reservations", **ticket)
        assert (reply.status, reply.code) == (401, "bad_ticket")


async def test_the_operator_may_look_into_a_book(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await book(host, "POST", "/open", {})
        reply = await host.admin("POST", "/v1/owners/ada/reservations", {"id": an_id(1), **ROOM})
        assert reply.status == 201
        assert (await host.admin("GET", "/v1/owners/ada/reservations")).json["rows"][0]["id"] == an_id(1)

"""Creates that come twice: one sandbox, one reply, whatever happened in between."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import Response

from contract.errors import CapacityError
from contract.models import Caller, CreateSandbox
from contract.tickets import HEADER, Access
from poold.api.repeats import created, once, told_by
from poold.ledger import replies
from poold.ledger.replies import Reply as Kept
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_host import Host, Reply, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

ONE = "sb-aaaaaaaaaaaaaaaa"
ASKED, OTHER = "a" * 64, "b" * 64


async def create(host: Host, asked: str | None = ASKED, **wanted: object) -> Reply:
    """As a gateway sends it for a request with an idempotency key."""
    headers = {HEADER: host.gateway.sign("ada", Access.WRITE, ONE)}
    if asked is not None:
        headers["Warren-Asked"] = asked
    return await host.knock("POST", "/v1/sandboxes", wanted, **headers)


def is_replayed(reply: Reply) -> bool:
    return reply.headers.get("idempotent-replayed") == "true"


async def kept(host: Host) -> Kept | None:
    return await host.services.ledger.read(lambda db: replies.get(db, ONE, ASKED, now_ms=host.clock()))


async def test_a_repeat_gets_the_same_reply_and_no_second_sandbox(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        first = await create(host, metadata={"a": "b"})
        assert (first.status, first.json["id"], is_replayed(first)) == (201, ONE, False)
        for _ in range(2):
            again = await create(host, metadata={"a": "b"})
            assert (again.status, again.body, is_replayed(again)) == (201, first.body, True)
            assert again.headers["location"] == first.headers["location"]
        assert len(host.sandboxes.machines()) == 1
        await host.ask("DELETE", f"/v1/sandboxes/{ONE}", owner="ada")
        assert (await create(host)).body == first.body  # what was said then, not what is so now
        assert host.sandboxes.machines() == []


async def test_a_repeat_with_another_request_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await create(host)
        other = await create(host, OTHER)
        assert (other.status, other.code) == (422, "key_reused")


async def test_a_repeat_is_answered_also_where_its_request_would_be_refused_by_now(tmp_path: Path) -> None:
    """What a client left open its gateway fills in, and not always as the first time."""
    async with open_host(tmp_path) as host:
        first = await create(host)
        again = await create(host, memory_mb=1 << 30)
        assert (again.status, again.body, is_replayed(again)) == (201, first.body, True)
        assert (await create(host, OTHER, memory_mb=1 << 30)).code == "key_reused"


async def test_a_request_that_is_wrong_is_refused_again_as_it_was(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        first, again = [await create(host, vcpus="many") for _ in range(2)]
        assert (first.status, is_replayed(first)) == (400, False)
        assert (again.status, again.body, is_replayed(again)) == (400, first.body, True)


async def test_without_a_key_nothing_is_kept_and_the_same_id_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        assert (await create(host, None)).status == 201
        assert await kept(host) is None
        again = await create(host, None)
        assert (again.status, again.code) == (409, "exists")


@pytest.mark.parametrize("asked", ["", "a" * 63, "A" * 64, "x" * 64])
async def test_a_hash_that_is_none_is_refused(tmp_path: Path, asked: str) -> None:
    async with open_host(tmp_path) as host:
        reply = await create(host, asked)
        assert (reply.status, reply.json["error"]["field"]) == (400, "warren-asked")
        assert host.sandboxes.machines() == []


async def test_a_repeat_waits_for_the_first_and_gets_its_reply(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        asking = [asyncio.create_task(create(host)) for _ in range(5)]
        await host.until(lambda: host.engine.calls["restore"] == 1)
        host.engine.held.clear()
        got = await asyncio.gather(*asking)
        assert {reply.status for reply in got} == {201}
        assert len({reply.body for reply in got}) == 1
        assert sorted(is_replayed(reply) for reply in got) == [False] + [True] * 4
        assert len(host.sandboxes.machines()) == 1


async def test_a_client_that_leaves_finds_its_sandbox_when_it_comes_again(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        ticket = host.gateway.sign("ada", Access.WRITE, ONE)
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\n{HEADER}: {ticket}\r\nWarren-Asked: {ASKED}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
        await host.until(lambda: host.engine.calls["restore"] == 1)
        writer.transport.abort()
        again = asyncio.create_task(create(host))
        host.engine.held.clear()
        reply = await again
        assert (reply.status, reply.json["state"], is_replayed(reply)) == (201, "running", True)


async def test_a_create_that_is_cancelled_goes_on_to_its_end_and_is_kept(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        app = SimpleNamespace(state=SimpleNamespace(services=host.services))
        request = Request({"type": "http", "app": app, "headers": []})
        wanted = CreateSandbox.parse(b"", host.services.facts.limits)

        async def make() -> Response:
            return created(await host.sandboxes.create(wanted, Caller("ada"), ONE))

        async def told() -> Kept:
            return told_by(await host.sandboxes.get(ONE))

        creating = asyncio.create_task(once(request, ONE, ASKED, make, told))
        await host.until(lambda: host.engine.calls["restore"] == 1)
        creating.cancel()
        host.engine.held.clear()
        with pytest.raises(asyncio.CancelledError):
            await creating
        reply = await create(host)
        assert (reply.status, reply.json["state"], is_replayed(reply)) == (201, "running", True)


# What failed is kept, too: the id is spent. A gateway that gave the room back relies on it.


async def test_a_refusal_for_want_of_room_is_said_again_when_there_is_room(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=1) as host:
        taken = await host.create()
        first = await create(host)
        assert (first.status, first.code) == (503, "no_capacity")
        await host.ask("DELETE", f"/v1/sandboxes/{taken}")
        again = await create(host)
        assert (again.status, again.body, is_replayed(again)) == (503, first.body, True)
        assert again.headers["retry-after"] == first.headers["retry-after"]
        assert (await host.ask("GET", f"/v1/sandboxes/{ONE}", owner="ada")).code == "not_mine"


async def test_a_creation_that_failed_is_said_again(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.broken.add("restore")
        first = await create(host)
        assert first.status == 500
        host.engine.broken.clear()
        again = await create(host)
        assert (again.status, again.body, is_replayed(again)) == (500, first.body, True)
        await host.assert_nothing_is_used()


async def test_a_creation_that_its_owner_ended_is_said_again(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        creating = asyncio.create_task(create(host))
        await host.until(lambda: host.engine.calls["restore"] == 1)
        removing = asyncio.create_task(host.ask("DELETE", f"/v1/sandboxes/{ONE}", owner="ada"))
        first = await creating
        host.engine.held.clear()
        await removing
        assert (first.status, first.code) == (409, "sandbox_stopped")
        assert (await create(host)).body == first.body
        await host.assert_nothing_is_used()


# The host was killed before the reply was kept: the sandbox tells.


async def forget_the_reply(host: Host) -> None:
    await host.services.ledger.write(lambda db: db.execute("DELETE FROM replies") and None)


async def test_after_a_kill_a_sandbox_that_runs_is_told_as_created(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with open_host(tmp_path, engine=engine) as host:
        first = await create(host)
        await forget_the_reply(host)
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        again = await create(host)
        assert (again.status, again.json, is_replayed(again)) == (201, first.json, True)
        assert (await kept(host)) == Kept(201, again.body)
        assert len(host.sandboxes.machines()) == 1


async def test_after_a_kill_in_the_middle_the_failure_is_told(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.broken.add("restore")
        await create(host)
        await forget_the_reply(host)
        host.engine.broken.clear()
        first = await create(host)
        assert (first.status, first.code, is_replayed(first)) == (502, "machine_died", True)
        assert "was not created" in first.json["error"]["message"]
        assert (await create(host)).body == first.body


async def test_after_a_kill_before_anything_was_written_the_repeat_is_the_first(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.sandboxes.is_draining = True
        assert (await create(host)).code == "draining"
        await forget_the_reply(host)
        host.sandboxes.is_draining = False
        assert (await create(host)).status == 201


async def test_a_reply_is_forgotten_after_a_day(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=1) as host:
        host.sandboxes.is_draining = True
        assert (await create(host)).code == "draining"
        host.sandboxes.is_draining = False
        host.clock.advance(24 * 3600)
        assert (await create(host)).status == 201


async def test_a_host_that_stops_ends_a_creation_that_may_be_repeated(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.held.add("restore")
        creating = asyncio.create_task(create(host))
        await host.until(lambda: host.engine.calls["restore"] == 1)
        host.sandboxes.creations.end(CapacityError("this host is being stopped"))
        reply = await creating
        assert reply.status == 503
        stored = await kept(host)
        assert stored is not None
        assert orjson.loads(stored.body) == reply.json

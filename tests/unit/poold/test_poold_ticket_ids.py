"""A sandbox is created under its ticket's id: once, whatever became of it, and by one of many."""

import asyncio
import os
from typing import Any

import pytest

from contract.ids import new_id
from contract.tickets import HEADER, Access
from tests.unit.poold.poold_host import Host, Reply

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def create(host: Host, sandbox: str, **wanted: Any) -> Reply:
    ticket = host.gateway.sign("ann", Access.WRITE, sandbox)
    return await host.knock("POST", "/v1/sandboxes", wanted, **{HEADER: ticket})


async def test_a_sandbox_is_created_under_the_tickets_id(host: Host) -> None:
    name = new_id("sb", os.urandom)
    made = await create(host, name)
    assert (made.status, made.json["id"], made.json["owner"]) == (201, name, "ann")
    assert made.headers["location"] == f"/v1/sandboxes/{name}"
    assert host.engine.guest_of(name).identity["hostname"] == name


@pytest.mark.parametrize("name", ["", "sb-short", "tk-aaaaaaaaaaaaaaaa", "sb-AAAAAAAAAAAAAAAA", "../../etc"])
async def test_an_id_that_is_none_creates_nothing(host: Host, name: str) -> None:
    reply = await create(host, name)
    assert (reply.status, reply.code) == (404, "not_found")
    ticket = host.gateway.sign("ann", Access.WRITE)
    assert (await host.knock("POST", "/v1/sandboxes", {}, **{HEADER: ticket})).code == "bad_ticket"
    assert host.sandboxes.machines() == []


async def test_an_id_is_created_once_whatever_became_of_it(host: Host) -> None:
    name = new_id("sb", os.urandom)
    path = f"/v1/sandboxes/{name}"
    assert (await create(host, name)).status == 201
    machine = host.engine.machine_of(name)
    for change, state in (("", "running"), ("/pause", "paused"), (None, "stopped")):
        if change is None:
            await host.ask("DELETE", path, owner="ann")
        elif change:
            await host.ask("POST", path + change, owner="ann")
        reply = await create(host, name, metadata={"second": "yes"})
        assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "exists", state)
        found = (await host.ask("GET", path, owner="ann")).json
        assert (found["state"], found["metadata"]) == (state, {})
    assert host.engine.machine_of(name) == machine
    ticket = host.gateway.sign("bob", Access.WRITE, name)
    assert (await host.knock("POST", "/v1/sandboxes", {}, **{HEADER: ticket})).code == "exists"
    await host.assert_nothing_is_used()


async def test_of_many_creations_of_one_id_at_once_one_succeeds(host: Host) -> None:
    name = new_id("sb", os.urandom)
    replies = await asyncio.gather(*(create(host, name) for _ in range(6)))
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409, 409, 409]
    assert {reply.code for reply in replies if reply.status != 201} == {"exists"}
    assert len(host.sandboxes.machines()) == 1
    assert (await host.ask("GET", f"/v1/sandboxes/{name}/health", owner="ann")).status == 200


async def test_a_sandbox_that_is_being_created_is_here_already(host: Host) -> None:
    """Else a gateway whose client left could not find what it has to remove."""
    name = new_id("sb", os.urandom)
    host.engine.held.add("resume")
    creating = asyncio.create_task(create(host, name))
    await host.until(lambda: host.sandboxes.creations.owner_of(name) == "ann")
    assert await host.sandboxes.owner_of(name) == "ann"
    assert (await host.ask("DELETE", f"/v1/sandboxes/{name}", owner="bob")).code == "not_found"
    await host.until(lambda: host.engine.calls["resume"] > 0)
    destroying = asyncio.create_task(host.ask("DELETE", f"/v1/sandboxes/{name}", owner="ann"))
    assert (await creating).code == "sandbox_stopped"
    host.engine.held.clear()
    assert (await destroying).json["state"] == "stopped"
    await host.assert_nothing_is_used()

"""The list over HTTP: filters, cursors that any host understands; and ports that are public."""

from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.unit.poold.poold_host import Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def listed(host: Host, *, owner: str = "ada", **query: str) -> list[str]:
    reply = await host.ask("GET", f"/v1/sandboxes?{urlencode(query)}", owner=owner)
    assert reply.status == 200, reply.body
    return [row["id"] for row in reply.json["sandboxes"]]


async def test_a_list_is_the_owners_and_has_all_that_was_asked_for(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        plain = await host.create(owner="ada")
        red = await host.create(owner="ada", metadata={"colour": "red", 'a"b.c': "é&="})
        blue = await host.create(owner="ada", metadata={"colour": "blue"})
        other = await host.create(owner="bob", metadata={"colour": "red"})
        assert await listed(host) == [blue, red, plain]
        assert await listed(host, **{"metadata.colour": "red"}) == [red]
        assert await listed(host, **{"metadata.colour": "red", 'metadata.a"b.c': "é&="}) == [red]
        assert await listed(host, **{"metadata.colour": "red", "metadata.size": "1"}) == []
        assert await listed(host, image="host") == [blue, red, plain]
        assert await listed(host, image="python") == []
        await host.ask("DELETE", f"/v1/sandboxes/{red}", owner="ada")
        assert await listed(host) == [blue, plain]
        assert await listed(host, state="stopped") == [red]
        everybodys = (await host.admin("GET", "/v1/sandboxes")).json["sandboxes"]
        assert [row["id"] for row in everybodys] == [other, blue, plain]


async def test_a_cursor_of_another_host_works(tmp_path: Path) -> None:
    async with open_host(tmp_path / "a") as one, open_host(tmp_path / "b") as two:
        oldest = await one.create(owner="ada")
        middle = await two.create(owner="ada")
        newest = await one.create(owner="ada")
        page = (await one.ask("GET", "/v1/sandboxes?limit=1", owner="ada")).json
        assert page["sandboxes"][0]["id"] == newest
        assert page["next"] == f"{page['sandboxes'][0]['created_ms']}.{newest}"
        assert await listed(two, before=page["next"]) == [middle]
        created_ms = (await two.ask("GET", f"/v1/sandboxes/{middle}", owner="ada")).json["created_ms"]
        assert await listed(one, before=f"{created_ms}.{middle}") == [oldest]


async def test_a_port_is_made_public_and_private_again(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(public_ports=[3000, 80])
        path = f"/v1/sandboxes/{sandbox}"
        assert (await host.ask("GET", path)).json["public_ports"] == [80, 3000]
        reply = await host.ask("PUT", f"{path}/ports/443", {"public": True})
        assert (reply.status, reply.json["public_ports"]) == (200, [80, 443, 3000])
        for _ in range(2):  # the second time it is so already
            reply = await host.ask("PUT", f"{path}/ports/80", {"public": False})
            assert reply.json["public_ports"] == [443, 3000]
        assert (await host.ask("GET", path)).json["public_ports"] == [443, 3000]
        events = (await host.ask("GET", f"{path}/events")).json["events"]
        told = [event["data"] for event in events if event["kind"] == "port"]
        assert told == [{"port": 443, "public": True}, {"port": 80, "public": False}]
        assert [row.detail for row in await host.audit(action="sandbox.port")] == told
        await host.ask("DELETE", path)
        assert (await host.ask("PUT", f"{path}/ports/80", {"public": True})).code == "wrong_state"


async def test_public_ports_survive_a_pause_and_a_new_timeout(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        path = f"/v1/sandboxes/{sandbox}"
        await host.ask("PUT", f"{path}/ports/80", {"public": True})
        await host.ask("POST", f"{path}/timeout", {"timeout_sec": 60})
        await host.ask("POST", f"{path}/pause")
        assert (await host.ask("PUT", f"{path}/ports/81", {"public": True})).json["state"] == "paused"
        assert (await host.ask("POST", f"{path}/resume")).json["public_ports"] == [80, 81]

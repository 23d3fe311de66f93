"""A host believes tickets and nothing else, on every route of its port; the operator needs none on the unix socket."""

import asyncio
import os
import time
from pathlib import Path

import orjson
import pytest
from websockets.exceptions import InvalidStatus

from contract.ids import new_id
from contract.tickets import HEADER, LIFE_MS, SKEW_MS, Access
from poold.api.app import ATTACH_ROUTES, ROUTES
from poold.api.doors import Door, Names, SocketDoor
from tests.signing import HOSTS, Gateway
from tests.unit.limits.exposition import parse
from tests.unit.poold.poold_host import Host, Reply, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

UNKNOWN = "sb-aaaaaaaaaaaaaaaa"
DOORS = [door for door in ROUTES if isinstance(door, Door) and door.path != "/healthz"]


def target(door: Door | SocketDoor, sandbox: str = UNKNOWN) -> str:
    filled = {"sandbox_id": sandbox, "task_id": sandbox, "owner": "ann", "port": "80", "name": "a", "action": "open"}
    filled |= {"workspace": "w", "version": "1"}
    return door.path.format(**filled)


def method(door: Door) -> str:
    return next(iter(sorted((door.methods or set()) - {"HEAD"})))


async def ask(host: Host, door: Door, ticket: str, sandbox: str = UNKNOWN) -> Reply:
    body = None if method(door) == "GET" else {}
    return await host.knock(method(door), target(door, sandbox), body, **{HEADER: ticket})


async def refused(host: Host, target: str, **headers: str) -> tuple[int, str, str | None]:
    """The status, the code and the mark of a WebSocket that is not opened."""
    with pytest.raises(InvalidStatus) as caught:
        async with host.knock_at_socket(target, **headers):
            pass
    reply = caught.value.response
    return reply.status_code, orjson.loads(reply.body)["error"]["code"], reply.headers.get("warren-not-mine")


# Which ticket opens what.


def test_every_route_of_the_port_says_who_may_go_through() -> None:
    for doors in (ROUTES, ATTACH_ROUTES):
        assert all(isinstance(door, Door | SocketDoor) for door in doors)
    with pytest.raises(TypeError, match="access"):
        Door("GET", "/v1/new", lambda _: None)  # type: ignore[call-arg]


# As decision 10 has it. An admin sees and may end what others have.
TABLE: dict[tuple[str, str], set[str]] = {
    ("GET", "/readyz"): {"admin"},
    ("GET", "/metrics"): {"admin"},
    ("POST", "/v1/sandboxes"): {"write", "admin"},
    ("GET", "/v1/sandboxes"): {"read", "admin"},
    ("GET", "/v1/tasks/{task_id}/request"): {"write", "admin"},  # it has all that was asked for
}


def expected(door: Door) -> set[str]:
    if HOSTS.fullmatch(door.path):
        return {"host"}
    usual = {"read", "admin"} if method(door) == "GET" else {"write", "admin"}
    return TABLE.get((method(door), door.path), usual)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{method(door)} {door.path}")
async def test_a_route_takes_tickets_for_its_access_only(host: Host, door: Door) -> None:
    kind = "tk" if door.path.startswith("/v1/tasks") else "sb"
    sandbox = None if door.rule.names is Names.NONE else new_id(kind, os.urandom)
    for access in Access:
        reply = await ask(host, door, host.gateway.sign("ann", access, sandbox), sandbox or "")
        if access in expected(door):
            assert reply.status not in (401, 403), (access, reply.body)
        else:
            assert (reply.status, reply.code) == (403, "forbidden"), (access, reply.body)


async def test_only_healthz_is_answered_without_a_ticket(host: Host) -> None:
    assert (await host.knock("GET", "/healthz")).status == 200
    for door in DOORS:
        reply = await host.knock(method(door), target(door))
        assert (reply.status, reply.code) == (401, "bad_ticket"), door.path
    for path in ("/v2", "/v1/sandboxes/", "/healthz/", "/admin/status", "//healthz"):
        assert (await host.knock("GET", path)).status == 401
    assert (await refused(host, f"/v1/sandboxes/{UNKNOWN}/terminal"))[:2] == (401, "bad_ticket")
    assert (await refused(host, "/healthz"))[:2] == (401, "bad_ticket")


async def test_the_operators_routes_are_not_on_the_port(host: Host) -> None:
    ticket = host.gateway.sign("ann", Access.ADMIN)
    assert (await host.knock("GET", "/admin/status", **{HEADER: ticket})).code == "no_such_route"


async def test_the_operator_needs_no_ticket_and_says_for_whom(host: Host) -> None:
    made = await host.admin("POST", "/v1/sandboxes", {}, Warren_Owner="ann")
    assert (made.status, made.json["owner"]) == (201, "ann")
    assert (await host.admin("GET", f"/v1/sandboxes/{made.json['id']}", **{HEADER: "nonsense"})).status == 200
    assert (await host.admin("GET", f"/v1/sandboxes/{UNKNOWN}")).code == "not_found"
    assert (await host.admin("GET", "/metrics")).status == 200


async def test_an_owner_in_a_header_is_not_believed_on_the_port(host: Host) -> None:
    made = await host.ask("POST", "/v1/sandboxes", {}, owner="ann", Warren_Owner="bob")
    assert made.json["owner"] == "ann"
    assert (await host.knock("GET", f"/v1/sandboxes/{made.json['id']}", Warren_Owner="ann")).status == 401


# What is wrong with a ticket.


async def bad_tickets(host: Host, sandbox: str) -> dict[str, str]:
    good = host.gateway.sign("ann", Access.READ, sandbox)
    head, payload, signature = good.split(".")
    return {
        "none": "",
        "nonsense": "nonsense",
        "of another cluster": Gateway("here", host.clock).sign("ann", Access.READ, sandbox),
        "for another host": _for(host, "there").sign("ann", Access.READ, sandbox),
        "for another sandbox": host.gateway.sign("ann", Access.READ, UNKNOWN),
        "for no sandbox": host.gateway.sign("ann", Access.READ),
        "without an owner": host.gateway.sign("", Access.READ, sandbox),
        "expired": host.gateway.sign("ann", Access.READ, sandbox, life_ms=-SKEW_MS - 1),
        "good for too long": host.gateway.sign("ann", Access.READ, sandbox, life_ms=LIFE_MS + 60_000),
        "changed": f"{head}.{payload[:-1]}{'A' if payload[-1] != 'A' else 'B'}.{signature}",
        "without its signature": f"{head}.{payload}.",
        "of another version": f"wt2.{payload}.{signature}",
        "too long": good + "A" * 4000,
    }


def _for(host: Host, name: str) -> Gateway:
    """The same gateway, signing for another host."""
    other = Gateway(name, host.clock)
    other._signer = host.gateway._signer
    return other


async def test_a_ticket_that_is_not_good_is_refused_and_written_down(host: Host) -> None:
    sandbox = await host.create(owner="ann")
    tickets = await bad_tickets(host, sandbox)
    for name, ticket in tickets.items():
        reply = await host.knock("GET", f"/v1/sandboxes/{sandbox}", **{HEADER: ticket})
        assert (reply.status, reply.code) == (401, "bad_ticket"), name
        assert reply.json["error"]["message"]
        assert ticket.encode() not in reply.body or not ticket
    rows = await host.audit(action="ticket.refused")
    assert len(rows) == len(tickets)
    assert {row.detail["path"] for row in rows} == {f"/v1/sandboxes/{sandbox}"}
    assert {row.detail["code"] for row in rows} == {"bad_ticket"}
    assert {row.owner for row in rows} == {"ann", "unknown"}  # whom the signature vouches for, and nobody
    written = orjson.dumps([row.view() for row in rows])
    assert not [ticket for ticket in tickets.values() if len(ticket) > 20 and ticket.split(".")[1].encode() in written]


async def test_two_tickets_in_one_request_are_refused(host: Host) -> None:
    sandbox = await host.create()
    ticket = host.gateway.ticket("GET", f"/v1/sandboxes/{sandbox}")
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    writer.write(host.head("GET", f"/v1/sandboxes/{sandbox}", f"{HEADER}: {ticket}", "Connection: close"))
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_a_ticket_that_was_good_is_not_when_its_time_is_up(host: Host) -> None:
    sandbox = await host.create()
    ticket = host.gateway.sign("local", Access.READ, sandbox)
    assert (await host.knock("GET", f"/v1/sandboxes/{sandbox}", **{HEADER: ticket})).status == 200
    host.clock.advance((LIFE_MS + SKEW_MS) / 1000 + 60)  # the test's clock may be ahead of itself
    assert (await host.knock("GET", f"/v1/sandboxes/{sandbox}", **{HEADER: ticket})).code == "bad_ticket"


async def test_a_refusal_for_the_wrong_access_is_written_down_with_its_owner(host: Host) -> None:
    sandbox = await host.create(owner="ann")
    ticket = host.gateway.sign("ann", Access.READ, sandbox)
    reply = await host.knock("DELETE", f"/v1/sandboxes/{sandbox}", X_Request_Id="mine", **{HEADER: ticket})
    assert (reply.status, reply.code) == (403, "forbidden")
    (row,) = await host.audit(action="ticket.refused")
    assert (row.owner, row.sandbox, row.request, row.detail["code"]) == ("ann", sandbox, "mine", "forbidden")
    assert (row.detail["method"], row.detail["client"]) == ("DELETE", "127.0.0.1")


async def test_a_flood_of_bad_tickets_does_not_fill_the_audit(host: Host) -> None:
    began, count = time.monotonic(), 300

    async def flood() -> None:
        for _ in range(count // 10):
            assert (await host.knock("GET", "/v1/sandboxes")).status == 401

    await asyncio.gather(*(flood() for _ in range(10)))
    rows = await host.audit(action="ticket.refused")
    assert 20 <= len(rows) <= 21 + 20 * (time.monotonic() - began)
    metrics = parse((await host.ask("GET", "/metrics")).body)["poold_tickets_refused_total"].samples
    told = {dict(labels)["audited"]: number for (_, labels), number in metrics.items()}
    assert told == {"yes": len(rows), "no": count - len(rows)}


# The keys that are believed.


async def test_a_key_that_is_added_is_believed_and_one_that_is_removed_is_not(host: Host, tmp_path: Path) -> None:
    sandbox, other = await host.create(), Gateway("here", host.clock)
    keys = tmp_path / "pki" / "tickets.pub"

    async def status(gateway: Gateway) -> int:
        path = f"/v1/sandboxes/{sandbox}"
        return (await host.knock("GET", path, **gateway.headers("GET", path))).status

    async def until(gateway: Gateway, expected: int) -> None:
        async with asyncio.timeout(5):
            while await status(gateway) != expected:
                await asyncio.sleep(0.05)

    assert (await status(host.gateway), await status(other)) == (200, 401)
    keys.write_bytes(host.gateway.public + other.public)
    await until(other, 200)
    assert await status(host.gateway) == 200
    keys.write_bytes(b"nonsense")  # what is wrong with the file changes nothing
    keys.write_bytes(other.public)
    await until(host.gateway, 401)
    assert await status(other) == 200


@pytest.mark.parametrize("keys", [None, b"", b"nonsense"])
async def test_a_host_without_keys_answers_healthz_only_and_says_so(
    tmp_path: Path, keys: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_host(tmp_path, keys=keys) as host:
        assert (await host.knock("GET", "/healthz")).status == 200
        reply = await host.ask("GET", "/v1/sandboxes")
        assert (reply.status, reply.code) == (401, "bad_ticket")
        assert "tickets.pub" in reply.json["error"]["message"]
        assert (await host.admin("GET", "/v1/sandboxes")).status == 200
    assert "tickets.pub" in caplog.text


# Whose sandbox it is.


async def test_another_owners_sandbox_is_not_there_on_any_route(host: Host) -> None:
    sandbox = await host.create(owner="ann")
    for door in DOORS:
        if "sandbox_id" in door.path:
            path = target(door, sandbox)
            reply = await host.ask(method(door), path, None if method(door) == "GET" else {}, owner="bob")
            assert (reply.status, reply.code) == (404, "not_found"), path
            assert "warren-not-mine" not in reply.headers
    terminal = f"/v1/sandboxes/{sandbox}/terminal"
    answer = await refused(host, terminal, **host.gateway.headers("WS", terminal, "bob"))
    assert answer == (404, "not_found", None)
    attach = host.gateway.sign("bob", Access.ATTACH, sandbox)
    assert (await refused(host, f"{terminal}?ticket={attach}"))[:2] == (404, "not_found")
    rows = await host.audit(action="ticket.refused")
    assert rows
    assert {(row.owner, row.sandbox, row.detail["why"]) for row in rows} == {
        ("bob", sandbox, "the sandbox is another owner's")
    }
    assert (await host.ask("GET", f"/v1/sandboxes/{sandbox}", owner="ann")).json["state"] == "running"


async def test_an_admin_reaches_everybodys_sandboxes(host: Host) -> None:
    sandbox = await host.create(owner="ann")
    ticket = {HEADER: host.gateway.sign("root", Access.ADMIN, sandbox)}
    assert (await host.knock("GET", f"/v1/sandboxes/{sandbox}", **ticket)).json["owner"] == "ann"
    assert (await host.knock("DELETE", f"/v1/sandboxes/{sandbox}", **ticket)).json["state"] == "stopped"


async def test_a_list_has_the_owners_own_and_an_admins_everybodys(host: Host) -> None:
    ann, bob = await host.create(owner="ann"), await host.create(owner="bob")

    def ids(reply: Reply) -> set[str]:
        return {sandbox["id"] for sandbox in reply.json["sandboxes"]}

    assert ids(await host.ask("GET", "/v1/sandboxes", owner="ann")) == {ann}
    assert ids(await host.ask("GET", "/v1/sandboxes?owner=bob", owner="ann")) == {ann}
    assert ids(await host.ask("GET", "/v1/sandboxes", owner="carl")) == set()
    admin = {HEADER: host.gateway.sign("root", Access.ADMIN)}
    assert ids(await host.knock("GET", "/v1/sandboxes", **admin)) == {ann, bob}
    assert ids(await host.knock("GET", "/v1/sandboxes?owner=bob", **admin)) == {bob}
    assert ids(await host.admin("GET", "/v1/sandboxes")) == {ann, bob}


async def test_a_sandbox_that_was_never_here_is_told_apart(host: Host) -> None:
    for door in DOORS:
        if "sandbox_id" in door.path:
            reply = await host.ask(method(door), target(door), None if method(door) == "GET" else {})
            assert (reply.status, reply.code, reply.headers["warren-not-mine"]) == (404, "not_mine", "1"), door.path
    terminal = f"/v1/sandboxes/{UNKNOWN}/terminal"
    assert await refused(host, terminal, **host.gateway.headers("WS", terminal)) == (404, "not_mine", "1")
    gone = await host.create()
    await host.ask("DELETE", f"/v1/sandboxes/{gone}")
    assert (await host.ask("GET", f"/v1/sandboxes/{gone}")).json["state"] == "stopped"  # it was here


# Attach tickets.


async def test_an_attach_ticket_opens_one_terminal_once(host: Host) -> None:
    sandbox = await host.create()
    terminal = f"/v1/sandboxes/{sandbox}/terminal"
    for place in ("query", "header"):
        ticket = host.gateway.sign("local", Access.ATTACH, sandbox)
        asked = f"{terminal}?ticket={ticket}" if place == "query" else terminal
        headers = {} if place == "query" else {HEADER: ticket}
        async with host.knock_at_socket(asked, **headers) as socket:
            assert orjson.loads(await socket.recv())["type"] == "start"
        assert (await refused(host, asked, **headers))[:2] == (401, "bad_ticket")
    assert [row.detail["code"] for row in await host.audit(action="ticket.refused")] == ["bad_ticket"] * 2


async def test_a_ticket_in_the_query_is_good_for_attaching_only(host: Host) -> None:
    sandbox = await host.create()
    write = host.gateway.sign("local", Access.WRITE, sandbox)
    attach = host.gateway.sign("local", Access.ATTACH, sandbox)
    path = f"/v1/sandboxes/{sandbox}"
    assert (await refused(host, f"{path}/terminal?ticket={write}"))[:2] == (401, "bad_ticket")
    for asked in (path, f"{path}/files"):
        assert (await host.knock("GET", f"{asked}?ticket={attach}")).status == 401
        assert (await host.knock("GET", asked, **{HEADER: attach})).status == 403
    async with host.knock_at_socket(f"{path}/terminal?ticket={attach}") as socket:  # it was not used up by all this
        assert orjson.loads(await socket.recv())["type"] == "start"


def test_whoever_has_no_certificate_reaches_a_terminal_and_nothing_else() -> None:
    health, terminal = ATTACH_ROUTES
    assert (health.path, terminal.path) == ("/healthz", "/v1/sandboxes/{sandbox_id}/terminal")
    assert terminal.rule.access == {Access.ATTACH}

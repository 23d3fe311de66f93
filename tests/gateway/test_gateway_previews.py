"""Previews through a real gateway and a real host of the local engine: its sandboxes share this machine's loopback, so
the services in them are those of the test.
"""

import asyncio
import contextlib
import re
import socket
import struct

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.gateway.cluster import Reply as Answered
from tests.gateway.cluster import ask, wait_for
from tests.gateway.preview_place import DOMAIN, LIMIT_S, Asked, Place, answering, mirror, service
from tests.ports import free_port
from tests.unit.poold.poold_host import OperatorsConnection

HTML = "text/html,application/xhtml+xml"


async def test_a_service_on_loopback_is_seen_by_its_owner_under_both_addresses(place: Place) -> None:
    async with service(mirror) as port:
        by_host = await place.as_owner(port, "/a%20b?x=1")
        assert (by_host.status, by_host.json["line"]) == (200, "GET /a%20b?x=1 HTTP/1.1")
        assert by_host.json["host"] == f"localhost:{port}"
        assert by_host.json["x-forwarded-host"] == place.host(port)
        by_path = await place.get(f"/p/{place.sandbox}/{port}/a?x=1", Host="127.0.0.1", X_API_Key=place.key)
        assert (by_path.status, by_path.json["line"]) == (200, "GET /a?x=1 HTTP/1.1")
        assert by_path.json["x-forwarded-prefix"] == f"/p/{place.sandbox}/{port}"
        assert "sandbox" in by_path["content-security-policy"]


async def test_no_service_sees_a_key_and_every_service_sees_what_is_for_it(place: Place) -> None:
    async with service(mirror) as port:
        reply = await place.of(port, X_API_Key=place.key, Authorization="Bearer theirs", Cookie="a=1; warren-preview=x")
        assert (reply.json["authorization"], reply.json["cookie"]) == ("Bearer theirs", "a=1")
        assert place.key[4:] not in reply.body.decode()
        assert not [name for name in reply.json if name.startswith("warren")]


async def test_without_key_or_link_a_preview_is_private(place: Place) -> None:
    async with service(answering()) as port:
        refused = await place.of(port)
        assert (refused.status, refused.json["error"]["code"]) == (401, "preview_private")
        assert "keeps cookies" in refused.json["error"]["message"]
        page = await place.of(port, Accept=HTML)
        assert (page.status, page["content-type"]) == (401, "text/html; charset=utf-8")
        assert b"private" in page.body
        nowhere = await place.get("/", Host=f"{port}-sb-aaaaaaaaaaaaaaaa.{DOMAIN}")
        assert nowhere.json["error"]["code"] == "preview_private", "whether there is such a sandbox is not said"


async def test_another_owners_key_opens_nothing(place: Place) -> None:
    async with service(answering()) as port:
        reply = await place.of(port, Authorization=f"Bearer {place.stranger}")
        assert reply.status == 401
        wrong = await place.of(port, Authorization=f"Bearer wrn_{'0' * 40}")
        assert (wrong.status, wrong.json["error"]["code"]) == (401, "bad_key")


async def test_a_public_port_is_seen_by_everybody_until_it_is_private_again(place: Place) -> None:
    async with service(answering()) as port:
        assert place.api("PUT", f"/ports/{port}", {"public": True}).status == 200
        assert (await place.of(port)).body == b"hello"
        assert (await place.of(port, Authorization=f"Bearer {place.stranger}")).body == b"hello"
        assert (await place.of(port + 1)).status == 401
        assert place.api("PUT", f"/ports/{port}", {"public": False}).status == 200
        async with asyncio.timeout(LIMIT_S):
            while (await place.of(port)).status != 401:
                await asyncio.sleep(0.1)


async def test_whoever_comes_without_a_key_has_the_rate_of_their_address(place: Place) -> None:
    gateway = place.cluster.add_gateway(GATEWAY_DOMAIN=DOMAIN, GATEWAY_PREVIEW_RATE="1")
    place.cluster.wait_until_alive()

    async def visit(address: str, **headers: str) -> Answered:
        return await asyncio.to_thread(
            ask, gateway.port, "GET", "/", address=address, Host=place.host(port), Accept=HTML, **headers
        )

    async with service(answering()) as port:
        assert place.api("PUT", f"/ports/{port}", {"public": True}).status == 200
        seen = [await visit("127.0.0.7") for _ in range(12)]
        assert [reply.status for reply in seen[:2]] == [200, 200]
        refused = next(reply for reply in seen if reply.status != 200)
        assert (refused.status, refused.code) == (429, "rate_limited")
        assert (refused.headers["retry-after"], refused.headers["ratelimit-limit"]) == ("1", "2")
        assert 429 in [await refused_socket(gateway.port, place, port) for _ in range(4)]
        assert (await visit("127.0.0.8")).status == 200
        assert (await visit("127.0.0.7", X_API_Key=place.key)).status == 200
    wait_for(lambda: "gateway.too_fast" in audited(place), "the refusal in the audit")


async def test_a_link_becomes_a_cookie_that_opens_this_preview_only(place: Place) -> None:
    async with service(mirror) as port, service(mirror) as other:
        url = place.link(port, expires_sec=600)
        target = url.partition(DOMAIN)[2].partition("/")[2]
        opened = await place.of(port, f"/{target}&deep=1")
        assert (opened.status, opened["location"], opened["referrer-policy"]) == (303, "/?deep=1", "no-referrer")
        cookie = opened["set-cookie"]
        assert re.search(r"; Path=/; Max-Age=(600|599); HttpOnly; SameSite=Lax$", cookie)
        pair = cookie.partition(";")[0]
        seen = await place.of(port, Cookie=f"mine=1; {pair}")
        assert (seen.status, seen.json["cookie"]) == (200, "mine=1")
        assert (await place.of(other, Cookie=pair)).status == 401
        assert (await place.of(port, Cookie=pair[:-2] + "xx")).status == 401


async def test_a_page_beside_a_preview_changes_nothing_with_its_visitors_pass(place: Place) -> None:
    async with service(mirror) as port:
        cookie = await place.cookie(port)
        own, beside = f"http://{place.host(port)}", f"http://3000-sb-bbbbbbbbbbbbbbbb.{DOMAIN}"
        for method in ("POST", "DELETE"):
            assert (await place.of(port, method=method, Cookie=cookie, Origin=own)).status == 200
            assert (await place.of(port, method=method, Cookie=cookie, Origin=beside)).status == 401
            assert (await place.as_owner(port, method=method, Origin=beside)).status == 200
        assert (await place.of(port, Cookie=cookie, Origin=beside)).json["origin"] == beside


async def test_a_pass_is_found_behind_any_number_of_others(place: Place) -> None:
    async with service(mirror) as port:
        others = "; ".join(f"warren-preview=wt1.{number}.x" for number in range(40))
        assert (await place.of(port, Cookie=f"{others}; {await place.cookie(port)}")).status == 200


async def test_curl_opens_a_link_as_a_refusal_tells_it_to(place: Place) -> None:
    async with service(mirror) as port:
        told = (await place.of(port)).json["error"]["message"]
        url = place.link(port)
        assert "curl -L -b '' LINK" in told
        there = f"{place.host(port)}:{place.gateway.port}:127.0.0.1"
        for cookies, status in ((["-b", ""], "200"), ([], "401")):
            argv = ["curl", "-sS", "-L", *cookies, "--noproxy", "*", "--resolve", there, "-w", "\n%{http_code}", url]
            curl = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            assert (await curl.communicate())[0].decode().splitlines()[-1] == status


async def test_by_path_the_cookie_of_a_link_is_for_that_path(place: Place) -> None:
    async with service(mirror) as port:
        given = place.link(port).partition("?")[2]
        prefix = f"/p/{place.sandbox}/{port}"
        opened = await place.get(f"{prefix}/x?{given}", Host="127.0.0.1")
        assert (opened.status, opened["location"]) == (303, f"{prefix}/x")
        assert f"; Path={prefix}/; " in opened["set-cookie"]
        bare = await place.get(prefix + "?a=1", Host="127.0.0.1")
        assert (bare.status, bare["location"]) == (308, f"{prefix}/?a=1")


@pytest.mark.parametrize("given", ["nonsense", "wt1.e30.AA", ""])
async def test_a_link_that_nobody_signed_is_refused(place: Place, given: str) -> None:
    reply = await place.of(80, f"/?warren-pass={given}", Accept=HTML)
    assert reply.status == 401
    assert "set-cookie" not in dict(reply.headers)


async def test_links_are_for_owners_and_for_a_week_at_most(place: Place) -> None:
    assert place.api("POST", "/ports/80/link", {"expires_sec": 7 * 24 * 3600 + 1}).status == 400
    assert place.api("POST", "/ports/0/link", {}).status == 400
    assert place.api("POST", "/ports/80/link", {}, key=place.stranger).status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [("0-{id}.box.test", 400), ("99999-{id}.box.test", 400), ("80-sb-x.box.test", 404), ("80-{id}.evil.test", 421)],
)
async def test_a_forged_host_is_refused_and_written_down(place: Place, host: str, status: int) -> None:
    name = host.format(id=place.sandbox)
    assert (await place.get("/", Host=name)).status == status
    assert (await place.get("/", Host=name, Accept=HTML)).status == status


async def test_a_port_where_nobody_listens_yet_says_so_to_people_and_programs(place: Place) -> None:
    port = free_port()
    reply = await place.as_owner(port)
    assert (reply.status, reply.json["error"]["code"]) == (502, "port_closed")
    page = await place.as_owner(port, Accept=HTML)
    assert (page.status, b"refresh" in page.body) == (502, True)


async def test_what_is_not_http_is_the_services_fault(place: Place) -> None:
    async def babble(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")

    async with service(babble) as port:
        reply = await place.as_owner(port)
        assert (reply.status, reply.json["error"]["code"]) == (502, "bad_service_reply")


async def test_bodies_go_both_ways(place: Place) -> None:
    async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = await asked.reader.readexactly(int(asked.headers["content-length"]))
        await answering(body)(asked, writer)

    data = bytes(range(256)) * 20_000
    async with service(echo) as port:
        reply = await place.as_owner(port, method="POST", body=data)
        assert (reply.status, reply.body) == (200, data)


async def test_events_arrive_as_they_are_written_and_the_service_sees_the_client_leave(place: Place) -> None:
    left = asyncio.Event()
    say = asyncio.Event()

    async def events(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await say.wait()
        writer.write(b"data: 2\n\n")
        with contextlib.suppress(ConnectionError):
            await asked.reader.read()
        left.set()

    async with service(events) as port, asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", place.gateway.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {place.host(port)}\r\nX-API-Key: {place.key}\r\n\r\n".encode())
        await reader.readuntil(b"data: 1\n\n")
        say.set()
        await reader.readuntil(b"data: 2\n\n")
        writer.transport.abort()
        await left.wait()


@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked", "X-None: until close"])
async def test_a_service_that_breaks_off_shows_as_a_cut_and_never_as_an_end(place: Place, framing: str) -> None:
    async def cut(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = b"5\r\nhello\r\n" if "chunked" in framing else b"hello"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode() + body)
        await writer.drain()
        await sent.wait()
        broken = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, broken)
        writer.transport.abort()
        raise ConnectionResetError

    sent = asyncio.Event()
    async with service(cut) as port, asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", place.gateway.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {place.host(port)}\r\nX-API-Key: {place.key}\r\n\r\n".encode())
        head = await reader.readuntil(b"hello")
        sent.set()
        rest = b""
        with contextlib.suppress(ConnectionError):
            rest = await reader.read()
        writer.close()
        assert b"200" in head
        assert not rest.endswith(b"0\r\n\r\n")
        assert len(rest) < 1000


async def test_a_service_that_ends_its_answer_by_closing_is_heard_to_the_end(place: Place) -> None:
    async def old(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 300_000)
        await writer.drain()
        writer.close()
        raise ConnectionResetError

    async with service(old) as port:
        reply = await place.as_owner(port)
        assert (len(reply.body), reply.is_whole) == (300_000, True)


async def test_a_tunnel_is_used_again_for_the_next_request(place: Place) -> None:
    opened = 0

    async def count(asked: Asked, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        await answering()(asked, writer)

    peers: set[object] = set()
    async with service(count) as port:
        for _ in range(5):
            assert (await place.as_owner(port)).status == 200
        opened = len(peers)
    assert opened == 1


def test_refusals_of_previews_are_in_a_hosts_audit_and_no_secret_is_in_a_log(shared: Place) -> None:
    said = ask(shared.gateway.port, "GET", "/?warren-pass=wt1.secret.x", Host=f"80-{shared.sandbox}.evil.test")
    assert said.status == 421
    wait_for(lambda: "gateway.preview_refused" in audited(shared), "the refusal in the audit", lambda: audited(shared))
    for log in (shared.gateway.log, shared.cluster.hosts["host-0"].log):
        text = log.read_text()
        assert shared.key not in text
        assert "wt1." not in text


async def refused_socket(gateway: int, place: Place, port: int) -> int:
    """The status with which a WebSocket is refused, by the gateway or by a service that speaks none."""
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"ws://127.0.0.1:{gateway}/p/{place.sandbox}/{port}/", local_addr=("127.0.0.7", 0), proxy=None)
    return caught.value.response.status_code


def audited(place: Place) -> str:
    """All actions in the audit of the host, as its operator sees them."""
    connection = OperatorsConnection(place.cluster.folder / "host-0" / "run" / "poold.sock")
    with contextlib.closing(connection):
        connection.request("GET", "/admin/audit?limit=1000")
        return connection.getresponse().read().decode()

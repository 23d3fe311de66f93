"""Connections to ports over WebSockets, against a whole poold: bytes, ends, refusals, and what is kept of them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from contract.models import LOCAL_OWNER
from contract.tickets import HEADER, Access
from tests.unit.poold.poold_host import LIMIT_S, Host, open_host

BAD_PORTS = ("0", "65536", "x", "-1", "111111")


@contextlib.asynccontextmanager
async def tunnel(
    host: Host, sandbox: str, port: object = 3000, owner: str = LOCAL_OWNER, access: Access = Access.PORT
) -> AsyncIterator[ClientConnection]:
    ticket = host.gateway.sign(owner, access, sandbox)
    async with (
        asyncio.timeout(LIMIT_S),
        host.knock_at_socket(f"/v1/sandboxes/{sandbox}/ports/{port}", **{HEADER: ticket}) as socket,
    ):
        yield socket


async def refused(
    host: Host, sandbox: str, port: object = 3000, owner: str = LOCAL_OWNER, access: Access = Access.PORT
) -> tuple[int, str]:
    """The status and the code with which a connection is refused before the upgrade."""
    with pytest.raises(InvalidStatus) as info:
        async with tunnel(host, sandbox, port, owner, access):
            pass
    response = info.value.response
    return response.status_code, orjson.loads(response.body or b"")["error"]["code"]


async def all_of(socket: ClientConnection, count: int) -> bytes:
    got = b""
    while len(got) < count:
        data = await socket.recv()
        assert isinstance(data, bytes)
        got += data
    return got


async def closed(socket: ClientConnection) -> tuple[int | None, str | None]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code, socket.close_reason


async def test_bytes_go_both_ways_and_each_direction_has_its_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox) as socket:
            await socket.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await all_of(socket, 18) == b"GET / HTTP/1.1\r\n\r\n"
            await socket.send(b"")
            await socket.send(b"\x00\xff")
            assert await all_of(socket, 2) == b"\x00\xff"
            await socket.send("eof")
            assert await socket.recv() == "eof"
            assert await closed(socket) == (1000, "")


async def test_an_answer_that_comes_after_the_end_of_the_question_arrives(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox, 5) as socket:
            for _ in range(40):
                await socket.send(bytes(100_000))
            await socket.send("eof")
            assert await socket.recv() == b"4000000"
            assert await socket.recv() == "eof"


async def test_megabytes_arrive_unchanged(tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 20
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox) as socket, asyncio.TaskGroup() as tasks:

            async def send() -> None:
                for start in range(0, len(data), 1 << 18):
                    await socket.send(data[start : start + (1 << 18)])

            tasks.create_task(send())
            assert await all_of(socket, len(data)) == data


async def test_what_cannot_be_reached_is_refused_before_the_upgrade_with_its_status(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        assert await refused(host, sandbox, 1) == (502, "port_closed")
        assert await refused(host, sandbox, 2) == (501, "guest_too_old")
        assert await refused(host, sandbox, 3) == (502, "guest_failed")
        for port in BAD_PORTS:
            assert await refused(host, sandbox, port) == (400, "bad_field")
        assert (await refused(host, "sb-" + "a" * 16))[0] == 404
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")).status == 200
        assert await refused(host, sandbox) == (409, "wrong_state")
        assert (await host.exec(await host.create(), "echo on")).status == 200


async def test_a_ticket_for_anything_else_opens_no_port(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        for access in set(Access) - {Access.PORT}:
            assert await refused(host, sandbox, access=access) == (403, "forbidden")
        assert await refused(host, sandbox, owner="somebody-else") == (404, "not_found")


async def test_a_visitor_without_an_owner_sees_public_ports_and_nothing_else(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, private = await host.create(public_ports=[3000]), await host.create()
        async with tunnel(host, sandbox, owner="") as socket:
            await socket.send(b"hello")
            assert await socket.recv() == b"hello"
        assert await refused(host, sandbox, 3001, owner="") == (404, "not_found")
        assert await refused(host, private, owner="") == (404, "not_found")
        reply = await host.ask("PUT", f"/v1/sandboxes/{sandbox}/ports/3000", {"public": False})
        assert reply.status == 200
        assert await refused(host, sandbox, owner="") == (404, "not_found")


async def test_a_paused_sandbox_is_resumed_for_a_connection_if_that_is_its_rule(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(auto_resume=True)
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")).status == 200
        async with tunnel(host, sandbox) as socket:
            await socket.send(b"hello")
            assert await socket.recv() == b"hello"


async def test_a_service_that_breaks_off_shows_as_broken_and_not_as_an_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox, 4) as socket:
            await socket.send(b"x")
            assert await closed(socket) == (4500, "guest_failed")


@pytest.mark.parametrize(("frames", "code"), [(["hello"], 4400), (["eof", "eof"], 4400), (["eof", b"x"], 4400)])
async def test_frames_that_mean_nothing_close_with_4400(tmp_path: Path, frames: list[str | bytes], code: int) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox, 6) as socket:
            for frame in frames:
                await socket.send(frame)
            assert (await closed(socket))[0] == code


async def test_a_client_that_leaves_ends_the_connection_in_the_machine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        async with tunnel(host, sandbox) as socket:
            await host.until(lambda: guest.streams == 1)
            socket.transport.abort()
            await host.until(lambda: guest.streams == 0)


async def test_an_open_connection_keeps_the_sandbox_from_being_idle(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(idle_sec=60)
        async with tunnel(host, sandbox) as socket:
            await socket.send(b"x")
            await socket.recv()
            assert (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json["next"]["why"] != "idle"
        await host.until(lambda: not host.sandboxes.machines()[0].activity.is_busy)
        assert (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json["next"]["why"] == "idle"


async def test_a_pause_breaks_the_connection(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox) as socket:
            assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")).status == 200
            assert await closed(socket) == (4400, "sandbox_paused")


async def test_a_connection_is_written_down_with_its_port_and_its_bytes(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox) as socket:
            await socket.send(b"12345")
            await all_of(socket, 5)
            await socket.send("eof")
            await closed(socket)
        await refused(host, sandbox, 1)
        rows = [row for row in await host.audit(sandbox=sandbox) if row.action.startswith("port.")]
        found = {(row.action, row.bytes, str(row.detail)) for row in rows}
        assert found == {
            ("port.connect", None, "{'port': '3000'}"),
            ("port.connect.end", 10, "{}"),
            ("port.connect", None, "{'port': '1'}"),
            ("port.connect.end", None, "{'error': 'port_closed'}"),
        }


async def test_a_client_that_does_not_read_stops_the_machine(tmp_path: Path) -> None:
    """What is on the way is bounded: the machine's side cannot send for ever into buffers of ours."""
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with tunnel(host, sandbox) as socket:
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 256 << 20:  # the echo comes back to a client that takes only its first frames
                    async with asyncio.timeout(2):
                        await socket.send(bytes(1 << 18))
                    sent += 1 << 18
            assert sent < 64 << 20
            socket.transport.abort()

"""Terminals over WebSockets, against a whole poold: both sides may leave first, and nobody's nonsense hurts another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import Host, open_host


@contextlib.asynccontextmanager
async def terminal(host: Host, sandbox: str, query: str = "") -> AsyncIterator[ClientConnection]:
    async with host.dial(f"/v1/sandboxes/{sandbox}/terminal{query}") as socket:
        yield socket


async def started(socket: ClientConnection) -> None:
    assert orjson.loads(await socket.recv()) == {"type": "start", "pid": 9}
    assert await socket.recv() == b"$ "


async def end_of(socket: ClientConnection) -> tuple[list[object], int | None, str | None]:
    """All that still comes, and how the connection was closed."""
    said = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            said.append(await socket.recv())
    return said, socket.close_code, socket.close_reason


async def test_a_terminal_carries_bytes_both_ways_until_its_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with terminal(host, sandbox, "?cols=100&rows=30") as socket:
            await started(socket)
            await socket.send(b"ls\n")
            assert await socket.recv() == b"ls\n"
            await socket.send(b"")
            await socket.send('{"type": "resize", "cols": 120, "rows": 40}')
            guest = host.engine.guest_of(sandbox)
            await host.until(lambda: guest.sizes == [{"cols": 120, "rows": 40}])
            await socket.send(b"exit\n")
            said, code, _ = await end_of(socket)
            assert orjson.loads(said[-1]) == {"type": "exit", "exit_code": 0, "signal": None, "duration_ms": 3}
            assert code == 1000


GARBAGE = [
    "garbage",
    "{",
    "[]",
    "{}",
    '{"type": "resize"}',
    '{"type": "resize", "cols": -1, "rows": 5}',
    '{"type": "resize", "cols": true, "rows": 5}',
    '{"type": "resize", "cols": 80, "rows": 100000}',
    '{"type": "resize", "cols": 80, "rows": 24, "more": 1}',
    '{"type": "kill"}',
    "[" * 5000,
    "ü" * 1000,
]


async def test_text_that_is_no_message_closes_with_4400(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        for text in GARBAGE:
            async with terminal(host, sandbox) as socket:
                await started(socket)
                await socket.send(text)
                said, code, _ = await end_of(socket)
                assert (orjson.loads(said[-1])["type"], code) == ("error", 4400), text[:50]
        assert (await host.exec(sandbox, "echo on")).status == 200


async def test_too_much_input_in_one_frame_closes_with_4400(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host, terminal(host, await host.create()) as socket:
        await started(socket)
        await socket.send(bytes((1 << 20) + 1))
        said, code, _ = await end_of(socket)
        assert code == 4400
        assert orjson.loads(said[-1])["error"]["code"] == "bad_request"


BAD_TERMINALS = {
    "?cols=0": "bad_field",
    "?rows=x": "bad_field",
    "?rows=" + "9" * 5000: "bad_field",
    "?user=Root%20": "bad_field",
    "?pid=1;2": "bad_field",
    "?pid=" + "1" * 20: "bad_field",
    "?pid=9&after=-1": "bad_field",
    "?pid=9&after=0%20HTTP/1.1%0d%0aX:%20y": "bad_field",
    "?pid=9&after=%E2%82%AC": "bad_field",
}


async def test_a_terminal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        for query, expected in BAD_TERMINALS.items():
            async with terminal(host, sandbox, query) as socket:
                said, code, reason = await end_of(socket)
                assert (orjson.loads(said[0])["error"]["code"], code, reason) == (expected, 4400, expected), query[:50]
        for unknown, expected in {"sb-aaaaaaaaaaaaaaaa": "not_mine", "nonsense": "not_found"}.items():
            with pytest.raises(InvalidStatus) as refused:
                async with terminal(host, unknown):
                    pass
            reply = refused.value.response
            assert (reply.status_code, orjson.loads(reply.body)["error"]["code"]) == (404, expected)
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        async with terminal(host, sandbox) as socket:
            assert (await end_of(socket))[1:] == (4400, "wrong_state")


async def test_a_guest_that_breaks_a_terminal_closes_with_4500(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        for said_by_guest, code, reason in (
            (b"garbage", 4500, "guest_failed"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 4500, "guest_failed"),
            (refusal(500, "internal"), 4500, "guest_failed"),
            (refusal(429, "too_many_processes"), 4400, "too_many_processes"),
        ):
            guest.says["/terminal"] = said_by_guest
            async with terminal(host, sandbox) as socket:
                assert (await end_of(socket))[1:] == (code, reason)


async def test_a_client_that_leaves_detaches_and_may_come_back(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        async with terminal(host, sandbox) as socket:
            await started(socket)
        await host.until(guest.typed.empty)
        async with terminal(host, sandbox, "?pid=9&after=0") as socket:
            await started(socket)


async def test_a_machine_that_dies_ends_its_terminals(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create()
        async with terminal(host, sandbox) as socket, terminal(host, other) as unharmed:
            await started(socket)
            await started(unharmed)
            host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
            said, code, reason = await end_of(socket)
            assert (code, reason) == (4500, "machine_died")
            assert orjson.loads(said[-1])["type"] == "error"
            await unharmed.send(b"on\n")
            assert await unharmed.recv() == b"on\n"


async def test_destroying_a_sandbox_ends_its_terminals(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with terminal(host, sandbox) as socket:
            await started(socket)
            await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
            assert (await end_of(socket))[1:] == (4400, "sandbox_stopped")


async def test_many_terminals_at_once_do_not_mix(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        boxes = [await host.create() for _ in range(4)]

        async def talk(sandbox: str) -> None:
            async with terminal(host, sandbox) as socket:
                await started(socket)
                for number in range(20):
                    text = f"{sandbox} {number}\n".encode()
                    await socket.send(text)
                    assert await socket.recv() == text

        async with asyncio.timeout(10):
            await asyncio.gather(*(talk(sandbox) for sandbox in boxes))


async def test_a_plain_request_to_a_terminal_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        reply = await host.ask("GET", f"/v1/sandboxes/{await host.create()}/terminal")
        assert reply.status in (404, 426)
        with pytest.raises(Exception, match=r".+"):
            async with host.dial("/v1/nowhere"):
                pass

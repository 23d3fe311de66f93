"""Bytes through the proxy: slow readers, either side leaving first, half-closed connections, nothing left behind."""

import asyncio
import gc
import socket
import warnings

import pytest
from egress_world import Client, Poold, World, echo, hosts

from poold.egress.proxy.ends import KEPT_BYTES, LITTLE_BYTES, MUCH_BYTES
from poold.egress.proxy.visits import FEW_FLOWS

CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
POLICY = hosts("allowed.example", ports=(22, 80))


async def tunnel(world: World) -> Client:
    client = await world.explicit()
    await client.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert await client.read(len(CONNECTED)) == CONNECTED
    return client


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


async def gone(world: World) -> None:
    async with asyncio.timeout(10):
        while world.door.visits or world.control.gate.flows:
            await asyncio.sleep(0.01)


async def test_a_half_closed_connection_still_answers(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data[::-1])

    await world.serve(server, port=22)
    await poold.rule(POLICY)
    client = await tunnel(world)
    await client.send(b"\x00" + b"abc" * 100_000)
    client.writer.write_eof()
    assert await client.rest() == (b"\x00" + b"abc" * 100_000)[::-1]
    await poold.row(up=300_001, down=300_001, why=None)
    await gone(world)


async def test_a_server_that_leaves_first_is_heard_to_the_end(world: World, poold: Poold) -> None:
    async def server(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye" * 100_000)

    await world.serve(server, port=22)
    await poold.rule(POLICY)
    client = await tunnel(world)
    assert await client.rest() == b"bye" * 100_000
    client.writer.close()
    await poold.row(down=300_000)
    await gone(world)


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_reset_of_one_side_is_a_reset_of_the_other(world: World, poold: Poold, who: str) -> None:
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(3) == b"\x00go"
        if who == "server":
            reset(writer)
            return
        try:
            seen.set_result("end" if not await reader.read() else "data")
        except ConnectionError:
            seen.set_result("reset")

    await world.serve(server, port=22)
    await poold.rule(POLICY)
    client = await tunnel(world)
    await client.send(b"\x00go")
    if who == "client":
        reset(client.writer)
        assert await asyncio.wait_for(seen, 5) == "reset"
    else:
        assert await client.rest() == b"reset"
    await poold.row(verdict="allowed", up=3)
    await gone(world)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_who_does_not_read_slows_the_other_one_down(world: World, poold: Poold, direction: str) -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(b"\x00" * 65536)
            await writer.drain()
            sent += 65536

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if direction == "down":
            await flood(writer)
        else:
            await asyncio.sleep(3600)

    await world.serve(server, port=22)
    await poold.rule(POLICY)
    client = await tunnel(world)
    flooding = asyncio.create_task(flood(client.writer)) if direction == "up" else None
    before = -1
    while before != sent:  # until nothing moves any more
        before = sent
        await asyncio.sleep(0.3)
    (visit,) = world.door.visits
    assert visit.upstream is not None
    for end in (visit.client, visit.upstream):
        assert end._transport is not None
        assert len(end.data) + end._transport.get_write_buffer_size() < 1_000_000
    assert sent > 0
    if flooding is not None:
        flooding.cancel()
        await asyncio.wait((flooding,))
    await poold.rule(hosts("other.example"))
    await poold.row(why="cut")
    await gone(world)


async def test_a_client_that_does_not_read_plain_http_holds_little(world: World, poold: Poold) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    await world.serve(server)
    await poold.rule(POLICY)
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    await asyncio.sleep(1)
    (visit,) = world.door.visits
    assert visit.upstream is not None
    for end in (visit.client, visit.upstream):
        assert end._transport is not None
        assert len(end.data) + end._transport.get_write_buffer_size() < 1_000_000
    client.writer.transport.abort()
    await gone(world)


async def test_nothing_is_left_of_connections_that_end_in_any_way(world: World, poold: Poold) -> None:
    await world.serve(echo, port=22)
    await poold.rule(POLICY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for index in range(30):
            client = await tunnel(world) if index % 3 else await world.explicit()
            await client.send(b"\x00x")
            if index % 2:
                client.writer.transport.abort()
            else:
                client.writer.close()
        await gone(world)
        gc.collect()
    assert [str(each.message) for each in caught if "transport" in str(each.message)] == []


async def test_a_door_that_closes_ends_what_is_under_way(world: World, poold: Poold) -> None:
    await world.serve(echo, port=22)
    await poold.rule(POLICY)
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    open_one = await tunnel(world)
    world.before_connect = wait
    dialling = await world.explicit()
    await dialling.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    silent = await world.explicit()
    while len(world.door.visits) < 3:
        await asyncio.sleep(0.01)
    await world.door.__aexit__(None, None, None)
    assert not world.door.visits
    assert not world.control.gate.flows
    for client in (open_one, dialling, silent):
        assert await client.rest() == b"reset"


async def test_an_error_that_nobody_foresaw_ends_one_connection(
    world: World, poold: Poold, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.serve(echo, port=22)
    await poold.rule(POLICY)

    async def fail() -> None:
        raise RuntimeError("surprise")

    world.before_connect = fail
    client = await world.explicit()
    await client.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert await client.rest() == b"reset"
    assert "surprise" in capsys.readouterr().err
    world.before_connect = None
    await tunnel(world)


async def test_little_is_read_at_once_of_who_is_not_let_through_or_is_one_of_many(world: World, poold: Poold) -> None:
    async def server(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 2_000_000)
        await asyncio.sleep(3600)

    await world.serve(server, port=22)
    await poold.rule(POLICY)
    silent = await world.explicit()
    silent.writer.write(b"CONNECT " + b"x" * 2_000_000)
    tunnels = [await tunnel(world) for _ in range(FEW_FLOWS + 8)]
    await asyncio.sleep(0.5)
    kept = 0
    for visit in world.door.visits:
        if visit.upstream is not None:
            assert visit.client._transport is not None
            kept += visit.client._transport.get_write_buffer_size()
        else:
            assert len(visit.client.data) <= KEPT_BYTES + LITTLE_BYTES
    assert kept <= FEW_FLOWS * (MUCH_BYTES + 65_536) + 8 * (LITTLE_BYTES + 65_536)
    for client in (silent, *tunnels):
        reset(client.writer)
    await gone(world)

"""What poold says and hears: rules, rows, connections that wait, the end; and limits."""

import asyncio
from dataclasses import replace

from egress_world import OTHER, PUBLIC, Client, Poold, Web, World, client_hello, echo, hosts, limited

from contract.network import HostRule
from poold.egress.policy import Level, Policy
from poold.egress.proxy.refusals import TLS_ALERT

CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(world: World, name: str = "allowed.example", port: int = 22) -> Client:
    client = await world.explicit()
    await client.send(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
    assert await client.read(len(CONNECTED)) == CONNECTED
    await client.send(b"\x00hello")
    assert await client.read(6) == b"\x00hello"
    return client


async def ssh(world: World) -> None:
    await world.serve(echo, port=22)
    await world.serve(echo, OTHER, 22)


BOTH = hosts("allowed.example", "other.example", ports=(22, 80, 443))


async def test_connections_that_a_new_policy_refuses_are_cut_before_it_is_said_to_be_in_force(
    world: World, poold: Poold
) -> None:
    await ssh(world)
    await poold.rule(BOTH)
    cut, kept = await tunnel(world), await tunnel(world, "other.example")
    await poold.rule(hosts("other.example", ports=(22,)))
    assert [flow.target.name for flow in world.control.gate.flows.values()] == ["other.example"]
    assert await cut.rest() == b"reset"
    await poold.row(verdict="allowed", name="allowed.example", why="cut", up=6, down=6)
    await kept.send(b"more")
    assert await kept.read(4) == b"more"


async def test_a_policy_that_changes_while_a_name_is_dialled_cuts_it(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(BOTH)
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go.wait()

    world.before_connect = wait
    client = await world.explicit()
    await client.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    await reached.wait()
    await poold.rule(hosts("other.example"))
    go.set()
    assert await client.rest() == b"reset"
    await poold.row(verdict="allowed", name="allowed.example", why="cut", id=None)
    assert not world.control.gate.flows


async def test_the_next_sandbox_does_not_get_the_connections_of_the_last(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(BOTH, "sb-a")
    client = await tunnel(world)
    await poold.rule(BOTH, "sb-b")
    assert await client.rest() == b"reset"
    await poold.row(sandbox="sb-a", why="cut")


async def test_what_is_held_passes_when_somebody_allows_it(world: World, poold: Poold) -> None:
    await ssh(world)
    await world.serve(Web())
    await poold.rule(replace(hosts("x.example"), hold_s=60))
    connect = await world.explicit()
    await connect.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    waiting = await poold.next("waiting")
    assert (waiting["name"], waiting["port"], waiting["address"]) == ("allowed.example", 22, None)
    plain = await world.explicit()
    await plain.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert (await poold.next("waiting"))["port"] == 80
    tls = await world.transparent(PUBLIC, 443)
    await tls.send(client_hello("allowed.example"))
    assert (await poold.next("waiting"))["port"] == 443
    raw = await world.transparent(OTHER, 22)
    assert (await poold.next("waiting"))["address"] == OTHER
    await poold.rule(replace(hosts("y.example"), hold_s=60))
    await world.serve(echo, port=443)
    await poold.rule(replace(BOTH, hold_s=60))
    assert await connect.read(len(CONNECTED)) == CONNECTED
    assert (await plain.answer())[1] == b"ok"
    hello = client_hello("allowed.example")
    assert len(await tls.read(len(hello))) == len(hello)
    await poold.rule(hosts("allowed.example"))
    assert await raw.rest() == b"reset"
    assert not world.control.gate.held


async def test_what_is_held_is_refused_when_the_time_is_over(world: World, poold: Poold) -> None:
    await poold.rule(replace(hosts("x.example"), hold_s=1))
    client = await world.transparent(PUBLIC, 443)
    await client.send(client_hello("allowed.example"))
    assert await client.rest() == TLS_ALERT
    await poold.row(verdict="refused", why="policy", name="allowed.example")


async def test_who_leaves_is_not_held_any_longer(world: World, poold: Poold) -> None:
    await poold.rule(replace(hosts("x.example"), hold_s=60))
    client = await world.explicit()
    await client.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    await poold.next("waiting")
    client.writer.close()
    await poold.row(verdict="refused", why="policy")
    assert not world.control.gate.held


async def test_whoever_talks_while_held_is_not_listened_to_for_ever(world: World, poold: Poold) -> None:
    await poold.rule(replace(hosts("x.example"), hold_s=60))
    client = await world.explicit()
    await client.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    await poold.next("waiting")
    client.writer.write(b"x" * 20_000_000)
    for _ in range(50):
        await asyncio.sleep(0.01)
    assert max(len(visit.client.data) for visit in world.door.visits) < 1_000_000
    client.writer.transport.abort()


async def test_rows_are_told_again_until_they_are_taken(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(BOTH)
    for _ in range(3):
        client = await tunnel(world)
        client.writer.write_eof()
        await client.rest()
    assert [(await poold.next("row"))["number"] for _ in range(3)] == [1, 2, 3]
    await poold.say(do="taken", number=2)
    still = await tunnel(world)
    await poold.next("open")
    newer = await world.poold()
    assert (await newer.row(number=3))["name"] == "allowed.example"
    assert (await newer.next("open"))["name"] == "allowed.example"
    still.writer.write_eof()
    await newer.row(number=4)
    try:
        await poold.next("row")
    except ConnectionError:
        pass
    else:
        raise AssertionError("the older connection was not replaced")


async def test_rows_wait_for_somebody_to_tell(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(BOTH)
    poold.writer.close()
    await poold.writer.wait_closed()
    client = await tunnel(world)
    client.writer.write_eof()
    await client.rest()
    await (await world.poold()).row(number=1, name="allowed.example")


async def test_hello_says_which_rule_is_in_force(world: World, poold: Poold) -> None:
    await poold.rule(BOTH, "sb-x")
    reader, writer = await asyncio.open_unix_connection(str(world.path))
    assert await reader.readline() == b'{"told":"hello","version":1,"slot":7,"pid":4711,"number":1,"sandbox":"sb-x"}\n'
    writer.close()
    await writer.wait_closed()


async def test_the_end_cuts_everything_and_tells_what_is_left(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(BOTH)
    client = await tunnel(world)
    refused = await world.explicit()
    await refused.send(b"CONNECT denied.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert b"403" in await refused.rest()
    await poold.say(do="end")
    rows = [await poold.next("row"), await poold.next("row")]
    assert {row["why"] for row in rows} == {"cut", "policy"}
    await poold.next("ended")
    assert await client.rest() == b"reset"
    assert world.is_over.is_set()


async def test_nonsense_from_poold_ends_that_connection_only(world: World, poold: Poold) -> None:
    await poold.rule(BOTH)
    await poold.say(do="dance")
    assert await poold.reader.read() == b""
    assert world.control.gate.number == 1
    await (await world.poold()).rule(BOTH)


async def test_refusals_that_are_alike_are_one_row(world: World, poold: Poold) -> None:
    world.control.gate._alike_s = 0.5
    for _ in range(5):
        client = await world.explicit()
        await client.send(b"CONNECT denied.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
        await client.rest()
    await poold.row(times=5, why="policy")


async def test_too_many_connections_are_refused(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, connections=2))
    first, _second = await tunnel(world), await tunnel(world)
    third = await world.explicit()
    await third.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert b"429 Too Many Requests\r\nWarren-Egress: refused; why=too_many" in await third.rest()
    await poold.row(verdict="refused", why="too_many")
    first.writer.write_eof()
    await first.rest()
    await poold.row(verdict="allowed")
    await tunnel(world)


async def test_a_flood_of_connections_waits_outside(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, connections=1))
    silent = [await world.explicit() for _ in range(120)]
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert len(world.door.visits) <= 1 + 64
    for client in silent:
        client.writer.close()
    await tunnel(world)


async def test_too_many_connections_a_second_are_refused(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, connects_per_sec=1))
    await tunnel(world)
    await tunnel(world)
    third = await world.explicit()
    await third.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert b"why=too_fast" in await third.rest()


async def test_when_the_bytes_are_used_up_everything_is_cut(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, up_mb=1))
    one, two = await tunnel(world), await tunnel(world)
    one.writer.write(b"x" * 1_100_000)
    assert (await one.rest()).endswith(b"reset")
    assert (await two.rest()).endswith(b"reset")
    await poold.row(why="byte_limit", verdict="allowed")
    await poold.row(why="byte_limit", verdict="allowed")
    third = await world.explicit()
    await third.send(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x.example\r\n\r\n")
    assert b"why=byte_limit" in await third.rest()
    await poold.rule(limited(BOTH, up_mb=1), "sb-b")
    await tunnel(world)


async def test_bytes_of_plain_http_count_too(world: World, poold: Poold) -> None:
    await world.serve(Web(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 2_000_000))
    await poold.rule(limited(BOTH, down_mb=1))
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    got = await client.rest()
    assert got.endswith(b"reset")
    assert len(got) < 1_400_000
    await poold.row(why="byte_limit")


async def test_another_idle_time_counts_from_its_rule_on(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, idle_sec=3600))
    idle = await tunnel(world)
    await poold.rule(limited(BOTH, idle_sec=1))
    async with asyncio.timeout(8):
        assert await idle.rest() == b"reset"


async def test_a_connection_on_which_nothing_moves_is_cut(world: World, poold: Poold) -> None:
    await ssh(world)
    await poold.rule(limited(BOTH, idle_sec=1))
    idle = await tunnel(world)
    busy = await tunnel(world)

    async def chat() -> None:
        while True:
            await busy.send(b"x")
            await busy.read(1)
            await asyncio.sleep(0.1)

    chatting = asyncio.create_task(chat())
    assert await idle.rest() == b"reset"
    await poold.row(why="idle", verdict="allowed")
    assert not chatting.done()
    chatting.cancel()
    await asyncio.wait((chatting,))


async def test_a_request_on_a_kept_connection_is_held_to_a_new_policy(world: World, poold: Poold) -> None:
    await world.serve(Web())
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(HostRule("allowed.example", (80,), (), ("/a", "/b")),)),)))
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/a HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(HostRule("allowed.example", (80,), (), ("/a",)),)),)))
    await client.send(b"GET http://allowed.example/b HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert b"why=policy" in await client.rest()


async def test_requests_to_a_server_that_closes_each_time_are_counted_as_connections(
    world: World, poold: Poold
) -> None:
    await world.serve(Web(closes=True))
    await poold.rule(limited(BOTH, connects_per_sec=1))
    client = await world.explicit()
    for _ in range(2):
        await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
        assert (await client.answer())[1] == b"ok"
        await asyncio.sleep(0.05)
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert b"why=too_fast" in await client.rest()

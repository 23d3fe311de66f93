"""What a guest may try at its proxy's expense, or at that of those who read its rows."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from egress_world import OTHER, PUBLIC, Poold, Web, World, hosts, limited

from contract.egress import Open
from contract.egress import Row as Taken
from contract.network import HostRule, NetRule
from poold.egress import names
from poold.egress import policy as decisions
from poold.egress.addresses import Address
from poold.egress.policy import Level, Policy, Target, decide
from poold.egress.proxy import dial
from poold.egress.proxy.dial import Dialer
from poold.egress.proxy.firsts import First, is_worth_a_look, read_first
from poold.egress.proxy.refusals import Refusal
from poold.egress.proxy.rows import Row, Rows


async def test_a_rule_of_any_length_makes_rows_that_poold_takes(world: World, poold: Poold) -> None:
    rule = HostRule("allowed.example", (80,), ("GET",), (*(f"/{'x' * 500}/{number}" for number in range(31)), "/a"))
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(rule,)),)))
    await world.serve(Web())
    client = await world.explicit()
    await client.send(b"GET http://allowed.example/a HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
    assert (await client.answer())[1] == b"ok"
    assert Open.read(await poold.next("open")).name == "allowed.example"
    row = Taken.read(await poold.next("row"))
    assert row.rule is not None
    assert row.rule.startswith("GET allowed.example:80 /xxx")


@pytest.mark.parametrize("where", ["10.1.2.3", "169.254.169.254", PUBLIC])
async def test_a_guest_is_not_told_where_names_of_the_hosts_network_are(world: World, poold: Poold, where: str) -> None:
    world.names["internal.example"] = [where]
    world.own = {PUBLIC}
    await poold.rule(hosts("internal.example"))
    client = await world.explicit()
    await client.send(b"CONNECT internal.example:443 HTTP/1.1\r\nHost: internal.example:443\r\n\r\n")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 403")
    assert where.encode() not in answer
    await poold.row(verdict="refused", name="internal.example", address=where)


def test_long_names_are_none() -> None:
    assert names.canonical("x" * 60_000) is None
    longest = ".".join(["x" * 49] * 5) + ".exa"
    assert len(longest) == 253
    assert names.canonical(f"{longest}.") == longest
    assert names.canonical(f"{longest}x.") is None


async def test_names_that_are_never_answered_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "RESOLVE_S", 0.01)
    asked: list[str] = []

    async def never(name: str) -> Sequence[Address]:
        asked.append(name)
        await asyncio.Event().wait()
        return []

    async def nowhere(address: Address, port: int) -> object:
        raise ConnectionRefusedError

    dialer = Dialer(never, nowhere, lambda _: False)  # type: ignore[arg-type]
    for number in range(2 * dial.MAX_LOOKUPS):
        with pytest.raises(Refusal) as refusal:
            await dialer.dial(f"a{number}.example", None, 443, lambda _: None)
        assert refusal.value.why == "resolve_failed"
    assert len(asked) == dial.MAX_LOOKUPS
    await dialer.close()


@pytest.mark.parametrize("line", [b"A " + b"x" * 65_000, b"A" + b" " * 65_000, b"A " + b" HTTP/" * 10_000])
def test_a_line_that_comes_byte_by_byte_is_not_read_anew_with_each(line: bytes) -> None:
    data, looked, looks = bytearray(), 0, 0
    for byte in line:
        data.append(byte)
        if is_worth_a_look(data, looked):
            looked, looks = len(data), looks + 1
            assert read_first(bytes(data)) is First.UNCLEAR
    assert looks < 2_200
    assert is_worth_a_look(data + b"\n", looked)
    assert is_worth_a_look(data + b"\0", looked)


def test_what_begins_with_nothing_but_blanks_is_read_as_strictly_as_http() -> None:
    assert read_first(b"\r\n" * 511) is First.UNCLEAR
    assert read_first(b"\r\n" * 512) is First.HTTP


def test_many_rules_for_addresses_are_read_once() -> None:
    nets = tuple(NetRule(f"10.{number}.0.0/16", 443) for number in range(256))
    policy = Policy(levels=tuple(Level(name, nets=nets) for name in ("host", "key", "image", "sandbox")))
    target = Target(443, None, ip_address("10.255.1.1"))
    decide(policy, target)
    before = decisions._network.cache_info().misses
    decide(policy, target)
    assert decisions._network.cache_info().misses == before


async def test_a_server_that_always_closes_does_not_make_many_connections_one(world: World, poold: Poold) -> None:
    """Each has its row, with where it went, and counts as one, though the guest has only one of its own."""
    await poold.rule(limited(hosts("allowed.example"), connects_per_sec=2))
    web = Web(closes=True)
    await world.serve(web)
    client = await world.explicit()
    for number in range(4):
        await client.send(b"GET http://allowed.example/%d HTTP/1.1\r\nHost: allowed.example\r\n\r\n" % number)
        assert (await client.answer())[1] == b"ok"
        await asyncio.sleep(0.05)  # until it is seen that the server has closed
    await client.send(b"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    assert b"why=too_fast" in await client.rest()
    for _ in range(4):
        await poold.row(verdict="allowed", name="allowed.example", address=PUBLIC)
    assert web.connections == 4


@pytest.mark.parametrize("header", [b"X-HTTP-Method-Override: DELETE", b"X-Original-URL: /admin", b"x-rewrite-url: /b"])
async def test_a_header_that_some_servers_take_for_the_request_is_not_for_narrow_rules(
    world: World, poold: Poold, header: bytes
) -> None:
    narrow = HostRule("allowed.example", (80,), ("GET",), ("/a",))
    await poold.rule(Policy(levels=(Level("sandbox", hosts=(narrow, HostRule("other.example", (80,)))),)))
    await world.serve(web := Web())
    await world.serve(web, OTHER)
    for name, is_allowed in ((b"allowed.example", False), (b"other.example", True)):
        client = await world.explicit()
        await client.send(b"GET http://%b/a HTTP/1.1\r\nHost: %b\r\n%b\r\n\r\n" % (name, name, header))
        assert ((await client.answer())[1] == b"ok") is is_allowed
    assert len(web.heads) == 1


def test_refusals_that_are_all_different_are_few_rows_in_the_long_run() -> None:
    rows = Rows(lambda: None)
    for second in range(3600):
        for number in range(150):
            rows.refuse(Row("sb-1", second * 1000, "refused", "dns", name=f"a{second}-{number}.example", why="policy"))
        rows.flush()
        for row in rows.next():
            rows.taken(row["number"])
    told = rows._number
    assert told < 5_000 + 3600 * 7
    rows.refuse(Row("sb-1", 3_700_000, "refused", "tls", name="later.example", why="policy"))
    rows.flush()
    assert [row["name"] for row in rows.next()][-1] == "later.example"

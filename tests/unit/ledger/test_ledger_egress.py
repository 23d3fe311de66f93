"""Connections in the ledger: each once, whoever tells it again, and with what it used."""

from dataclasses import replace

from contract.egress import Row
from contract.models import Caller
from contract.network import HostRule, Mode, NetRule, Network, Within
from contract.states import Event
from poold.ledger import audit, egress, events, retention, sandboxes, usage
from tests.unit.ledger.rows import box, count, memory

ROW = Row(
    sandbox="sb-0000000000000001",
    at_ms=2000,
    verdict="allowed",
    via="tls",
    name="a.example",
    address="93.184.215.14",
    port=443,
    rule="a.example:443",
    why=None,
    up=10,
    down=20,
    duration_ms=30,
    times=1,
    number=1,
    id=7,
)


def refused(number: int, name: str = "b.example") -> Row:
    return replace(ROW, verdict="refused", why="policy", name=name, number=number, up=0, down=0, rule=None, id=None)


def test_a_row_is_kept_once_however_often_it_is_told() -> None:
    with memory() as db:
        sandboxes.add(db, box(1, owner="ann"))
        sandboxes.move(db, box(1).id, Event.CLAIM, now_ms=1)
        sandboxes.move(db, box(1).id, Event.READY, now_ms=1)
        for rows in ([ROW], [ROW, refused(2)], [refused(2), refused(3)]):
            egress.add(db, "1.1", rows, set(), now_ms=3000)
        listed = egress.listed(db, ROW.sandbox or "", limit=10)
        assert [(row["verdict"], row["name"]) for row in listed] == [
            ("allowed", "a.example"),
            ("refused", "b.example"),
            ("refused", "b.example"),
        ]
        assert listed[0]["up"] == 10
        assert listed[0]["duration_ms"] == 30
        assert usage.totals(db, "ann", now_ms=1)[0].egress_bytes == 10
        assert audit.verify(db).ok


def test_bytes_of_a_sandbox_that_never_came_to_run_keep_no_row_from_being_written() -> None:
    with memory() as db:
        sandboxes.add(db, box(1, owner="ann"))
        sandboxes.move(db, box(1).id, Event.CLAIM, now_ms=1)
        sandboxes.move(db, box(1).id, Event.FAIL, now_ms=1, reason="its creation failed")
        egress.add(db, "1.1", [ROW, refused(2)], set(), now_ms=3000)
        assert [row["up"] for row in egress.listed(db, ROW.sandbox or "", limit=10)] == [10, 0]


def test_rows_of_another_proxy_and_of_the_host_itself_are_others() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        egress.add(db, "1.1", [refused(1)], set(), now_ms=1)
        egress.add(db, "1.2", [refused(1)], set(), now_ms=1)
        egress.add(db, "1.2", [refused(0)], set(), now_ms=1)
        assert len(egress.listed(db, ROW.sandbox or "", limit=10)) == 3


def test_rows_of_nobody_are_not_kept() -> None:
    with memory() as db:
        egress.add(db, "1.1", [replace(ROW, sandbox=None), refused(2)], set(), now_ms=1)
        assert count(db, "audit") == 0


def test_pages_and_verdicts() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        egress.add(db, "1.1", [refused(1), replace(ROW, number=2, up=0), refused(3)], set(), now_ms=1)
        everything = egress.listed(db, ROW.sandbox or "", limit=10)
        assert egress.listed(db, ROW.sandbox or "", limit=2) == everything[:2]
        assert egress.listed(db, ROW.sandbox or "", after=everything[0]["seq"], limit=10) == everything[1:]
        assert egress.listed(db, ROW.sandbox or "", limit=10, verdict="allowed") == everything[1:2]


def test_what_is_told_is_an_event_as_well() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        egress.add(db, "1.1", [refused(1), refused(2, "c.example")], {1}, now_ms=1)
        told = [event for event in events.after(db, ROW.sandbox or "", 0, 10) if event.kind == "egress_refused"]
        assert [event.data["name"] for event in told] == ["c.example"]
        assert told[0].by == "host"


def test_a_policy_and_those_around_it_come_back_as_they_were() -> None:
    network = Network(Mode.LIST, (HostRule("a.example", (8443,)),), (NetRule("10.0.0.0/8", 5432),), hold_sec=9)
    within = (Within("key", Network(Mode.OPEN)), Within("image", Network(Mode.REGISTRIES)))
    with memory() as db:
        sandboxes.add(db, replace(box(1), network=network, within=within))
        found = sandboxes.get(db, box(1).id)
        assert (found.network, found.within) == (network, within)
        changed = sandboxes.set_network(db, box(1).id, Network(), now_ms=5, request=Caller().request)
        assert (changed.network, changed.within) == (Network(), within)
        assert [event.kind for event in events.after(db, box(1).id, 0, 10)] == ["created", "network"]


def test_what_is_known_of_proxies_of_long_ago_goes() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        egress.add(db, "1.1", [refused(1)], set(), now_ms=1000)
        day_ms = 24 * 3600 * 1000
        retention.sweep(db, retention.Keep(), now_ms=29 * day_ms)
        assert count(db, "proxies") == 1
        retention.sweep(db, retention.Keep(), now_ms=31 * day_ms)
        assert count(db, "proxies") == 0

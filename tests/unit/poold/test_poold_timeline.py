"""Guests' events in the timelines of their sandboxes: each once, in order, and never at the cost of another."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.sandboxes.timeline import BURST, KEPT_BYTES, PER_SECOND, Allowance, _bounded
from tests.unit.poold.poold_fake_guest import EVENTS, FakeGuest, chunk, refusal
from tests.unit.poold.poold_host import Host, open_host
from tests.unit.poold.poold_ledger import held

pytestmark = pytest.mark.usefixtures("nothing_warm", "at_once")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.timeline.BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr("poold.sandboxes.timeline.AGAIN_AFTER_S", 0.02)


async def told(host: Host, sandbox: str) -> list[dict[str, Any]]:
    """What the guest told, as the timeline has it. The timeline has no gaps."""
    page = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events?limit=1000")).json["events"]
    assert [event["seq"] for event in page] == list(range(1, len(page) + 1))
    return [event for event in page if event["kind"] not in ("created", "starting", "running", "saving", "paused")]


async def until_told(host: Host, sandbox: str, count: int) -> list[dict[str, Any]]:
    while len(found := await told(host, sandbox)) < count:
        pass
    return found


async def with_guest(host: Host) -> tuple[str, FakeGuest]:
    sandbox = await host.create()
    return sandbox, host.engine.guest_of(sandbox)


async def test_events_of_a_guest_are_told_as_they_come(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        async with host.follow(f"/v1/sandboxes/{sandbox}/events?after=3") as stream:
            for number in range(20):
                guest.tell("process_started", pid=number, args=["ä" * number])
                event = await stream.next()
                assert event is not None
                assert (event[0], event[1], event[2]["data"]["pid"]) == (4 + number, "process_started", number)
        assert len(await told(host, sandbox)) == 20


async def test_a_guest_that_is_cut_off_goes_on_without_duplicates(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        for number in range(3):
            guest.tell("process_started", n=number)
        await until_told(host, sandbox, 3)
        guest.tell_raw(b"nonsense\n\n")  # the host hangs up, and asks again
        await host.until(lambda: "/events?after=3" in guest.asked)
        guest.events.pop()
        guest.tell("process_started", n=3)
        found = await until_told(host, sandbox, 4)
        assert [event["data"]["n"] for event in found] == [0, 1, 2, 3]


async def test_a_pause_and_a_resume_lose_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        guest.tell("process_started", n=0)
        await until_told(host, sandbox, 1)
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        guest.tell("process_ended", n=1)
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")
        found = [event for event in await until_told(host, sandbox, 3) if event["kind"] != "resumed"]
        assert [event["data"]["n"] for event in found] == [0, 1]


async def test_numbers_that_come_again_are_told_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        for number in (1, 2, 2, 1, 1, 3, 2, 7, 5):
            guest.tell_raw(b'id: %d\nevent: told\ndata: {"n": %d}\n\n' % (number, number))
        guest.tell_raw(b'event: gap\ndata: {"first": 9}\n\n')
        guest.tell_raw(b'event: gap\ndata: {"first": 9}\n\n')
        found = await until_told(host, sandbox, 7)
        assert [event["data"].get("n") for event in found] == [1, 2, 3, 7, 5, None, None]
        assert [event["kind"] for event in found[-2:]] == ["gap", "gap"]


HOSTILE: dict[str, bytes] = {
    "garbage": b"garbage\r\n\r\n",
    "a refusal": refusal(500, "internal"),
    "no stream": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "an odd event": EVENTS + chunk(b"xxx\n\n"),
    "an event without an end": EVENTS + chunk(b"x" * 65_536) * 6,
    "an event that is too deep": EVENTS + chunk(b"event: a\ndata: " + b'{"a":' * 500 + b"1" + b"}" * 500 + b"\n\n"),
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_stream_costs_its_own_timeline_only(tmp_path: Path, said: bytes) -> None:
    async with open_host(tmp_path) as host:
        host.engine.guests_say["/events"] = said
        bad = await host.create()
        host.engine.guests_say.clear()
        good, guest = await with_guest(host)
        asked = host.engine.guest_of(bad).asked
        await host.until(lambda: asked.count("/events?after=0") >= 3)  # it is asked again and again
        guest.tell("process_started", n=1)
        assert len(await until_told(host, good, 1)) == 1
        assert await told(host, bad) == []
        assert (await host.exec(bad, "echo on")).status == 200


async def test_a_guest_cannot_speak_in_its_hosts_name(tmp_path: Path) -> None:
    """It may tell of its own end; who follows its timeline is not sent away for it."""
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        async with host.follow(f"/v1/sandboxes/{sandbox}/events?after=3") as stream:
            guest.tell("stopped", state="stopped")
            guest.tell("error")
            guest.tell("process_started", n=1)
            while (event := await stream.next()) is not None and event[1] != "process_started":
                pass
            assert event is not None
            await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
            assert [kind for _, kind, _ in await stream.rest()] == ["stopped"]
        assert await host.state(sandbox) == "stopped"


async def test_what_a_guest_told_while_its_end_was_written_down_does_not_follow_its_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        guest.tell("process_started", n=1)
        await until_told(host, sandbox, 1)
        async with held(host.services.ledger) as waiting:
            destroying = asyncio.ensure_future(host.sandboxes.destroy(sandbox))
            await host.until(lambda: waiting() == 1)
            guest.tell("process_ended", n=2)
            guest.tell_raw(b'event: gap\ndata: {"first": 9}\n\n')
            await host.until(lambda: waiting() >= 2)
        await destroying
        await host.audit()  # whatever waited is written
        assert [event["kind"] for event in await told(host, sandbox)] == ["process_started", "stopped"]


async def test_an_event_with_much_data_is_kept_without_it(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        guest.tell("process_started", pid=7, cmd="x" * 100_000)
        guest.tell("process_started", **{f"n{number}": number for number in range(10_000)})
        found = await until_told(host, sandbox, 2)
        assert [event["data"] for event in found] == [{"pid": 7, "truncated": True}, {"truncated": True}]


async def test_a_flood_is_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.sandboxes.timeline.BURST", 20)
    monkeypatch.setattr("poold.sandboxes.timeline.PER_SECOND", 0.001)
    async with open_host(tmp_path) as host:
        sandbox, guest = await with_guest(host)
        await host.until(lambda: "/events?after=0" in guest.asked)
        for number in range(30):
            guest.tell("told", n=number)
            await until_told(host, sandbox, min(number + 1, 21))  # one by one: each is a batch
        guest.tell("told", n=30)
        assert len(await told(host, sandbox)) <= 22
        assert (await host.exec(sandbox, "echo on")).status == 200  # it may go on working all the same


# The allowance and the bound, by themselves.


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5000)), max_size=50))
def test_no_guest_tells_more_than_its_allowance(asked: list[tuple[float, int]]) -> None:
    now = 0.0
    allowance = Allowance(lambda: now)
    total = 0
    for idle_s, count in asked:
        now += idle_s
        assert total <= BURST + now * PER_SECOND + 1e-6  # whoever waits as told never asks with nothing left
        total += count
        now += allowance.wait_s(count)


def test_who_was_quiet_has_no_more_than_a_burst() -> None:
    now = 0.0
    allowance = Allowance(lambda: now)
    now = 1e9
    assert allowance.wait_s(BURST) == 0
    assert allowance.wait_s(int(PER_SECOND)) == pytest.approx(1.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=50), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=200), JSON, max_size=60))
def test_what_is_kept_of_an_event_is_bounded(data: dict[str, Any]) -> None:
    kept = _bounded(data)
    assert len(orjson.dumps(kept)) <= KEPT_BYTES
    assert kept == data or kept["truncated"] is True

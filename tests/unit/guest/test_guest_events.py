"""Events are numbered without gaps, can be read again, and say so when they are gone; an identity is given once."""

import asyncio
import base64
import os
import re
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from warren_guest import frames
from warren_guest.events import KEPT, Events
from warren_guest.fields import Fields
from warren_guest.identity import Identity, NewIdentity, parse_identity
from warren_guest.routes import _become

from tests.unit.guest.client import Client, Conversation


async def take(client: Client, target: str, count: int, **headers: str) -> list[dict[str, Any]]:
    stream = await client.stream("GET", target, **headers)
    found: list[dict[str, Any]] = []
    async for event in stream.events():
        found.append(event)
        if len(found) == count:
            await stream.close()
            break
    return found


async def rest_of(stream: Conversation) -> None:
    """Read on. Ends only with an error."""
    while True:
        await stream.piece()


async def test_events_can_be_read_again_from_any_number(fresh_guest: Client) -> None:
    for i in range(3):
        await fresh_guest.run(f"exit {i}", env={"TOKEN": "s3cret"}, tag=f"t{i}")
    events = await take(fresh_guest, "/events?after=0", 6)
    assert [event["number"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event["event"] for event in events] == ["process_started", "process_ended"] * 3
    assert set(events[0]) == {"number", "event", "at_ms", "pid", "cmd", "args", "user", "tag"}
    assert [event["exit_code"] for event in events[1::2]] == [0, 1, 2]
    assert "s3cret" not in str(events)
    later = await take(fresh_guest, "/events", 2, Last_Event_ID="4")
    assert [event["number"] for event in later] == [5, 6]


async def test_without_a_number_the_stream_begins_with_the_next_event(fresh_guest: Client) -> None:
    await fresh_guest.run("exit 0")
    stream = await fresh_guest.stream("GET", "/events")
    assert await stream.piece() == b":\n\n"
    await fresh_guest.run("exit 0")
    assert (await anext(stream.events()))["number"] == 3


async def test_a_number_that_this_machine_never_gave_is_a_gap(fresh_guest: Client) -> None:
    await fresh_guest.run("exit 0")
    events = await take(fresh_guest, "/events?after=70", 3)
    assert [(event["event"], event.get("number")) for event in events] == [
        ("gap", None),
        ("process_started", 1),
        ("process_ended", 2),
    ]
    assert events[0]["first"] == 1


async def test_what_is_gone_is_told_as_a_gap_to_new_and_to_slow_readers() -> None:
    events = Events()
    slow = events.tell(None)
    assert await anext(slow) == b":\n\n"
    for i in range(KEPT + 5):
        events.emit("process_ended", {"pid": i})
    assert (events.first, events.last) == (6, KEPT + 5)
    for reader in (slow, events.tell(3)):
        told = b""
        while b"event: gap" not in told:
            told = await anext(reader)
        assert b"id:" not in told
        assert b'"first":6' in told
        assert (await anext(reader)).startswith(b"id: 6\n")
        await reader.aclose()
    last = events.tell(KEPT + 4)
    await anext(last)
    assert (await anext(last)).startswith(b"id: %d\n" % (KEPT + 5))
    await last.aclose()


def identity(**changes: Any) -> dict[str, Any]:
    whole = {
        "generation": 1,
        "id": "sb-1",
        "unix_ns": 1_790_000_000_000_000_000,
        "entropy": base64.b64encode(os.urandom(32)).decode(),
        "hostname": "sb-1",
        "machine_id": "0123456789abcdef" * 2,
        "env": {"FROM_IDENTITY": "yes"},
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


async def test_an_identity_is_given_once_per_generation(fresh_guest: Client) -> None:
    assert (await fresh_guest.call("POST", "/identity", identity())).json == {"generation": 1}
    again = await fresh_guest.call("POST", "/identity", identity(id="sb-2", env={}))
    assert (again.status, again.code) == (409, "already_identified")
    health = (await fresh_guest.call("GET", "/health")).json
    assert (health["generation"], health["id"]) == (1, "sb-1")
    frames = await fresh_guest.run("echo $FROM_IDENTITY")
    assert b"yes\n" in [payload for _, payload in frames]
    later = await fresh_guest.call("POST", "/identity", identity(generation=5, id=None, env=None))
    assert later.json == {"generation": 5}
    frames = await fresh_guest.run("echo $FROM_IDENTITY")
    assert b"yes\n" in [payload for _, payload in frames]
    events = await take(fresh_guest, "/events?after=0", 7)
    told = [(event["generation"], event["id"]) for event in events if event["event"] == "identity"]
    assert told == [(1, "sb-1"), (5, "sb-1")]
    assert [event["event"] for event in events] == [
        *("identity", "process_started", "process_ended"),
        # The first identity says nothing of the clock. A local guest leaves it alone, so later ones tell of no step.
        *("identity", "clock", "process_started", "process_ended"),
    ]
    assert events[4]["step_ms"] == 0


class SettableMachine:
    """A machine whose wall clock is a number in this test."""

    def __init__(self, clock: pytest.MonkeyPatch) -> None:
        self._clock = clock

    def adopt(self, new: NewIdentity) -> None:
        self._clock.setattr(time, "time_ns", lambda: new.unix_ns)


async def test_an_identity_after_the_first_tells_how_far_it_moved_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, events = Identity(SettableMachine(monkeypatch)), Events()
    monkeypatch.setattr(time, "monotonic_ns", lambda: 10**9)
    for generation, unix_ms in ((1, 5_000), (2, 65_000), (3, 64_000)):
        new = identity(generation=generation, unix_ns=unix_ms * 1_000_000)
        _become(machine, events, parse_identity(Fields(new)))
    told = events.tell(0)
    assert await anext(told) == b":\n\n"
    steps = re.findall(rb'"step_ms":(-?\d+)', await anext(told))
    assert steps == [b"60000", b"-1000"]
    await told.aclose()


async def test_quiet_is_the_time_since_a_process_last_did_anything(fresh_guest: Client) -> None:
    async def quiet_ms() -> int:
        told: int = (await fresh_guest.call("GET", "/health")).json["quiet_ms"]
        return told

    async def until_quiet() -> None:
        """Asking does not disturb the quiet."""
        async with asyncio.timeout(20):
            while await quiet_ms() < 300:
                await asyncio.sleep(0.02)

    async def disturbed(by: Awaitable[object]) -> None:
        await until_quiet()
        began = time.monotonic()
        await by
        assert await quiet_ms() <= (time.monotonic() - began) * 1000

    async def end_of_cat() -> None:
        await fresh_guest.call("POST", "/processes/tag:cat/signal", {"signal": "SIGKILL"})
        async with asyncio.timeout(20):
            while (await fresh_guest.call("GET", "/health")).json["processes"]:
                await asyncio.sleep(0.02)

    await disturbed(fresh_guest.run("exit 0"))
    cat = {"cmd": "cat", "stdin": True}
    await disturbed(fresh_guest.call("POST", "/processes?detach=1", {**cat, "tag": "cat"}))
    await disturbed(fresh_guest.call("POST", "/processes/tag:cat/stdin", b"hello\n"))
    await until_quiet()
    await fresh_guest.call("GET", "/processes")
    await fresh_guest.call("POST", "/rehearse", identity())
    assert await quiet_ms() >= 300
    await disturbed(end_of_cat())


async def test_a_local_guest_leaves_clock_and_name_of_its_host_alone(fresh_guest: Client) -> None:
    name, before = os.uname().nodename, time.time()
    await fresh_guest.call("POST", "/identity", identity(unix_ns=1))
    assert os.uname().nodename == name
    assert time.time() >= before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"generation": None}, "generation"),
        ({"generation": 0}, "generation"),
        ({"generation": True}, "generation"),
        ({"unix_ns": None}, "unix_ns"),
        ({"unix_ns": 1.5}, "unix_ns"),
        ({"entropy": None}, "entropy"),
        ({"entropy": "YQ=="}, "entropy"),
        ({"entropy": "not base64"}, "entropy"),
        ({"entropy": base64.b64encode(b"x" * 513).decode()}, "entropy"),
        ({"entropy": 5}, "entropy"),
        ({"hostname": "a b"}, "hostname"),
        ({"hostname": "-a"}, "hostname"),
        ({"machine_id": "xyz"}, "machine_id"),
        ({"env": {"": "x"}}, "env"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": []}, "env"),
        ({"ca_pem": "hello"}, "ca_pem"),
    ],
)
async def test_a_wrong_identity_is_refused_as_a_whole(guest: Client, changes: dict[str, Any], field: str) -> None:
    before = (await guest.call("GET", "/health")).json
    reply = await guest.call("POST", "/identity", identity(**changes))
    assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", field)
    assert (await guest.call("GET", "/health")).json["generation"] == before["generation"] == 0


async def test_the_log_is_told_in_lines(guest: Client) -> None:
    reply = await guest.call("GET", "/logs?lines=5")
    assert reply.headers["content-type"].startswith("text/plain")
    assert len(reply.body.splitlines()) <= 5


async def test_a_machine_that_was_away_hangs_up_on_whoever_it_knew_and_its_processes_go_on(fresh_guest: Client) -> None:
    assert (await fresh_guest.call("POST", "/identity", identity())).status == 200
    watching = await fresh_guest.stream("GET", "/events")
    assert await watching.piece() == b":\n\n"
    following = await fresh_guest.stream("POST", "/processes", {"cmd": "sleep", "args": ["60"], "tag": "goes-on"})
    assert (await anext(following.frames()))[0] == frames.START
    assert (await fresh_guest.call("POST", "/identity", identity(generation=2))).status == 200
    for other in (watching, following):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await rest_of(other)
    (process,) = (await fresh_guest.call("GET", "/processes")).json["processes"]
    assert process["tag"] == "goes-on"
    assert "exit_code" not in process
    assert "signal" not in process


async def test_a_rehearsal_leaves_the_machine_nobody(fresh_guest: Client) -> None:
    before = (await fresh_guest.call("GET", "/processes")).json
    assert (await fresh_guest.call("POST", "/rehearse", identity(env={"A": "b"}))).json == {}
    assert (await fresh_guest.call("GET", "/processes")).json == before
    health = (await fresh_guest.call("GET", "/health")).json
    assert (health["generation"], health["id"], health["processes"]) == (0, None, 0)


async def test_a_machine_that_is_somebody_refuses_to_rehearse(fresh_guest: Client) -> None:
    await fresh_guest.call("POST", "/identity", identity())
    reply = await fresh_guest.call("POST", "/rehearse", identity(generation=2))
    assert (reply.status, reply.json["error"]["code"]) == (409, "already_identified")

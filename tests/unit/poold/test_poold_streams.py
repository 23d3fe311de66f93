"""Streams of events for clients and for the operator: pages, following, coming back, and their end."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.poold.poold_host import Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def test_a_timeline_is_paged(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        path = f"/v1/sandboxes/{sandbox}/events"
        events = (await host.ask("GET", path)).json["events"]
        assert [(event["seq"], event["kind"]) for event in events] == [(1, "created"), (2, "starting"), (3, "running")]
        assert events[0].keys() == {"id", "stream", "seq", "at_ms", "by", "kind", "data"}
        assert {event["stream"] for event in events} == {sandbox}
        assert (await host.ask("GET", f"{path}?after=1&limit=1")).json["events"] == events[1:2]
        assert (await host.ask("GET", path, Last_Event_ID="2")).json["events"] == events[2:]
        assert (await host.ask("GET", f"{path}?after=99")).json["events"] == []


async def test_who_follows_a_sandbox_hears_everything_until_its_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
            for kind in ("created", "starting", "running"):
                event = await stream.next()
                assert event is not None
                assert event[1] == kind
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")
            await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
            rest = await stream.rest()
        assert [kind for _, kind, _ in rest] == ["saving", "paused", "starting", "resumed", "stopped"]
        assert [number for number, _, _ in rest] == [4, 5, 6, 7, 8]
        assert all(data["seq"] == number for number, _, data in rest)


async def test_who_follows_a_sandbox_whose_machine_dies_hears_why(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with host.follow(f"/v1/sandboxes/{sandbox}/events?after=3") as stream:
            host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
            ((_, kind, data),) = await stream.rest()
        assert kind == "error"
        assert "killed by signal 9" in data["data"]["reason"]


async def test_who_comes_back_hears_what_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        path = f"/v1/sandboxes/{sandbox}/events"
        async with host.follow(path) as stream:
            assert (await stream.next() or [None])[0] == 1
            assert (await stream.next() or [None])[0] == 2
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/timeout", {"timeout_sec": 100})
        async with host.follow(f"{path}?after=1", Last_Event_ID="2") as stream:  # what the client knows last counts
            assert [(await stream.next() or [None])[0] for _ in range(2)] == [3, 4]


async def test_the_timeline_of_what_is_over_is_told_and_ends(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, failed = await host.create(), await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        host.engine.kill(host.engine.machine_of(failed), "killed by signal 9")
        await host.until_state(failed, "error")
        await host.ask("DELETE", f"/v1/sandboxes/{failed}")
        for one, ends in ((sandbox, ["stopped"]), (failed, ["error", "stopped"])):
            path = f"/v1/sandboxes/{one}/events"
            async with host.follow(path) as stream:
                assert [kind for _, kind, _ in await stream.rest()] == ["created", "starting", "running", *ends]
            async with host.follow(path, Last_Event_ID="3") as stream:
                assert [kind for _, kind, _ in await stream.rest()] == ends
            async with host.follow(path, Last_Event_ID="5") as stream:
                assert await stream.rest() == []


async def test_a_quiet_stream_says_that_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.api.streams.KEEPALIVE_S", 0.02)
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        streams = (
            host.follow(f"/v1/sandboxes/{sandbox}/events?after=3"),
            host.follow("/admin/events", as_operator=True),
        )
        for opened in streams:
            async with opened as stream, asyncio.timeout(10):
                for _ in range(4):
                    assert (await stream.block() or "").startswith(":")


async def test_the_operator_hears_of_all_sandboxes_from_now_on(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        before = await host.create()
        async with host.follow("/admin/events", as_operator=True) as stream:
            assert (await stream.block() or "").startswith(":")  # it listens
            first, second = await host.create(), await host.create()
            heard = [await stream.next() for _ in range(6)]
        told = [(data["stream"], kind) for _, kind, data in filter(None, heard)]
        assert told == [(one, kind) for one in (first, second) for kind in ("created", "starting", "running")]
        ids = [number for number, _, _ in filter(None, heard)]
        assert ids == sorted(ids)
        assert before not in dict(told)
        async with host.follow("/admin/events", as_operator=True, Last_Event_ID=str(ids[1])) as stream:
            assert [(await stream.next() or [None])[0] for _ in range(4)] == ids[2:]
        async with host.follow("/admin/events?after=0", as_operator=True) as stream:
            assert ((await stream.next()) or (None, None, {}))[2]["stream"] == before
        page = (await host.admin("GET", f"/admin/events?after={ids[0]}&limit=3")).json["events"]
        assert [event["id"] for event in page] == ids[1:4]
        assert len((await host.admin("GET", "/admin/events")).json["events"]) == 9


async def test_many_may_follow_and_leave(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()

        async def leave() -> None:
            async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
                await stream.next()

        async def stay() -> int:
            async with host.follow(f"/v1/sandboxes/{sandbox}/events") as stream:
                listening.release()
                return len(await stream.rest())

        listening = asyncio.Semaphore(0)
        staying = [asyncio.create_task(stay()) for _ in range(10)]
        await asyncio.gather(*(leave() for _ in range(10)))
        for _ in staying:
            await listening.acquire()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert await asyncio.gather(*staying) == [4] * 10


async def test_a_daemon_that_stops_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poold.serving.FINISH_S", 0.1)

    async def listen(host: Host) -> None:
        async with host.follow("/admin/events", as_operator=True) as stream:
            await stream.block()
            listening.set()
            await stream.rest()

    listening = asyncio.Event()
    async with asyncio.timeout(12):
        async with open_host(tmp_path) as host:
            task = asyncio.create_task(listen(host))
            await listening.wait()
        await asyncio.gather(task, return_exceptions=True)

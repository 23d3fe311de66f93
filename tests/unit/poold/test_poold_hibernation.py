"""Hibernating and coming back, broken at each step by an error, by a damaged store and by a kill."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from contract.models import Caller
from poold.errors import Exists
from poold.hibernate import Damaged, NotOurs
from poold.ledger import leftovers
from poold.store.errors import Unreachable
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_guest import FakeGuest
from tests.unit.poold.poold_host import Host, Reply, open_host
from tests.unit.poold.poold_states import NOTHING, assert_runs, in_use, pause, resume, view
from tests.unit.poold.test_poold_pausing import broken_ledger, cancelled_at

pytestmark = pytest.mark.usefixtures("nothing_warm")


async def hibernate(host: Host, sandbox: str) -> Reply:
    return await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate")


def objects(folder: Path) -> list[str]:
    """What is in the store for sandboxes."""
    place = folder / "store" / "hibernated"
    walk = os.walk(place)  # what is removed meanwhile is passed over
    return sorted(str(Path(at, name).relative_to(place)) for at, _, names in walk for name in names)


async def assert_hibernates(host: Host, folder: Path, sandbox: str) -> None:
    """It is in the store, uses nothing here, and comes back."""
    found = await view(host, sandbox)
    assert (found["state"], found["hibernated"]["bytes"] > 0) == ("hibernated", True)
    assert (host.engine.saved, in_use(host)) == (set(), NOTHING)
    assert [name.split("/")[-1] for name in objects(folder)] == ["drive-00001", "manifest", "pages-00001"]
    assert (await resume(host, sandbox)).json["state"] == "running"
    await assert_runs(host, sandbox)
    await swept(host, folder)


async def assert_still_paused(host: Host, folder: Path, sandbox: str) -> None:
    """It is on this host's disk as before, nothing of it is in the store, and it can be hibernated again."""
    found = await view(host, sandbox)
    assert (found["state"], found["hibernated"]) == ("paused", None)
    assert (len(host.engine.saved), in_use(host)) == (1, NOTHING)
    await swept(host, folder)
    assert (await hibernate(host, sandbox)).json["state"] == "hibernated"
    await assert_hibernates(host, folder, sandbox)


async def swept(host: Host, folder: Path) -> None:
    """Nothing of sandboxes is left in the store, and nothing is noted as left over."""
    host.sandboxes.hibernation.sweep_soon()
    async with asyncio.timeout(10):
        while objects(folder) or await host.services.ledger.read(leftovers.listed):
            await asyncio.sleep(0.005)


class Gate:
    """A replica that is behind until it is opened."""

    def __init__(self) -> None:
        self.is_asked, self.is_open = asyncio.Event(), asyncio.Event()

    async def covered(self) -> None:
        self.is_asked.set()
        await self.is_open.wait()


# What should be.


async def test_a_hibernated_sandbox_uses_nothing_here_and_comes_back_as_it_was(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(env={"A": "b"}, metadata={"kept": "yes"})
        await host.file("PUT", sandbox, "/kept", b"content")
        for generation in (2, 3):
            reply = await hibernate(host, sandbox)
            assert (reply.status, reply.json["state"]) == (200, "hibernated")
            await assert_hibernates(host, tmp_path, sandbox)
            assert (await host.file("GET", sandbox, "/kept")).body == b"content"
            assert host.engine.guest_of(sandbox).identity["generation"] == generation
        found = await view(host, sandbox)
        assert (found["hibernated"], found["paused_ms"]) == (None, None)
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.assert_nothing_is_used()


async def test_it_is_told_in_the_timeline_and_in_the_audit(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate", X_Request_Id="my-night")
        await resume(host, sandbox)
        events = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json["events"]
        kinds = [event["kind"] for event in events if event["kind"] not in ("saving", "hibernating", "fetching")]
        assert kinds == ["created", "starting", "running", "paused", "hibernated", "paused", "starting", "resumed"]
        told = {row.action: row.request for row in await host.audit(sandbox=sandbox)}
        assert told["sandbox.hibernate"] == "my-night"


async def test_doing_it_twice_changes_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        first = (await hibernate(host, sandbox)).json
        assert (await hibernate(host, sandbox)).json == first
        assert host.engine.calls["parts"] == 1


async def test_what_has_ended_does_not_hibernate(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        reply = await hibernate(host, sandbox)
        assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "stopped")


async def test_a_hibernated_sandbox_refuses_what_needs_a_machine_or_comes_back_if_that_is_its_rule(
    tmp_path: Path,
) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create(auto_resume=True)
        for each in (sandbox, other):
            await hibernate(host, each)
        reply = await host.exec(sandbox, "echo")
        assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "hibernated")
        assert (await pause(host, sandbox)).code == "wrong_state"
        assert (await host.exec(other, "echo on")).json["stdout"] == "on\n"


async def test_destroying_it_removes_what_is_in_the_store(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        assert objects(tmp_path)
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["state"] == "stopped"
        await swept(host, tmp_path)


async def test_an_engine_that_cannot_save_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.can_save = False
        sandbox = await host.create()
        reply = await hibernate(host, sandbox)
        assert (reply.status, reply.code) == (409, "wrong_state")
        await assert_runs(host, sandbox)


async def test_by_its_rule_it_goes_to_the_store_after_so_long_in_pause_and_is_destroyed_there(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(hibernate_sec=100, paused_sec=1000)
        paused = (await pause(host, sandbox)).json
        at_ms = paused["paused_ms"] + 100_000
        assert paused["next"] == {"action": "hibernate", "at_ms": at_ms, "why": "paused"}
        host.clock.advance(101)
        host.sandboxes.wait_for(await host.sandboxes.get(sandbox))
        await host.until_state(sandbox, "hibernated")
        assert (await view(host, sandbox))["next"] == {
            "action": "destroy",
            "at_ms": paused["paused_ms"] + 1_000_000,
            "why": "paused",
        }
        host.clock.advance(1000)
        host.sandboxes.wait_for(await host.sandboxes.get(sandbox))
        await host.until_state(sandbox, "stopped")
        await swept(host, tmp_path)


async def test_one_that_cannot_hibernate_by_itself_is_not_tried_again_at_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(hibernate_sec=1)
        host.engine.broken.add("parts")
        await pause(host, sandbox)
        host.clock.advance(2)
        host.sandboxes.wait_for(await host.sandboxes.get(sandbox))
        await host.until(lambda: host.engine.calls["parts"] == 1)
        await host.sandboxes.at_rest(sandbox)
        await host.until(lambda: sandbox in host.sandboxes._timers._handles)
        due_s = host.sandboxes._timers._handles[sandbox].when() - asyncio.get_running_loop().time()
        assert due_s > 100
        host.engine.broken.clear()
        assert (await hibernate(host, sandbox)).json["state"] == "hibernated"


async def test_the_golden_memory_is_in_the_store_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        for _ in range(3):
            await hibernate(host, await host.create())
        found = [path.name for path in (tmp_path / "store" / "goldens").rglob("*") if path.is_file()]
        assert sorted(found) == ["manifest", "memory-00001"]


# Broken by an error.


async def test_a_hibernation_that_fails_at_the_engine_leaves_it_paused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("parts")
        for _ in range(2):
            assert (await hibernate(host, sandbox)).code == "engine_failed"
            assert await host.state(sandbox) == "paused"
        host.engine.broken.clear()
        await assert_still_paused(host, tmp_path, sandbox)


CALLS = ["put", "create", "get"]


@contextlib.asynccontextmanager
async def broken_store(host: Host, call: str, times: int) -> AsyncIterator[None]:
    """From the call number `times` on, the store is away for calls of this kind."""
    depot = host.sandboxes._means.depot
    assert depot is not None
    store = depot._store
    before, count = getattr(store, call), 0

    async def away(*args: object) -> object:
        nonlocal count
        count += 1
        if count > times:
            raise Unreachable("the test says so")
        return await before(*args)

    setattr(store, call, away)
    try:
        yield
    finally:
        delattr(store, call)


@pytest.mark.parametrize("times", [0, 1, 2, 3])
@pytest.mark.parametrize("call", CALLS)
async def test_a_store_that_goes_away_in_the_middle_leaves_it_paused(tmp_path: Path, call: str, times: int) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        async with broken_store(host, call, times):
            reply = await hibernate(host, sandbox)
        if reply.status == 200:  # there are not so many such calls
            await assert_hibernates(host, tmp_path, sandbox)
        else:
            assert (reply.status, reply.code) == (503, "store_unreachable")
            await assert_still_paused(host, tmp_path, sandbox)


async def test_a_hibernation_that_cannot_be_written_down_leaves_it_paused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        with broken_ledger(host, "hibernated"):
            assert (await hibernate(host, sandbox)).status == 500
        await assert_still_paused(host, tmp_path, sandbox)


async def test_a_disk_that_cannot_be_freed_costs_nothing_but_its_room(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("destroy")
        assert (await hibernate(host, sandbox)).json["state"] == "hibernated"
        assert host.engine.saved
        assert (await resume(host, sandbox)).code == "engine_failed"
        host.engine.broken.clear()
        assert (await resume(host, sandbox)).json["state"] == "running"
        await assert_runs(host, sandbox)


@pytest.mark.parametrize("step", ["planting", "plant"])
async def test_a_resume_that_cannot_bring_it_to_disk_leaves_it_in_the_store(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = (await hibernate(host, sandbox)).json
        host.engine.broken.add(step)
        for _ in range(2):
            assert (await resume(host, sandbox)).code == "engine_failed"
            assert await view(host, sandbox) == before
        host.engine.broken.clear()
        await assert_hibernates(host, tmp_path, sandbox)


async def test_a_resume_that_cannot_be_written_down_leaves_it_in_the_store(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = (await hibernate(host, sandbox)).json
        with broken_ledger(host, "paused"):
            assert (await resume(host, sandbox)).status == 500
        assert await view(host, sandbox) == before
        assert (await resume(host, sandbox)).json["state"] == "running"
        await assert_runs(host, sandbox)


async def test_a_resume_that_fails_after_that_leaves_it_paused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        host.engine.broken.add("load")
        assert (await resume(host, sandbox)).code == "engine_failed"
        host.engine.broken.clear()
        await assert_still_paused(host, tmp_path, sandbox)


# What is in the store is not what was written.


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES = {"flipped": _flip, "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]), "missing": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["drive-00001", "pages-00001", "manifest"])
async def test_what_is_damaged_is_named_and_stays_in_the_store(tmp_path: Path, damage: str, name: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        before = (await hibernate(host, sandbox)).json
        (path,) = (tmp_path / "store").glob(f"hibernated/*/*/{name}")
        whole = path.read_bytes()
        DAMAGES[damage](path)
        left = objects(tmp_path)
        reply = await resume(host, sandbox)
        assert (reply.status, reply.code) == (500, "hibernation_damaged")
        assert name in reply.json["error"]["part"]
        assert (await view(host, sandbox), objects(tmp_path), host.engine.saved) == (before, left, set())
        path.write_bytes(whole)
        await assert_hibernates(host, tmp_path, sandbox)


async def test_a_golden_memory_that_is_missing_is_named_and_written_again_by_who_has_it(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "fakes")
    async with open_host(tmp_path, engine=engine) as host:
        sandbox, other = await host.create(), await host.create()
        await hibernate(host, sandbox)
        (part,) = (tmp_path / "store" / "goldens").rglob("memory-00001")
        part.unlink()
        (kept,) = (tmp_path / "goldens").iterdir()
        kept.rename(tmp_path / "aside")
        reply = await resume(host, sandbox)
        assert (reply.code, "goldens" in reply.json["error"]["part"]) == ("hibernation_damaged", True)
        assert await host.state(sandbox) == "hibernated"
        await hibernate(host, other)
        (tmp_path / "goldens" / kept.name).rename(tmp_path / "aside-too")
        assert (await resume(host, sandbox)).json["state"] == "running"


async def test_another_version_and_another_cluster_are_refused_and_nothing_is_deleted(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "fakes")
    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
    async with open_host(tmp_path, engine=FakeEngine(tmp_path / "fakes"), recover=True, cluster="cl-2") as host:
        reply = await resume(host, sandbox)
        assert (reply.code, "cl-1" in reply.json["error"]["message"]) == ("hibernation_refused", True)
        store = host.sandboxes._means.depot._store  # type: ignore[union-attr]
        (key,) = [entry.key async for entry in store.list("hibernated/") if entry.key.endswith("manifest")]
        facts = orjson.loads((await store.get(key)).data)
        await store.put(key, orjson.dumps({**facts, "format": 7}))
        reply = await resume(host, sandbox)
        assert (reply.code, "format 7" in reply.json["error"]["message"]) == ("hibernation_refused", True)
        await store.put(key, orjson.dumps({**facts, "cluster": "cl-2"}))
        assert (await resume(host, sandbox)).code == "hibernation_damaged"
        assert (await host.state(sandbox), len(objects(tmp_path))) == ("hibernated", 3)


# Broken by a caller that leaves, by a host that stops, and by a kill.


@pytest.mark.parametrize("step", ["parts", "destroy"])
async def test_a_hibernation_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        await cancelled_at(host, step, host.sandboxes.hibernate(sandbox))
        await assert_hibernates(host, tmp_path, sandbox)


@pytest.mark.parametrize("step", ["planting", "plant", "load"])
async def test_a_resume_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        await cancelled_at(host, step, host.sandboxes.resume(sandbox))
        await assert_runs(host, sandbox)


@pytest.mark.parametrize("step", ["parts", "planting", "plant"])
async def test_a_host_that_stops_waits_for_no_upload_and_everything_is_where_it_was(tmp_path: Path, step: str) -> None:
    engine = FakeEngine(tmp_path / "fakes")
    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        if step != "parts":
            await hibernate(host, sandbox)
        engine.held.add(step)
        before = engine.calls[step]
        work = host.sandboxes.hibernate if step == "parts" else host.sandboxes.resume
        task = asyncio.ensure_future(work(sandbox))
        await host.until(lambda: engine.calls[step] > before)
    (error,) = await asyncio.gather(task, return_exceptions=True)
    assert "stopped" in str(error)
    engine.held.clear()
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        if step == "parts":
            await assert_still_paused(host, tmp_path, sandbox)
        else:
            await assert_hibernates(host, tmp_path, sandbox)


class Killing:
    """Keeps a copy of everything that survives a kill, at every call of the store and every step of the engine."""

    def __init__(self, host: Host, folder: Path, aside: Path) -> None:
        self._host, self._folder, self._aside = host, folder, aside
        self.moments: list[tuple[str, Path, set[str]]] = []

    def look(self, what: str) -> None:
        copy = self._aside / str(len(self.moments))
        shutil.copytree(self._folder, copy, ignore=shutil.ignore_patterns("*.sock", "front", ".locks"))
        self.moments.append((what, copy, set(self._host.engine.saved)))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        depot = self._host.sandboxes._means.depot
        assert depot is not None
        calls = ("put", "create", "replace", "get", "delete")
        for name in calls:
            setattr(depot._store, name, self._watched(name, getattr(depot._store, name)))
        self._host.engine._step = self._watched("engine", self._host.engine._step)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for name in calls:
                delattr(depot._store, name)
            del self._host.engine._step  # type: ignore[method-assign]

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any) -> Any:
            self.look(f"before {name} {args[:1]}")
            found = await call(*args)
            self.look(f"after {name} {args[:1]}")
            return found

        return watched


@pytest.mark.parametrize("work", ["hibernate", "resume", "destroy"])
async def test_a_kill_at_any_step_leaves_it_here_or_there(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, work: str
) -> None:
    aside = tmp_path_factory.mktemp("aside")
    async with open_host(tmp_path, limit_s=60) as host:
        sandbox = await host.create()
        await pause(host, sandbox)
        if work != "hibernate":
            await hibernate(host, sandbox)
        killing = Killing(host, tmp_path, aside)
        killing.look("at the beginning")
        with killing.watching():
            await getattr(host.sandboxes, work)(sandbox)
            host.sandboxes.hibernation.sweep_soon()
            if work != "hibernate":
                await swept(host, tmp_path)
        killing.look("at the end")
        guests = host.engine.guests
    assert len(killing.moments) > 8
    seen = set()
    for what, folder, saved in killing.moments:
        seen.add(await _after_a_kill(folder, saved, guests, sandbox, what))
    assert seen == {"hibernate": {"paused", "hibernated"}, "resume": {"hibernated", "paused", "error"}}.get(
        work, {"hibernated", "stopped"}
    )


async def _after_a_kill(folder: Path, saved: set[str], guests: dict[str, FakeGuest], sandbox: str, what: str) -> str:
    """The state in which the next daemon finds the sandbox. It comes back from there, unless it had begun to run."""
    engine = FakeEngine(folder / "fakes")
    engine.saved = set(saved)
    for name, guest in guests.items():
        engine.guests[name] = FakeGuest({})
        engine.guests[name].identity = {**guest.identity, "generation": 1}
    async with open_host(folder, engine=engine, recover=True) as host:
        state = await host.state(sandbox)
        if state in ("paused", "hibernated"):
            assert len(engine.saved) == (state == "paused"), what
            reply = await resume(host, sandbox)
            assert reply.status == 200, (what, reply.body)
            await assert_runs(host, sandbox)
        else:  # its machine runs, and this engine has no processes that outlive it; or it was destroyed
            assert state in ("error", "stopped"), what
        await swept(host, folder)
        return state


# What a person gets of one that cannot be resumed.


def content(reply: Reply) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(reply.body)


async def test_the_disk_of_a_hibernated_sandbox_can_be_read_also_if_the_rest_is_damaged(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        (pages,) = (tmp_path / "store").glob("hibernated/*/*/pages-00001")
        pages.unlink()
        reply = await host.ask("GET", f"/v1/sandboxes/{sandbox}/drive")
        assert (reply.status, reply.headers["content-type"]) == (200, "application/zstd")
        assert content(reply) == b"drive of " + host.engine.machine_of(sandbox).encode()
        assert "x-warren-damaged" not in reply.headers


async def test_a_disk_with_a_damaged_part_has_zeros_there_and_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        (part,) = (tmp_path / "store").glob("hibernated/*/*/drive-00001")
        _flip(part)
        reply = await host.ask("GET", f"/v1/sandboxes/{sandbox}/drive")
        assert (reply.status, reply.headers["x-warren-damaged"]) == (200, "drive-00001")
        assert set(content(reply)) == {0}
        assert await host.state(sandbox) == "hibernated"


async def test_only_a_hibernated_sandbox_has_its_disk_in_the_store(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        reply = await host.ask("GET", f"/v1/sandboxes/{await host.create()}/drive")
        assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "running")


# On another host.


async def test_another_host_takes_it_over_by_its_manifest_and_brings_it_back(tmp_path: Path) -> None:
    store, asked = tmp_path / "store", {"metadata": {"a": "b"}, "hibernate_sec": 5, "public_ports": [80]}
    async with open_host(tmp_path / "one", store_folder=store) as host:
        sandbox = await host.create(owner="ada", **asked)
        before = (await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate", owner="ada")).json
        guests = host.engine.guests
        (key,) = [f"hibernated/{name}" for name in objects(tmp_path) if name.endswith("manifest")]
    engine = FakeEngine(tmp_path / "two" / "fakes")
    engine.guests.update(guests)
    async with open_host(tmp_path / "two", store_folder=store, engine=engine) as host:
        taken = await host.sandboxes.hibernation.import_hibernated(key, Caller())
        assert await host.sandboxes.hibernation.import_hibernated(key, Caller()) == taken
        assert orjson.loads(orjson.dumps(taken.view())) == before
        reply = await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume", owner="ada")
        assert (reply.status, reply.json["state"], reply.json["owner"]) == (200, "running", "ada")
        assert engine.guests[taken.machine or ""].identity["generation"] == 2
        await swept(host, tmp_path)
        with pytest.raises(Damaged):
            await host.sandboxes.hibernation.import_hibernated(key, Caller())


async def test_a_manifest_of_a_sandbox_that_is_here_is_not_taken_over(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        (key,) = [f"hibernated/{name}" for name in objects(tmp_path) if name.endswith("manifest")]
        store = host.sandboxes._means.depot._store  # type: ignore[union-attr]
        other = key.replace(key.split("/")[2], "9-0")
        await store.put(other, (await store.get(key)).data)
        with pytest.raises(Exists):
            await host.sandboxes.hibernation.import_hibernated(other, Caller())


async def test_a_manifest_whose_sandbox_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        (key,) = [f"hibernated/{name}" for name in objects(tmp_path) if name.endswith("manifest")]
        store = host.sandboxes._means.depot._store  # type: ignore[union-attr]
        facts = orjson.loads((await store.get(key)).data)
        for name, value in (("owner", 7), ("rules", {"x": 1}), ("shape", {}), ("network", 5), ("metadata", {"a": 1})):
            row = {**facts["row"], name: value}
            await store.put(key, orjson.dumps({**facts, "row": row}))
            with pytest.raises(Damaged, match="makes no sense"):
                await host.sandboxes.hibernation.import_hibernated(key, Caller())
        await store.put(key, orjson.dumps({**facts, "sandbox": "sb-0000000000000000"}))
        with pytest.raises(NotOurs, match="elsewhere"):
            await host.sandboxes.hibernation.import_hibernated(key, Caller())


async def test_what_is_left_over_stays_until_the_replica_knows_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor's ledger may still say that the sandbox is there."""
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await hibernate(host, sandbox)
        gate = Gate()
        monkeypatch.setattr(host.services.ledger, "covered", gate.covered, raising=False)
        before = objects(tmp_path)
        assert (await resume(host, sandbox)).json["state"] == "running"
        async with asyncio.timeout(10):
            await gate.is_asked.wait()
        assert objects(tmp_path) == before
        gate.is_open.set()
        await swept(host, tmp_path)


# The operator's broom.


async def test_of_two_hosts_with_one_store_neither_sweeps_away_what_the_other_has(tmp_path: Path) -> None:
    store = tmp_path / "store"
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_host(one, store_folder=store) as first, open_host(two, store_folder=store) as second:
        sandboxes = [(host, await host.create()) for host in (first, second)]
        for host, sandbox in sandboxes:
            assert (await hibernate(host, sandbox)).status == 200
        (store / "hibernated" / "sb-none" / "1-aa").mkdir(parents=True)
        lost = store / "hibernated" / "sb-none" / "1-aa" / "drive-00001"
        lost.write_bytes(b"of nobody")
        dry = (await first.admin("POST", "/admin/store/sweep", {"dry_run": True, "older_days": 0})).json
        assert ([each["kind"] for each in dry["swept"]], lost.exists()) == (["hibernated"], True)
        assert (await second.admin("POST", "/admin/store/sweep", {})).json["swept"] == []  # it is younger than a week
        for host, _ in sandboxes:
            reply = await host.admin("POST", "/admin/store/sweep", {"older_days": 0})
            assert (reply.status, reply.json["spared"], reply.json["unsure"]) == (200, [], [])
        assert not lost.exists()
        (row,) = [row for row in await second.audit() if row.detail.get("older_days") == 0]
        assert (row.action, row.owner) == ("store.sweep", "operator")
        for host, sandbox in sandboxes:
            shutil.rmtree(host.ledger_path.parent / "goldens", ignore_errors=True)
            assert (await resume(host, sandbox)).json["state"] == "running"
        for host, _ in sandboxes:
            await host.admin("POST", "/admin/store/sweep", {"older_days": 0})
        assert not list((store / "goldens").rglob("memory-*"))


async def test_what_is_put_into_the_store_while_it_is_swept_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.held.add("parts")
        putting = asyncio.create_task(hibernate(host, sandbox))
        await host.until(lambda: host.engine.calls["parts"] == 1)
        listed, go_on = asyncio.Event(), asyncio.Event()

        async def covered() -> None:
            listed.set()
            await go_on.wait()

        hibernation, ledger = host.sandboxes.hibernation, host.services.ledger
        monkeypatch.setattr(ledger, "covered", covered)
        assert hibernation._means.depot is not None
        sweeping = asyncio.create_task(hibernation._sweep(hibernation._means.depot))
        await listed.wait()  # with what is being put
        host.engine.held.clear()
        assert (await putting).status == 200
        go_on.set()
        await sweeping
        await assert_hibernates(host, tmp_path, sandbox)

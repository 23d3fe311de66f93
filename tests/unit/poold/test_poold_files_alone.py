"""Hibernating files alone and coming back, broken at each step by an error, by a damaged store and by a kill."""

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from poold.ledger import events
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_fake_guest import FakeGuest, layer_of, refusal
from tests.unit.poold.poold_host import Host, Reply, open_host
from tests.unit.poold.poold_hostile import answer
from tests.unit.poold.poold_states import NOTHING, assert_runs, in_use, pause, resume, view
from tests.unit.poold.test_poold_hibernation import DAMAGES, Killing, broken_store, objects, swept
from tests.unit.poold.test_poold_pausing import broken_ledger, cancelled_at

pytestmark = pytest.mark.usefixtures("nothing_warm")

CONTENT = b"content of " + b"a file " * 1000


async def sleep(host: Host, sandbox: str) -> Reply:
    return await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate", {"kind": "files"})


async def made(host: Host, **wanted: object) -> str:
    sandbox = await host.create(env={"A": "b"}, **wanted)
    assert (await host.file("PUT", sandbox, "/etc/kept", CONTENT)).status == 200
    return sandbox


def guest_of(host: Host, sandbox: str) -> FakeGuest:
    """The guest of the machine that it has now."""
    (machine,) = (name for name in host.engine.machines if host.engine.guests[name].identity.get("id") == sandbox)
    return host.engine.guests[machine]


async def assert_whole(host: Host, sandbox: str) -> None:
    """It runs, with its files and its environment."""
    await assert_runs(host, sandbox)
    assert (await host.file("GET", sandbox, "/etc/kept")).body == CONTENT
    assert guest_of(host, sandbox).identity["env"]["A"] == "b"  # type: ignore[index]
    assert not guest_of(host, sandbox).is_frozen


async def assert_asleep(host: Host, folder: Path, sandbox: str) -> None:
    """Its files are in the store, it uses nothing here, and comes back."""
    found = await view(host, sandbox)
    assert (found["state"], found["hibernated"]["kind"]) == ("hibernated", "files")
    assert (host.engine.saved, in_use(host)) == (set(), NOTHING)
    assert [name.split("/")[-1] for name in objects(folder)] == ["files-00001", "manifest"]
    assert (await resume(host, sandbox)).json["state"] == "running"
    await assert_whole(host, sandbox)
    await swept(host, folder)


async def assert_runs_on(host: Host, folder: Path, sandbox: str) -> None:
    """It runs as before, nothing of it is in the store, and it can be tried again."""
    await assert_whole(host, sandbox)
    await swept(host, folder)
    assert (await sleep(host, sandbox)).json["state"] == "hibernated"
    await assert_asleep(host, folder, sandbox)


# What should be.


async def test_it_comes_back_with_its_files_in_another_machine_under_the_same_name(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host, metadata={"kept": "yes"}, public_ports=[8000])
        before = await view(host, sandbox)
        machine = host.engine.machine_of(sandbox)
        for generation in (2, 3):
            reply = await sleep(host, sandbox)
            assert (reply.status, reply.json["state"]) == (200, "hibernated")
            await assert_asleep(host, tmp_path, sandbox)
            assert guest_of(host, sandbox).identity["generation"] == generation
        assert machine not in host.engine.machines
        after = await view(host, sandbox)
        same = ("id", "owner", "image", "memory_mb", "metadata", "public_ports", "network", "created_ms", "rules")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        assert (after["hibernated"], after["paused_ms"]) == (None, None)
        assert not list((tmp_path / "spools").iterdir())
        assert not (tmp_path / "store" / "goldens").exists()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.assert_nothing_is_used()


async def test_the_timeline_and_the_audit_say_that_it_was_files_alone(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await sleep(host, sandbox)
        await resume(host, sandbox)
        told = (await host.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json["events"]
        told = [event for event in told if event["kind"] not in ("hibernating", "fetching")]
        kinds = [event["kind"] for event in told]
        assert kinds == ["created", "starting", "running", "hibernated", "starting", "resumed"]
        assert [told[at]["data"]["kind"] for at in (3, 5)] == ["files", "files"]
        (row,) = [row for row in await host.audit(sandbox=sandbox) if row.action == "sandbox.hibernate"]
        assert row.detail["kind"] == "files"


async def test_the_new_guest_goes_on_with_the_numbers_of_its_events(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        guest_of(host, sandbox).tell("process_started", pid=1)
        last = lambda db: events.last_guest_seq(db, sandbox)  # noqa: E731
        async with asyncio.timeout(10):
            while await host.services.ledger.read(last) != 1:
                await asyncio.sleep(0.01)
        await sleep(host, sandbox)
        await resume(host, sandbox)
        assert "/layer?events=1" in guest_of(host, sandbox).asked


async def test_one_that_is_paused_is_woken_for_it_and_doing_it_twice_changes_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await pause(host, sandbox)
        first = (await sleep(host, sandbox)).json
        assert (first["state"], first["hibernated"]["kind"]) == ("hibernated", "files")
        assert (await sleep(host, sandbox)).json == first
        assert (await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate")).json == first
        await assert_asleep(host, tmp_path, sandbox)


async def test_by_its_rule_files_alone_go_to_the_store_after_so_long_in_pause(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host, hibernate_sec=100, hibernate_kind="files", paused_sec=1000)
        assert (await view(host, sandbox))["rules"]["hibernate_kind"] == "files"
        await pause(host, sandbox)
        await host.later(101, sandbox)
        await host.until_state(sandbox, "hibernated")
        found = await view(host, sandbox)
        assert (found["hibernated"]["kind"], found["next"]["action"]) == ("files", "destroy")
        await assert_asleep(host, tmp_path, sandbox)
        await sleep(host, sandbox)
        await host.later(1001, sandbox)
        await host.until_state(sandbox, "stopped")
        await swept(host, tmp_path)


async def test_a_kind_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        reply = await host.ask("POST", f"/v1/sandboxes/{sandbox}/hibernate", {"kind": "half"})
        assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "kind")
        await assert_whole(host, sandbox)


async def test_an_engine_that_cannot_save_hibernates_files(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.can_save = False
        sandbox = await made(host)
        await sleep(host, sandbox)
        await assert_asleep(host, tmp_path, sandbox)


async def test_a_guest_of_an_older_host_is_told_to_hibernate_whole(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        guest_of(host, sandbox).health = {"features": ["run"]}
        reply = await sleep(host, sandbox)
        assert (reply.status, reply.code) == (409, "wrong_state")
        assert "older" in reply.json["error"]["message"]
        await assert_runs(host, sandbox)


async def test_what_can_be_read_is_given_as_an_archive(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await sleep(host, sandbox)
        reply = await host.ask("GET", f"/v1/sandboxes/{sandbox}/drive")
        assert (reply.status, reply.headers["x-warren-kind"]) == (200, "files")
        data = zstandard.ZstdDecompressor().decompressobj().decompress(reply.body)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            file = archive.extractfile("root/etc/kept")
            assert file is not None
            assert file.read() == CONTENT
        (path,) = (tmp_path / "store").glob("hibernated/*/*/files-00001")
        path.unlink()
        reply = await host.ask("GET", f"/v1/sandboxes/{sandbox}/drive")
        assert (reply.status, reply.headers["x-warren-damaged"]) == (200, "files-00001")


# Broken by an error.


HOSTILE = {
    "no archive": b"nothing of the kind" * 100,
    "an end in the middle": layer_of({"root/a": b"x" * 2000})[:1024],
    "a name that leads out": layer_of({"root/../../etc/passwd": b""}),
    "an absolute name": layer_of({"/etc/passwd": b""}),
    "another folder": layer_of({"elsewhere/a": b""}),
    "a list that is a folder": layer_of({"removed/a": b""}),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_a_guest_must_not_send_costs_nothing_but_the_attempt(tmp_path: Path, what: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        guest = guest_of(host, sandbox)
        guest.says["/layer"] = answer(HOSTILE[what])
        reply = await sleep(host, sandbox)
        assert (reply.status, reply.code) == (502, "bad_archive")
        del guest.says["/layer"]
        await assert_runs_on(host, tmp_path, sandbox)


@pytest.mark.parametrize("path", ["/layer/freeze", "/layer"])
@pytest.mark.parametrize("said", [refusal(500, "internal"), refusal(409, "run_under_way"), b"nonsense\r\n\r\n"])
async def test_a_guest_that_refuses_or_breaks_off_leaves_it_running(tmp_path: Path, path: str, said: bytes) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        guest = guest_of(host, sandbox)
        guest.says[path] = said
        assert (await sleep(host, sandbox)).status in (409, 500, 502)
        del guest.says[path]
        await assert_runs_on(host, tmp_path, sandbox)


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("call", ["put", "create", "get"])
async def test_a_store_that_goes_away_in_the_middle_leaves_it_running(tmp_path: Path, call: str, times: int) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        async with broken_store(host, call, times):
            reply = await sleep(host, sandbox)
        if reply.status == 200:  # there are not so many such calls
            await assert_asleep(host, tmp_path, sandbox)
        else:
            assert (reply.status, reply.code) == (503, "store_unreachable")
            await assert_runs_on(host, tmp_path, sandbox)


async def test_one_that_was_paused_is_paused_again_if_it_comes_to_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await pause(host, sandbox)
        async with broken_store(host, "put", 0):
            assert (await sleep(host, sandbox)).code == "store_unreachable"
        assert await host.state(sandbox) == "paused"
        await resume(host, sandbox)
        await assert_runs_on(host, tmp_path, sandbox)


async def test_a_hibernation_that_cannot_be_written_down_leaves_it_running(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        with broken_ledger(host, "hibernated"):
            assert (await sleep(host, sandbox)).status == 500
        await assert_runs_on(host, tmp_path, sandbox)


async def test_a_machine_that_dies_while_its_files_are_read_is_told_as_that(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        host.engine.held.add("build_of")
        asking = asyncio.ensure_future(sleep(host, sandbox))
        await host.until(lambda: host.engine.calls["build_of"] == 1)
        host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
        host.engine.held.clear()
        assert (await asking).status in (500, 502)
        await host.until_state(sandbox, "error")
        await swept(host, tmp_path)


@pytest.mark.parametrize("step", ["build_snapshot", "restore", "resume"])
async def test_a_resume_that_gets_no_machine_leaves_them_in_the_store(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        before = (await sleep(host, sandbox)).json
        host.engine.broken.add(step)
        for _ in range(2):
            assert (await resume(host, sandbox)).code == "engine_failed"
            assert await view(host, sandbox) == before
        host.engine.broken.clear()
        await assert_asleep(host, tmp_path, sandbox)


@pytest.mark.parametrize("said", [refusal(507, "disk_full"), refusal(400, "bad_request"), b"nonsense\r\n\r\n"])
async def test_a_new_machine_that_does_not_take_them_is_given_up_and_they_stay(tmp_path: Path, said: bytes) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        before = (await sleep(host, sandbox)).json
        host.engine.guests_say["/layer"] = said
        reply = await resume(host, sandbox)
        assert (reply.status, reply.code) == (502, "guest_failed")
        assert (await view(host, sandbox), in_use(host)) == (before, NOTHING)
        host.engine.guests_say.clear()
        await assert_asleep(host, tmp_path, sandbox)


@pytest.mark.parametrize("state", ["starting", "running"])
async def test_a_resume_that_cannot_be_written_down_leaves_them_in_the_store(tmp_path: Path, state: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        before = (await sleep(host, sandbox)).json
        with broken_ledger(host, state):
            assert (await resume(host, sandbox)).status == 500
        assert (await view(host, sandbox), in_use(host)) == (before, NOTHING)
        await assert_asleep(host, tmp_path, sandbox)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["files-00001", "manifest"])
async def test_what_is_damaged_is_named_and_stays_in_the_store(tmp_path: Path, damage: str, name: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        before = (await sleep(host, sandbox)).json
        (path,) = (tmp_path / "store").glob(f"hibernated/*/*/{name}")
        whole = path.read_bytes()
        DAMAGES[damage](path)
        left = objects(tmp_path)
        reply = await resume(host, sandbox)
        assert (reply.status, reply.code) == (500, "hibernation_damaged")
        assert name in reply.json["error"]["part"]
        assert (await view(host, sandbox), objects(tmp_path), in_use(host)) == (before, left, NOTHING)
        path.write_bytes(whole)
        await assert_asleep(host, tmp_path, sandbox)


async def test_another_build_of_the_image_is_refused_by_name(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        host.engine.build = "build-1"
        sandbox = await made(host)
        before = (await sleep(host, sandbox)).json
        reply = await resume(host, sandbox)
        assert (reply.status, reply.code) == (500, "hibernation_refused")
        assert "build-1" in reply.json["error"]["message"]
        assert await view(host, sandbox) == before


# Broken by a caller that leaves, and by a kill. On another host.


@pytest.mark.parametrize("step", ["build_of", "destroy"])
async def test_one_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await cancelled_at(host, step, host.sandboxes.hibernate(sandbox, kind="files"))
        await assert_asleep(host, tmp_path, sandbox)


@pytest.mark.parametrize("step", ["build_snapshot", "restore", "resume"])
async def test_a_resume_whose_caller_leaves_comes_to_its_end(tmp_path: Path, step: str) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await made(host)
        await sleep(host, sandbox)
        await cancelled_at(host, step, host.sandboxes.resume(sandbox))
        await assert_whole(host, sandbox)


async def test_a_host_that_stops_in_the_middle_leaves_it_running_or_there(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "fakes")
    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await made(host)
        await sleep(host, sandbox)
        engine.held.add("restore")
        task = asyncio.ensure_future(host.sandboxes.resume(sandbox))
        await host.until(lambda: engine.calls["restore"] > 1)
    (error,) = await asyncio.gather(task, return_exceptions=True)
    assert "stopped" in str(error)
    engine.held.clear()
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        await assert_asleep(host, tmp_path, sandbox)


@pytest.mark.parametrize("work", ["hibernate", "resume", "destroy"])
async def test_a_kill_at_any_step_leaves_the_files_here_or_there(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, work: str
) -> None:
    aside = tmp_path_factory.mktemp("aside")
    async with open_host(tmp_path, limit_s=60) as host:
        sandbox = await made(host)
        if work != "hibernate":
            await sleep(host, sandbox)
        killing = Killing(host, tmp_path, aside)
        killing.look("at the beginning")
        with killing.watching():
            if work == "hibernate":
                await host.sandboxes.hibernate(sandbox, kind="files")
            else:
                await getattr(host.sandboxes, work)(sandbox)
                await swept(host, tmp_path)
        killing.look("at the end")
    seen = {await _after_a_kill(folder, sandbox, what) for what, folder, _ in killing.moments}
    expected = {"hibernate": {"hibernated", "error"}, "resume": {"hibernated", "error"}}
    assert seen == expected.get(work, {"hibernated", "stopped"})


async def _after_a_kill(folder: Path, sandbox: str, what: str) -> str:
    """The state in which the next daemon finds the sandbox. What is in the store comes back from there, as a whole.

    `error`: it ran at that moment, and this engine has no processes that outlive it.
    """
    async with open_host(folder, engine=FakeEngine(folder / "fakes"), recover=True) as host:
        state = await host.state(sandbox)
        if state == "hibernated":
            assert (await resume(host, sandbox)).status == 200, what
            await assert_whole(host, sandbox)
        else:
            found = await view(host, sandbox)
            assert (found["hibernated"], in_use(host)) == (None, NOTHING), what
        await swept(host, folder)
        return state


async def test_a_guest_that_a_killed_daemon_left_frozen_is_thawed(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "fakes")
    async with open_host(tmp_path, engine=engine) as host:
        sandbox = await made(host)
        guest_of(host, sandbox).is_frozen = True
    async with open_host(tmp_path, engine=engine, recover=True) as host:
        await assert_runs_on(host, tmp_path, sandbox)


async def test_another_host_brings_it_back(tmp_path: Path) -> None:
    async with open_host(tmp_path / "one", store_folder=tmp_path / "store") as host:
        sandbox = await made(host, hibernate_kind="files")
        await sleep(host, sandbox)
    (key,) = (path.relative_to(tmp_path / "store") for path in (tmp_path / "store").glob("hibernated/*/*/manifest"))
    async with open_host(tmp_path / "two", store_folder=tmp_path / "store") as host:
        reply = await host.admin("POST", "/admin/hibernated", {"manifest": str(key)})
        assert (reply.status, reply.json["hibernated"]["kind"]) == (200, "files")
        assert (await resume(host, sandbox)).status == 200
        await assert_whole(host, sandbox)

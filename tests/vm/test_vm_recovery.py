"""However poold ends, its sandboxes outlive it: the next one takes over what runs and undoes what is half done."""

import contextlib
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrations
from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, server_sent, until
from tests.vm.conftest import OpenOwn
from tests.vm.life import Life, assert_same_time

STRAY = "vm-" + "a" * 16
STRAY_PIN = "77"
AWAY_S = 3.0


def _operator(host: Host) -> Api:
    return Api(host, as_operator=True)


def _recovery(host: Host) -> dict[str, Any]:
    recovery: dict[str, Any] = _operator(host).call("GET", "/admin/status").json["recovery"]
    return recovery


def _restart(host: Host) -> None:
    host.start()
    host.wait_until_warm()


def _pid(host: Host, sandbox: Sandbox) -> int:
    return traces.machines(host.state)[traces.ledger_machine(host.state, sandbox.id)]


def test_after_a_kill_running_sandboxes_are_adopted_and_go_on(open_own: OpenOwn) -> None:
    with open_own() as host:
        api = Api(host)
        sandbox = api.create()
        life = Life.begin(sandbox)
        pid, view, told = _pid(host, sandbox), sandbox.view, sandbox.events()
        host.kill()
        assert _pid(host, sandbox) == pid, "machines outlive poold"
        _restart(host)
        assert _recovery(host)["adopted"] == [sandbox.id]
        assert _pid(host, sandbox) == pid
        assert sandbox.view == view
        life.assert_goes_on()
        assert_same_time(sandbox)
        after = sandbox.events()
        assert after[: len(told)] == told
        assert [event["seq"] for event in after] == list(range(1, len(after) + 1))
        assert not {"error", "stopped", "paused"} & {event["kind"] for event in after}
        # What the guest tells from now on comes behind what it told before.
        sandbox.sh("echo once more")
        until(lambda: len(sandbox.events()) > len(after))
        assert _operator(host).call("GET", "/admin/audit/verify").json["ok"]
        assert sandbox.destroy().json["state"] == "stopped"
        until(lambda: traces.folders(host.state) == traces.machines(host.state).keys())


def test_what_happened_in_a_sandbox_while_poold_was_away_is_in_its_timeline(open_own: OpenOwn) -> None:
    with open_own() as host, Api(host).sandbox() as sandbox:
        with sandbox.follow("sleep 2; exit 7") as events:
            pid = next(events)[1]["pid"]
            until(lambda: any(event["data"].get("pid") == pid for event in sandbox.events()))
            host.kill()
        time.sleep(AWAY_S)
        _restart(host)
        until(lambda: _ends_of(sandbox, pid))
        assert [event["data"]["exit_code"] for event in _ends_of(sandbox, pid)] == [7]


def _ends_of(sandbox: Sandbox, pid: int) -> list[dict[str, Any]]:
    return [event for event in sandbox.events() if event["kind"] == "process_ended" and event["data"]["pid"] == pid]


def test_a_creation_that_a_kill_cut_short_is_undone(open_own: OpenOwn, state: Path) -> None:
    with open_own() as host, ThreadPoolExecutor(1) as threads:
        api = Api(host)
        creating = threads.submit(api.post, "/v1/sandboxes", memory_mb=384)
        until(lambda: any(machine.startswith("build-") for machine in traces.machines(state)))
        sandbox_id = until(lambda: api.ids(state="starting"))[0]
        host.kill()
        assert isinstance(creating.exception(), OSError | ValueError), "nobody was told of it"
        _restart(host)
        view = api.call("GET", f"/v1/sandboxes/{sandbox_id}").json
        assert (view["state"], view["reason"]) == (
            "error",
            "its creation was cut short by a restart of the host daemon",
        )
        recovery = _recovery(host)
        assert recovery["lost"] == [sandbox_id]
        assert any(name.startswith("build-") for name in recovery["removed"])
        left = traces.machines(state).keys() | traces.folders(state)
        assert not any(machine.startswith("build-") for machine in left)


def test_a_machine_that_ended_while_poold_was_away_fails_its_sandbox_and_no_other(open_own: OpenOwn) -> None:
    with open_own() as host:
        api = Api(host)
        doomed, well = api.create(), api.create()
        host.kill()
        os.kill(_pid(host, doomed), signal.SIGKILL)
        _restart(host)
        view = doomed.view
        assert (view["state"], view["reason"]) == ("error", "its machine ended while the host daemon was away")
        assert doomed.execute(["true"]).refusal == (502, "machine_died")
        assert well.sh("echo alive") == "alive"
        recovery = _recovery(host)
        assert (recovery["lost"], recovery["adopted"]) == ([doomed.id], [well.id])
        assert traces.ledger_machine(host.state, doomed.id) not in traces.folders(host.state)


def test_what_nobody_has_is_removed_and_reported(open_own: OpenOwn, state: Path) -> None:
    with open_own() as host:
        run_dir = host.socket.parent
        ended = Api(host).create()
        machine = traces.ledger_machine(state, ended.id)
        host.kill()
        with contextlib.closing(sqlite3.connect(state / "ledger.db")) as db, db:
            db.execute("UPDATE sandboxes SET state = 'stopped', ended_ms = 1 WHERE id = ?", [ended.id])
        folder = state / "qemu" / "machines" / STRAY
        (folder / "saved").mkdir(parents=True)
        homes = _homes(host)
        for home in homes:
            (home / STRAY.replace("a", "b")).mkdir()
        _pin(run_dir / "netns" / STRAY_PIN)
        _restart(host)
        removed = _recovery(host)["removed"]
        assert {STRAY, machine} <= set(removed)
        assert machine not in traces.machines(state).keys() | traces.folders(state)
        assert not folder.exists()
        assert not (run_dir / "netns" / STRAY_PIN).exists()
        assert not any(line.split()[4].endswith(f"/{STRAY_PIN}") for line in traces.mounts(run_dir))
        if homes:
            assert f"cgroup {STRAY.replace('a', 'b')}" in removed
        assert {path.name for home in homes for path in home.glob("vm-*")} == traces.machines(state).keys()
        _assert_works(host)


def _homes(host: Host) -> list[Path]:
    """The folders of this poold's control groups; none where it may not make any."""
    return [path for path in Path("/sys/fs/cgroup").rglob(host.environment["POOLD_CGROUP"]) if path.is_dir()]


def _pin(path: Path) -> None:
    path.touch()
    subprocess.run(["unshare", "--net", "mount", "--bind", "/proc/self/ns/net", path], check=True)


def _assert_works(host: Host) -> None:
    with Api(host).sandbox() as sandbox:
        assert sandbox.sh("echo alive") == "alive"


def test_a_poold_that_is_stopped_leaves_sandboxes_running_and_ends_what_is_under_way(
    open_own: OpenOwn, state: Path
) -> None:
    with open_own() as host, ThreadPoolExecutor(1) as threads:
        api = Api(host)
        sandboxes = [api.create(), api.create()]
        kept = {traces.ledger_machine(state, sandbox.id) for sandbox in sandboxes}
        with (
            sandboxes[0].follow("echo begun; sleep 1000") as events,
            sandboxes[1].follow("yes") as never_read,
            sandboxes[1].terminal() as terminal,
            api.open("GET", "/healthz"),
        ):
            assert [next(events)[0] for _ in range(2)] == ["start", "stdout"]
            assert next(never_read)[0] == "start"
            assert terminal.told()["type"] == "start"
            new_shape = threads.submit(api.post, "/v1/sandboxes", memory_mb=384)
            until(lambda: any(machine.startswith("build-") for machine in traces.machines(state)))
            host.process.send_signal(signal.SIGTERM)
            assert host.process.wait(60) == 0, host.log()[-3000:]
            assert [kind for kind, _ in events] == ["error"]
            assert new_shape.result().refusal == (503, "no_capacity")
        assert traces.machines(state).keys() == traces.folders(state) == kept
        assert len(traces.mounts(host.socket.parent)) == len(kept), "only the slots that are in use"
        assert not host.socket.exists()
        _restart(host)
        assert set(_recovery(host)["adopted"]) == {sandbox.id for sandbox in sandboxes}
        assert sandboxes[0].run(["pgrep", "-x", "-f", "sleep 1000"])["exit_code"] == 0


def test_all_machines_can_be_ended_without_a_poold_or_an_image_and_paused_ones_stay(
    open_own: OpenOwn, state: Path
) -> None:
    with open_own() as host:
        api = Api(host)
        running, paused = api.create(), api.create()
        paused.sh("echo kept > file")
        paused.pause()
        host.stop()
        host.stop_all(POOLD_IMAGES=str(state / "nowhere"))
        assert traces.machines(state) == {}
        assert traces.folders(state) == {traces.ledger_machine(state, paused.id)}
        assert traces.mounts(host.socket.parent) == []
        assert _homes(host) == []
        _restart(host)
        view = running.view
        assert (view["state"], view["reason"]) == ("stopped", "all sandboxes of this host were stopped")
        paused.resume()
        assert paused.sh("cat file") == "kept"


@pytest.mark.parametrize(("mode", "state_after"), [("pause", "paused"), ("destroy", "stopped")])
def test_a_host_that_is_drained_takes_nothing_new_until_it_is_undrained(
    open_own: OpenOwn, mode: str, state_after: str
) -> None:
    with open_own() as host:
        api, operator = Api(host), _operator(host)
        sandboxes = [api.create(), api.create()]
        sandboxes[0].sh("echo kept > file")
        told = _drain(operator, mode)
        assert [kind for kind, _ in told] == ["progress", "progress", "drained"]
        assert told[-1][1]["failed"] == {}
        assert set(told[-1][1]["paused" if mode == "pause" else "destroyed"]) == {box.id for box in sandboxes}
        assert [box.view["state"] for box in sandboxes] == [state_after] * 2
        refused = api.post("/v1/sandboxes")
        assert refused.refusal == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert api.call("GET", "/readyz").refusal == (503, "not_ready")
        if mode == "pause":
            assert api.post(f"{sandboxes[0].path}/resume").refusal == (503, "draining")
        assert operator.post("/admin/undrain").json == {"draining": False}
        assert api.call("GET", "/readyz").status == 200
        _assert_works(host)
        if mode == "pause":
            sandboxes[0].resume()
            assert sandboxes[0].sh("cat file") == "kept"


def _drain(operator: Api, mode: str) -> list[tuple[str, Any]]:
    reply = operator.call("POST", "/admin/drain", f'{{"mode": "{mode}"}}'.encode(), {"Accept": "text/event-stream"})
    assert reply.status == 200, reply
    return list(server_sent(reply.body.splitlines(keepends=True)))


def test_a_second_poold_with_the_same_state_gives_up_and_leaves_the_first_alone(open_own: OpenOwn) -> None:
    with open_own() as first:
        with pytest.raises(RuntimeError, match="another poold"), open_own():
            pass
        assert first.process.poll() is None
        assert Api(first).share()["warm"] == 1


# The upgrade: what the first version of the ledger knew of sandboxes that run is enough to take them over.


def _go_back_to_the_first_ledger(path: Path) -> None:
    """Make the ledger one of the first migration, with the sandboxes that it has."""
    old = path.with_name("old.db")
    with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as db:
        db.executescript(f"{migrations()[0][1]}; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;")
        columns = ", ".join(row[1] for row in db.execute("PRAGMA table_info(sandboxes)"))
        db.execute("ATTACH ? AS new", [str(path)])
        db.execute(f"INSERT INTO sandboxes ({columns}) SELECT {columns} FROM new.sandboxes")
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    old.rename(path)


def test_a_ledger_of_the_first_version_is_taken_over_with_its_live_machines(open_own: OpenOwn, state: Path) -> None:
    with open_own() as host:
        api = Api(host)
        sandboxes = [api.create(timeout_sec=1000 + number) for number in range(2)]
        gone = api.create()
        gone.destroy()
        lives = [Life.begin(sandboxes[0])]
        pids = [_pid(host, sandbox) for sandbox in sandboxes]
        views = [sandbox.view for sandbox in sandboxes]
        host.kill()
        _go_back_to_the_first_ledger(state / "ledger.db")
        _restart(host)
        assert set(_recovery(host)["adopted"]) == {sandbox.id for sandbox in sandboxes}
        assert [_pid(host, sandbox) for sandbox in sandboxes] == pids
        assert [sandbox.view for sandbox in sandboxes] == views
        assert gone.view["state"] == "stopped"
        for life in lives:
            life.assert_goes_on()
        assert sandboxes[1].sh("echo alive") == "alive"
        # History begins now, and pausing works for machines that an older poold started.
        sandboxes[0].pause()
        sandboxes[0].resume()
        lives[0].assert_goes_on()
        events = sandboxes[0].events()  # once: the guest goes on telling
        assert {"paused", "resumed"} <= {event["kind"] for event in events}
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        verdict = _operator(host).call("GET", "/admin/audit/verify").json
        assert verdict["ok"]
        assert verdict["rows"] > 0
        rows = _operator(host).call("GET", f"/admin/audit?sandbox={sandboxes[0].id}").json["rows"]
        assert {"exec", "sandbox.pause", "sandbox.resume"} <= {row["action"] for row in rows}

"""A paused sandbox costs no memory, and goes on where it was: by request, by rule, and across restarts of poold."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import OpenOwn
from tests.vm.life import Life, assert_same_time

PAUSED_S = 3.0
IDLE_S = 3  # longer than anything that is not idle takes between two signs of life, also on a busy host
WATCHED_S = 7.0  # how long a pause must not happen that would happen after IDLE_S
OVERHEAD_MB = 160  # what poold counts for a machine besides its memory


def _status(host: Host) -> dict[str, Any]:
    reply = Api(host, as_operator=True).call("GET", "/admin/status")
    assert reply.status == 200, reply
    status: dict[str, Any] = reply.json
    return status


def _is_counted_right(host: Host) -> bool:
    """Whether exactly the running and the warm machines have a slot and memory."""
    status = _status(host)
    machines = status["sandboxes"]["running"] + sum(share["warm"] for share in status["pool"])
    memory = status["memory"]
    return (
        status["slots"]["all"] - status["slots"]["free"] == machines
        and memory["budget_mb"] - memory["left_mb"] == machines * (256 + OVERHEAD_MB)
        and len(traces.machines(host.state)) == machines
    )


def _kinds(sandbox: Sandbox) -> list[str]:
    return [event["kind"] for event in sandbox.events()]


def _detail(sandbox: Sandbox, kind: str) -> dict[str, Any]:
    data: dict[str, Any] = next(event["data"] for event in reversed(sandbox.events()) if event["kind"] == kind)
    return data


def test_a_pause_frees_memory_process_and_slot(host: Host, sandbox: Sandbox) -> None:
    machine = traces.ledger_machine(host.state, sandbox.id)
    until(lambda: _is_counted_right(host))
    running = _status(host)["sandboxes"]["running"]
    view = sandbox.pause()
    assert view["paused_ms"] is not None
    assert view["next"] is None
    assert machine not in traces.machines(host.state)
    assert machine in traces.folders(host.state)
    assert _status(host)["sandboxes"]["running"] == running - 1
    until(lambda: _is_counted_right(host))
    sandbox.resume()
    until(lambda: _is_counted_right(host))
    assert machine in traces.machines(host.state)


def test_everything_goes_on_after_a_pause_and_after_the_next(sandbox: Sandbox) -> None:
    life = Life.begin(sandbox)
    for _ in range(2):
        sandbox.pause()
        view = sandbox.resume()
        assert (view["paused_ms"], view["reason"]) == (None, None)
        life.assert_goes_on()


def test_the_clock_is_right_after_a_pause_and_the_timeline_tells_of_it(sandbox: Sandbox) -> None:
    sandbox.pause()
    time.sleep(PAUSED_S)
    sandbox.resume()
    assert_same_time(sandbox)
    states = [kind for kind in _kinds(sandbox) if kind in ("running", "paused", "starting", "resumed")]
    assert states == ["starting", "running", "paused", "starting", "resumed"]
    assert _detail(sandbox, "paused")["why"] == "by request"
    assert _detail(sandbox, "paused")["bytes"] > 0
    assert _detail(sandbox, "resumed")["paused_for_ms"] >= PAUSED_S * 1000
    # The guest was told, and its own event is in the same timeline.
    until(lambda: any(e["kind"] == "identity" and e["data"]["generation"] == 2 for e in sandbox.events()))


def test_pausing_twice_and_resuming_twice_is_the_same_as_once(sandbox: Sandbox) -> None:
    assert sandbox.pause() == sandbox.pause() == sandbox.view
    assert sandbox.resume()["state"] == sandbox.resume()["state"] == "running"
    assert _kinds(sandbox).count("paused") == 1
    assert _kinds(sandbox).count("resumed") == 1


def test_a_paused_sandbox_refuses_what_needs_its_machine(sandbox: Sandbox) -> None:
    sandbox.pause()
    assert sandbox.execute(["true"]).refusal == (409, "wrong_state")
    assert sandbox.get("/etc/hostname").refusal == (409, "wrong_state")
    assert sandbox.put("/tmp/x", b"").refusal == (409, "wrong_state")
    with sandbox.terminal() as terminal:
        assert terminal.told()["error"]["code"] == "wrong_state"
    assert sandbox.view["state"] == "paused"


def test_what_is_under_way_when_the_pause_comes_is_told_so_and_goes_on_after_it(sandbox: Sandbox) -> None:
    with (
        ThreadPoolExecutor(1) as threads,
        sandbox.follow("echo begun; sleep 1000") as events,
        sandbox.terminal() as terminal,
    ):
        assert [next(events)[0] for _ in range(2)] == ["start", "stdout"]
        shell = terminal.told()["pid"]
        whole = threads.submit(sandbox.execute, ["sleep", "1001"])
        pids = until(lambda: _sleepers(sandbox, 2))
        sandbox.pause()
        assert [(kind, data["code"]) for kind, data in events] == [("error", "sandbox_paused")]
        assert whole.result().refusal == (409, "sandbox_paused")
        assert terminal.told()["error"]["code"] == "sandbox_paused"
    sandbox.resume()
    assert _sleepers(sandbox, 2) == pids
    with sandbox.terminal(pid=shell) as terminal:
        assert terminal.told() == {"type": "start", "pid": shell}


def _sleepers(sandbox: Sandbox, count: int) -> list[str] | None:
    pids = sandbox.run(["pgrep", "-x", "-f", "sleep 100[01]"])["stdout"].split()
    return pids if len(pids) == count else None


def test_pauses_that_cannot_be_are_refused(api: Api, sandbox: Sandbox) -> None:
    for change in ("pause", "resume"):
        assert api.post(f"/v1/sandboxes/sb-{'a' * 16}/{change}").refusal == (404, "not_mine")
        assert api.post(f"/v1/sandboxes/nonsense/{change}").status in (400, 404)
        assert api.post(f"{sandbox.path}/{change}", now=True).status == 400
    sandbox.destroy()
    for change in ("pause", "resume"):
        assert api.post(f"{sandbox.path}/{change}").refusal == (409, "wrong_state")


def test_a_paused_sandbox_can_be_destroyed_and_leaves_nothing(host: Host, sandbox: Sandbox) -> None:
    machine = traces.ledger_machine(host.state, sandbox.id)
    sandbox.pause()
    assert sandbox.destroy().json["state"] == "stopped"
    assert machine not in traces.folders(host.state)


def test_the_next_request_resumes_a_sandbox_whose_rule_says_so(api: Api) -> None:
    with api.sandbox(auto_resume=True) as sandbox:
        sandbox.sh("echo kept > file")
        sandbox.pause()
        assert sandbox.view["state"] == "paused", "to look at it is no use of it"
        with ThreadPoolExecutor(3) as threads:  # all of them wait for the one resume
            said = [threads.submit(sandbox.sh, "cat file") for _ in range(3)]
            assert [each.result() for each in said] == ["kept"] * 3
        assert _kinds(sandbox).count("resumed") == 1
        sandbox.pause()
        assert sandbox.get("/workspace/file").body == b"kept\n"
        sandbox.pause()
        with sandbox.terminal() as terminal:
            assert terminal.told()["type"] == "start"
        assert sandbox.view["state"] == "running"


def test_an_idle_sandbox_pauses_itself(api: Api) -> None:
    with api.sandbox(idle_sec=1) as sandbox:
        following = sandbox.created["next"]
        assert (following["action"], following["why"]) == ("pause", "idle")
        until(lambda: sandbox.view["state"] == "paused")
        assert _detail(sandbox, "paused")["why"] == "it was idle"
        assert sandbox.view["next"] is None
        sandbox.resume()
        until(lambda: sandbox.view["state"] == "paused")


def test_a_sandbox_with_an_open_terminal_or_a_request_under_way_is_not_idle(api: Api) -> None:
    with api.sandbox(idle_sec=IDLE_S) as sandbox:
        with sandbox.terminal() as terminal:
            assert terminal.told()["type"] == "start"
            _assert_stays_running(sandbox)
            assert sandbox.view["next"]["why"] == "timeout"
        sandbox.sh(f"sleep {WATCHED_S:g}")
        assert "paused" not in _kinds(sandbox)
        until(lambda: sandbox.view["state"] == "paused")


def test_a_sandbox_whose_program_prints_what_nobody_reads_is_not_idle(api: Api) -> None:
    with api.sandbox(idle_sec=IDLE_S) as sandbox:
        if "quiet_ms" not in api.call("GET", f"{sandbox.path}/health").json:
            pytest.skip("the image is older than this: its guest does not tell when it printed last")
        with sandbox.follow("while sleep 0.2; do echo on; done") as events:
            assert [next(events)[0] for _ in range(2)] == ["start", "stdout"]
        _assert_stays_running(sandbox)
        sandbox.sh(["pkill", "-f", "while sleep 0.2"])
        until(lambda: sandbox.view["state"] == "paused")


def _assert_stays_running(sandbox: Sandbox) -> None:
    give_up = time.monotonic() + WATCHED_S
    while time.monotonic() < give_up:
        assert sandbox.view["state"] == "running"
        time.sleep(0.2)


def test_a_sandbox_whose_time_is_up_pauses_if_its_rule_says_so_and_has_as_much_time_again(api: Api) -> None:
    with api.sandbox(timeout_sec=2, on_timeout="pause") as sandbox:
        created = sandbox.created
        assert created["next"] == {"action": "pause", "at_ms": created["expires_ms"], "why": "timeout"}
        until(lambda: sandbox.view["state"] == "paused")
        assert _detail(sandbox, "paused")["why"] == "its time was up"
        view = sandbox.resume()
        assert view["expires_ms"] >= view["created_ms"] + 4000
        assert view["next"] == {"action": "pause", "at_ms": view["expires_ms"], "why": "timeout"}


def test_a_sandbox_that_was_paused_for_too_long_is_destroyed(host: Host, api: Api) -> None:
    with api.sandbox(paused_sec=1) as sandbox:
        machine = traces.ledger_machine(host.state, sandbox.id)
        view = sandbox.pause()
        assert view["next"] == {"action": "destroy", "at_ms": view["paused_ms"] + 1000, "why": "paused"}
        until(lambda: sandbox.view["state"] == "stopped")
        assert sandbox.view["reason"] == "it was paused for too long"
        until(lambda: machine not in traces.folders(host.state))


def test_a_deadline_can_be_moved(api: Api) -> None:
    with api.sandbox(timeout_sec=3600) as sandbox:
        later = api.post(f"{sandbox.path}/timeout", timeout_sec=7200).json
        assert later["expires_ms"] > sandbox.created["expires_ms"]
        assert later["next"] == {"action": "destroy", "at_ms": later["expires_ms"], "why": "timeout"}
        assert later["rules"]["timeout_sec"] == 7200
        assert "timeout" in _kinds(sandbox)
        sooner = api.post(f"{sandbox.path}/timeout", timeout_sec=1).json
        assert sooner["expires_ms"] < later["expires_ms"]
        until(lambda: sandbox.view["state"] == "stopped")
        assert sandbox.view["reason"] == "its time was up"
        assert api.post(f"{sandbox.path}/timeout", timeout_sec=1).refusal == (409, "wrong_state")


@pytest.mark.parametrize("end", [Host.kill, Host.stop])
def test_everything_goes_on_after_a_pause_in_which_poold_was_restarted(
    open_own: OpenOwn, end: Callable[[Host], None]
) -> None:
    with open_own() as host:
        sandbox = Api(host).create()
        life = Life.begin(sandbox)
        view = sandbox.pause()
        end(host)
        host.start()
        host.wait_until_warm()
        assert sandbox.view == view
        sandbox.resume()
        life.assert_goes_on()
        assert_same_time(sandbox)

"""However poold ends, nothing of it is left: at once when it is asked to, and with the next one when it is killed."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import OpenOwn

STOPPED_S = 20


def test_a_poold_that_is_stopped_ends_whatever_is_under_way_and_leaves_nothing(open_own: OpenOwn, state: Path) -> None:
    with open_own() as host, ThreadPoolExecutor(1) as threads:
        api = Api(host.port)
        run_dir = _run_dir(host)
        sandboxes = [api.create(), api.create()]
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
            assert host.process.wait(STOPPED_S) == 0, host.log()[-3000:]
            assert [kind for kind, _ in events] == ["error"]
            assert new_shape.result().refusal == (503, "no_capacity")
        assert traces.machines(state) == {}
        assert traces.folders(state) == set()
        assert traces.mounts(run_dir) == []
    with open_own() as host:
        for sandbox in sandboxes:
            view = Sandbox(Api(host.port), sandbox.id, {}).view
            assert (view["state"], view["reason"]) == ("stopped", "the host daemon was stopped")


def test_after_a_poold_that_was_killed_the_next_removes_its_machines_and_writes_its_sandboxes_off(
    open_own: OpenOwn, state: Path
) -> None:
    with open_own() as host:
        run_dir = _run_dir(host)
        sandbox = Api(host.port).create()
        former = traces.machines(state)
        assert traces.ledger_machine(state, sandbox.id) in former
        host.process.kill()
        host.process.wait()
        assert traces.machines(state) == former, "machines outlive poold"
        assert traces.mounts(run_dir) != []
    with open_own() as host:
        api = Api(host.port)
        view = Sandbox(api, sandbox.id, {}).view
        assert (view["state"], view["reason"]) == ("error", "the host daemon was restarted")
        assert not former.keys() & (traces.machines(state).keys() | traces.folders(state))
        with api.sandbox() as next_one:
            assert next_one.sh("echo alive") == "alive"


def test_a_second_poold_with_the_same_state_gives_up_and_leaves_the_first_alone(open_own: OpenOwn) -> None:
    with open_own() as first:
        with pytest.raises(RuntimeError, match="another poold"), open_own():
            pass
        assert first.process.poll() is None
        assert Api(first.port).share()["warm"] == 1


def _run_dir(host: Host) -> Path:
    environment = Path(f"/proc/{host.process.pid}/environ").read_bytes().split(b"\0")
    return Path(os.fsdecode(next(v for v in environment if v.startswith(b"POOLD_RUN_DIR="))).partition("=")[2])

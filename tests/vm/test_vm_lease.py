"""A host's lease and its real machines: what poold cannot kill its warden does."""

import os
import signal
from pathlib import Path

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, until
from tests.vm.conftest import OpenOwn

LIMIT_S = 60.0


def _epoch(host: Host) -> int:
    epoch: int = Api(host, as_operator=True).call("GET", "/admin/lease").json["lease"]["epoch"]
    return epoch


def test_machines_and_proxies_of_a_poold_that_is_stopped_do_not_outlive_its_lease(
    open_own: OpenOwn, tmp_path: Path
) -> None:
    with open_own(POOLD_STORE=str(tmp_path / "store"), POOLD_LEASE_SEC="4") as host:
        sandbox = Api(host).create()
        assert traces.machines(host.state)
        assert _epoch(host) == 1
        os.kill(host.process.pid, signal.SIGSTOP)
        until(lambda: not traces.machines(host.state), limit_s=LIMIT_S)
        assert host.process.wait(LIMIT_S) == -signal.SIGKILL
        proxies = host.environment["POOLD_RUN_DIR"] + "/egress"
        until(lambda: not traces.mentioning(Path(proxies)), limit_s=LIMIT_S)
        host.connection.close()
        host.start()
        host.wait_until_warm()
        assert _epoch(host) == 2
        assert sandbox.view["state"] == "error"
        assert Api(host).create().view["state"] == "running"

"""Whatever ends a proxy, or the process that makes them, or poold: the sandbox's own policy holds, and is written down.

Names only: no attempt here leaves the host. An allowed name has an address of a range that is nobody's.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from poold import processes
from poold.egress.forks import UID_OFFSET
from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import OpenOwn

ALLOWED, REFUSED = "allowed.example", "refused.example"
NETWORK = {"policy": "list", "allow": [{"host": ALLOWED}]}
RESOLVE = f"""
import json, socket
def has(name):
    try:
        return bool(socket.getaddrinfo(name, 443))
    except OSError:
        return False
print(json.dumps([has({ALLOWED!r}), has({REFUSED!r})]))
"""
LOOK_LATER = "setsid sh -c 'sleep 1.5; getent hosts later.example' > /dev/null 2>&1 < /dev/null &"
AWAY_S = 4.0
ENDS_S = 15.0


def _proxies(host: Host) -> list[int]:
    first = int(host.environment["POOLD_BASE_UID"]) + UID_OFFSET
    return [pid for number in range(int(host.environment["POOLD_SLOTS"])) for pid in _running_as(first + number)]


def _running_as(uid: int) -> list[int]:
    """One that has ended may wait for whoever adopted it to notice."""
    return [pid for pid in processes.of_user(uid) if not _is_over(pid)]


def _is_over(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def _proxy_of(host: Host, sandbox: Sandbox) -> int:
    machine = traces.machines(host.state)[traces.ledger_machine(host.state, sandbox.id)]
    [pid] = _running_as((processes.owner(machine) or 0) + UID_OFFSET)
    return pid


def _zygote(host: Host) -> list[int]:
    found = processes.find(str(host.socket.parent / "egress"))
    return [pid for pid in found if processes.owner(pid) == 0]


def _holds(sandbox: Sandbox) -> bool:
    """Whether what is allowed is there again. What is not never is."""
    is_allowed, is_refused = sandbox.python(RESOLVE)
    assert not is_refused
    return bool(is_allowed)


def _names(sandbox: Sandbox) -> list[str]:
    rows: list[dict[str, Any]] = sandbox.api.call("GET", f"{sandbox.path}/egress").json["rows"]
    return [row["name"] for row in rows]


def test_a_killed_proxy_comes_back_with_the_policy_also_together_with_what_makes_proxies(open_own: OpenOwn) -> None:
    with open_own() as host, Api(host).sandbox(network=NETWORK) as sandbox:
        until(lambda: _holds(sandbox))
        for _ in range(5):
            for pid in (*_zygote(host), *_proxies(host)):
                os.kill(pid, signal.SIGKILL)
            until(lambda: _holds(sandbox))
        # A warm machine's came back as well, and takes the policy of whoever claims it.
        with Api(host).sandbox(network=NETWORK) as another:
            assert _holds(another)
        changed = sandbox.api.call("PUT", f"{sandbox.path}/network", json.dumps({"policy": "deny"}).encode())
        assert changed.status == 200
        os.kill(_proxy_of(host, sandbox), signal.SIGKILL)
        time.sleep(1)
        assert sandbox.python(RESOLVE) == [False, False]
        until(lambda: REFUSED in _names(sandbox))
        assert host.process.poll() is None


def test_proxies_that_ended_while_poold_was_away_are_there_again_with_the_policy(open_own: OpenOwn) -> None:
    with open_own() as host, Api(host).sandbox(network=NETWORK) as sandbox:
        host.kill()
        for pid in _proxies(host):
            os.kill(pid, signal.SIGKILL)
        host.start()
        host.wait_until_warm()
        until(lambda: _holds(sandbox))


def test_what_a_machine_asked_for_while_poold_was_away_is_written_down_though_it_is_gone(open_own: OpenOwn) -> None:
    with open_own() as host:
        doomed, well = Api(host).create(network=NETWORK), Api(host).create(network=NETWORK)
        for sandbox in (doomed, well):
            sandbox.sh(LOOK_LATER)
        host.kill()
        time.sleep(AWAY_S)
        os.kill(traces.machines(host.state)[traces.ledger_machine(host.state, doomed.id)], signal.SIGKILL)
        host.start()
        host.wait_until_warm()
        until(lambda: "later.example" in _names(well))
        assert "later.example" in _names(doomed)
        assert well.destroy().status == 200


def test_a_proxy_that_hangs_keeps_its_sandbox_neither_from_ending_nor_its_slot_from_being_used(
    open_own: OpenOwn,
) -> None:
    with open_own() as host:
        sandbox = Api(host).create(network=NETWORK)
        hung = _proxy_of(host, sandbox)
        os.kill(hung, signal.SIGSTOP)
        began = time.monotonic()
        assert sandbox.destroy().json["state"] == "stopped"
        assert time.monotonic() - began < ENDS_S
        assert hung not in _proxies(host)

"""Clones of one snapshot are different machines, and each knows what time it is."""

import time

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until

CLOCK_TOLERANCE_S = 0.5
WAITED_S = 4.0

# Everything that is random or a name, read as early in a sandbox's life as a caller can.
TRAITS = """
import json, os, pathlib, random, socket, uuid
read = lambda path: pathlib.Path(path).read_text().strip()
print(json.dumps({
    "kernel uuid": read("/proc/sys/kernel/random/uuid"),
    "boot id": read("/proc/sys/kernel/random/boot_id"),
    "machine id": read("/etc/machine-id"),
    "hostname": socket.gethostname(),
    "urandom": open("/dev/urandom", "rb").read(16).hex(),
    "getrandom": os.getrandom(16).hex(),
    "uuid4": str(uuid.uuid4()),
    "random": random.random(),
    "hash": hash("warren"),
}))
"""


def test_no_two_clones_agree_on_anything_random_or_on_who_they_are(api: Api) -> None:
    with api.sandbox() as one, api.sandbox() as two, api.sandbox() as three:
        told = [sandbox.python(TRAITS) for sandbox in (one, two, three)]
    for trait in told[0]:
        assert len({traits[trait] for traits in told}) == 3, trait
    assert [traits["hostname"] for traits in told] == [one.id, two.id, three.id]
    assert all(len(traits["machine id"]) == 32 for traits in told)


def test_the_clock_of_a_sandbox_is_the_hosts(sandbox: Sandbox) -> None:
    _assert_same_time(sandbox)


def test_the_clock_of_a_machine_that_waited_in_the_pool_is_the_hosts(host: Host, api: Api) -> None:
    until(lambda: (share := api.share())["warm"] >= share["wanted"])
    until(lambda: _youngest_s(host, api) > WAITED_S)
    waiting = _warm(host, api)
    with api.sandbox() as sandbox:
        _assert_same_time(sandbox)
        assert traces.ledger_machine(host.state, sandbox.id) in waiting, "it was not taken from the pool"


def _assert_same_time(sandbox: Sandbox) -> None:
    before = time.time()
    seen = sandbox.python("import time; print(time.time())")
    assert before - CLOCK_TOLERANCE_S < seen < time.time() + CLOCK_TOLERANCE_S


def _warm(host: Host, api: Api) -> dict[str, int]:
    claimed = {traces.ledger_machine(host.state, sandbox_id) for sandbox_id in api.ids()}
    return {machine: pid for machine, pid in traces.machines(host.state).items() if machine not in claimed}


def _youngest_s(host: Host, api: Api) -> float:
    """How long all of the warm machines have been there."""
    folders = [host.state / "qemu" / "machines" / machine for machine in _warm(host, api)]
    return min((time.time() - folder.stat().st_mtime for folder in folders), default=0.0)

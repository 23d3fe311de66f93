"""Many sandboxes at once: each is its own, and all that they used comes back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until
from tests.vm.conftest import SLOTS

CROWD = 20


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CROWD) as executor:
        yield executor


def test_many_created_at_once_are_different_a_full_host_says_so_and_all_that_they_used_comes_back(
    host: Host, api: Api, threads: ThreadPoolExecutor
) -> None:
    made: list[Sandbox] = []
    try:
        made += _create(api, threads, CROWD)
        assert len(made) >= CROWD - 4, "there is room for more"  # four may be in the hands of the pool
        assert list(threads.map(lambda sandbox: sandbox.sh("hostname"), made)) == [sandbox.id for sandbox in made]
        assert len(set(threads.map(lambda sandbox: sandbox.sh("cat /etc/machine-id"), made))) == len(made)
        made += _create(api, threads, CROWD)
        assert CROWD <= len(made) <= SLOTS
        assert made[0].sh("echo alive") == "alive"
    finally:
        gone = list(threads.map(Sandbox.destroy, made))
    assert [reply.status for reply in gone] == [200] * len(made)
    _assert_only_warm_machines(host, api)
    with api.sandbox() as sandbox:
        assert sandbox.sh("echo again") == "again"


def _create(api: Api, threads: ThreadPoolExecutor, count: int) -> list[Sandbox]:
    """What came of `count` creations at once, which may fail only for want of room."""
    made = []
    for reply in threads.map(lambda _: api.post("/v1/sandboxes"), range(count)):
        if reply.status == 201:
            made.append(Sandbox(api, reply.json["id"], reply.json))
        else:
            assert reply.refusal == (503, "no_capacity")
            assert int(reply.headers["retry-after"]) >= 1
    assert len({sandbox.id for sandbox in made}) == len(made)
    return made


def _assert_only_warm_machines(host: Host, api: Api) -> None:
    """Processes and folders are those of the warm machines, once the pool has come to rest."""

    def at_rest() -> bool:
        shares = api.call("GET", "/healthz").json["pool"]
        warm = sum(share["warm"] for share in shares)
        is_full = all(share["warm"] == share["wanted"] for share in shares)
        return is_full and len(traces.machines(host.state)) == len(traces.folders(host.state)) == warm

    assert api.ids() == []
    until(at_rest)

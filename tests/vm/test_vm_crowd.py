"""Many sandboxes at once: each is its own, and all that they used comes back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Reply, Sandbox, until
from tests.vm.conftest import SLOTS

CROWD = 20


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CROWD) as executor:
        yield executor


def test_of_many_created_at_once_all_are_different_and_answer_and_all_that_they_used_comes_back(
    host: Host, api: Api, threads: ThreadPoolExecutor
) -> None:
    replies = list(threads.map(lambda _: api.post("/v1/sandboxes"), range(CROWD)))
    try:
        sandboxes = _assert_created_or_full(api, replies)
        assert len(sandboxes) >= CROWD - 4, "there is room for more"  # four may be in the hands of the pool
        assert list(threads.map(lambda sandbox: sandbox.sh("hostname"), sandboxes)) == [s.id for s in sandboxes]
        assert len(set(threads.map(lambda sandbox: sandbox.sh("cat /etc/machine-id"), sandboxes))) == len(sandboxes)
    finally:
        gone = list(threads.map(lambda reply: api.call("DELETE", f"/v1/sandboxes/{reply.json['id']}"), _made(replies)))
    assert [reply.status for reply in gone] == [200] * len(gone)
    _assert_only_warm_machines(host, api)


def test_a_full_host_says_when_to_come_back_and_has_room_again_afterwards(
    host: Host, api: Api, threads: ThreadPoolExecutor
) -> None:
    replies = list(threads.map(lambda _: api.post("/v1/sandboxes"), range(SLOTS + 6)))
    try:
        sandboxes = _assert_created_or_full(api, replies)
        assert len(sandboxes) < len(replies), "there is more room than slots"
        assert sandboxes[0].sh("echo alive") == "alive"
    finally:
        list(threads.map(lambda reply: api.call("DELETE", f"/v1/sandboxes/{reply.json['id']}"), _made(replies)))
    _assert_only_warm_machines(host, api)
    with api.sandbox() as sandbox:
        assert sandbox.sh("echo again") == "again"


def _made(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if reply.status == 201]


def _assert_created_or_full(api: Api, replies: list[Reply]) -> list[Sandbox]:
    for reply in replies:
        if reply.status != 201:
            assert reply.refusal == (503, "no_capacity")
            assert int(reply.headers["retry-after"]) >= 1
    sandboxes = [Sandbox(api, reply.json["id"], reply.json) for reply in _made(replies)]
    assert len({sandbox.id for sandbox in sandboxes}) == len(sandboxes)
    return sandboxes


def _assert_only_warm_machines(host: Host, api: Api) -> None:
    """Processes and folders are those of the warm machines, once the pool has come to rest."""

    def at_rest() -> bool:
        shares = api.call("GET", "/healthz").json["pool"]
        warm = sum(share["warm"] for share in shares)
        is_full = all(share["warm"] == share["wanted"] for share in shares)
        return is_full and len(traces.machines(host.state)) == len(traces.folders(host.state)) == warm

    assert api.ids() == []
    until(at_rest)

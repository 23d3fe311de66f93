"""An owner at its limit, from three gateways at once: never over the limit, never stuck below it."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.keys import Pools
from tests.gateway.cluster import Cluster, Reply, ask, open_cluster, wait_for

LIMIT = 4
VCPUS = LIMIT  # each sandbox has one
ROUNDS = 14
CLIENTS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_cluster(hosts=3, gateways=3) as found:
        yield found


def living(cluster: Cluster, key: str) -> list[str]:
    reply = ask(cluster.gateways[0].port, "GET", "/v1/sandboxes?limit=1000", key=key)
    assert reply.status == 200, reply.body
    assert reply.json["incomplete"] == []
    return [row["id"] for row in reply.json["sandboxes"] if row["state"] != "error"]


class Counted:
    """How many sandboxes there are between the reply to a create and the request to destroy it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.refused = 0

    def add(self, amount: int) -> None:
        with self._lock:
            self.now += amount
            self.most = max(self.most, self.now)


def use(cluster: Cluster, key: str, counted: Counted, seed: int) -> list[Reply]:
    """Create and destroy through gateways at random."""
    choose = random.Random(seed)
    odd: list[Reply] = []
    for _ in range(ROUNDS):
        reply = ask(choose.choice(cluster.gateways).port, "POST", "/v1/sandboxes", {}, key=key)
        if reply.status == 429:
            counted.refused += 1
            continue
        if reply.status != 201:
            odd.append(reply)
            continue
        counted.add(1)
        path = f"/v1/sandboxes/{reply.json['id']}"
        seen = ask(choose.choice(cluster.gateways).port, "GET", path, key=key)
        if seen.status != 200:
            odd.append(seen)
        counted.add(-1)
        gone = ask(choose.choice(cluster.gateways).port, "DELETE", path, key=key)
        if gone.status != 200:
            odd.append(gone)
    return odd


def test_an_owner_at_its_limit_is_never_over_it_and_never_stuck_below(cluster: Cluster) -> None:
    key = cluster.key("hammered", pools=Pools(vcpus=VCPUS))
    counted = Counted()
    watching = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not watching.wait(0.05):
            seen.append(len(living(cluster, key)))

    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        watcher = threads.submit(watch)
        try:
            found = list(threads.map(lambda seed: use(cluster, key, counted, seed), range(CLIENTS)))
        finally:
            watching.set()
        watcher.result()
    assert [(each.status, each.body) for odd in found for each in odd] == []
    assert counted.refused > 0, "the limit was never reached"
    assert max(seen) <= LIMIT
    assert counted.most <= LIMIT
    filled = [ask(gateway.port, "POST", "/v1/sandboxes", {}, key=key) for gateway in cluster.gateways]
    filled += [ask(cluster.gateways[0].port, "POST", "/v1/sandboxes", {}, key=key) for _ in range(LIMIT - len(filled))]
    assert [each.status for each in filled] == [201] * LIMIT
    over = ask(cluster.gateways[1].port, "POST", "/v1/sandboxes", {}, key=key)
    assert (over.status, over.code) == (429, "pool_exhausted")
    assert over.json["error"]["used"]["vcpus"] == LIMIT
    assert over.json["error"]["allowed"]["vcpus"] == LIMIT
    assert over.headers["retry-after"].isdigit()


def test_what_ended_without_a_gateway_makes_room_again(cluster: Cluster) -> None:
    """A timeout on the host tells nobody: it is found out when the book is full."""
    key = cluster.key("timed", pools=Pools(vcpus=2))
    body = {"timeout_sec": 1}
    for _ in range(2):
        assert ask(cluster.gateways[0].port, "POST", "/v1/sandboxes", body, key=key).status == 201
    wait_for(lambda: living(cluster, key) == [], "the end of both")
    again = [ask(gateway.port, "POST", "/v1/sandboxes", body, key=key).status for gateway in cluster.gateways[:2]]
    assert again == [201, 201]

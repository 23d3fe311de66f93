"""Hosts and gateways that come and go: what lives stays reachable, what is not known is never said to be gone."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contract.keys import Pools
from contract.ring import ranked
from tests.gateway.cluster import (
    EVERYTHING,
    Cluster,
    Program,
    ask,
    clustered,
    open_cluster,
    operate,
    wait_for,
    write_pki,
)

NEVER = "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa"
# Of four hosts that are equally empty, one is passed over by a new id with a chance of 9/16, for it has two draws: by
# eight in one run of a hundred, by so many more in one of a billion.
TRIES = 30


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with open_cluster(hosts=3, gateways=2) as found:
        yield found


def healths(cluster: Cluster, gateway: Program, admin: str) -> dict[str, str]:
    rows = ask(gateway.port, "GET", "/v1/hosts", key=admin).json["hosts"]
    return {row["name"]: row["health"] for row in rows}


def wait_for_health(cluster: Cluster, admin: str, name: str, health: str) -> None:
    for gateway in cluster.gateways:
        wait_for(lambda gateway=gateway: healths(cluster, gateway, admin)[name] == health, f"{name} {health}")


def book_of(cluster: Cluster, owner: str, admin: str) -> str:
    """The host that has the owner's book."""
    rows = ask(cluster.gateways[0].port, "GET", "/v1/hosts", key=admin).json["hosts"]
    return ranked(owner, {row["name"]: float(row["memory_mb"]["all"]) for row in rows})[0]


def create(cluster: Cluster, key: str, number: int = 0) -> str:
    gateway = cluster.gateways[number % len(cluster.gateways)]
    reply = ask(gateway.port, "POST", "/v1/sandboxes", {}, key=key)
    assert reply.status == 201, (reply.body, gateway.told())
    return reply.headers["location"]


def places(cluster: Cluster) -> dict[str, set[str]]:
    """Which sandboxes each host says it has."""
    found = {}
    for name, host in cluster.hosts.items():
        rows = operate(host, "GET", "/v1/sandboxes?limit=1000")["sandboxes"]
        found[name] = {f"/v1/sandboxes/{row['id']}" for row in rows}
    return found


def test_a_host_that_dies_and_returns(cluster: Cluster) -> None:
    admin = cluster.key("boss", scopes=EVERYTHING)
    red = cluster.key("red", pools=Pools(vcpus=6))
    made = [create(cluster, red, number) for number in range(6)]
    lost = book_of(cluster, "red", admin)
    on_lost = places(cluster)[lost]
    cluster.hosts[lost].kill()
    for gateway in cluster.gateways:
        for path in made:
            reply = ask(gateway.port, "GET", path, key=red)
            expected = (503, "host_unreachable") if path in on_lost else (200, None)
            assert (reply.status, reply.code if reply.status != 200 else None) == expected
        never = ask(gateway.port, "GET", NEVER, key=red)
        assert (never.status, never.code) == (503, "host_unreachable"), "we do not know, so we do not say 404"
        page = ask(gateway.port, "GET", "/v1/sandboxes", key=red).json
        assert page["incomplete"] == [lost]
        assert {f"/v1/sandboxes/{row['id']}" for row in page["sandboxes"]} == set(made) - on_lost
    wait_for_health(cluster, admin, lost, "dead")
    # The book is opened on the next host, with what lives there: what only the dead host knows of is not counted.
    left = sorted(set(made) - on_lost)
    for path in left:
        assert ask(cluster.gateways[0].port, "DELETE", path, key=red).status == 200
    new = [create(cluster, red, number) for number in range(min(2, 6 - len(on_lost)))]
    cluster.hosts[lost].start()
    wait_for_health(cluster, admin, lost, "alive")
    for gateway in cluster.gateways:
        for path in (*on_lost, *new):
            assert ask(gateway.port, "GET", path, key=red).json["state"] == "running"
        assert ask(gateway.port, "GET", NEVER, key=red).status == 404
    fill_up(cluster, red, 6)


def fill_up(cluster: Cluster, key: str, limit: int) -> None:
    """Creates succeed up to the limit, through all gateways at once, and not beyond it."""
    ports = [gateway.port for gateway in cluster.gateways for _ in range(limit)]
    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(lambda port: ask(port, "POST", "/v1/sandboxes", {}, key=key).status, ports))
    rows = ask(cluster.gateways[0].port, "GET", "/v1/sandboxes", key=key).json["sandboxes"]
    assert len([row for row in rows if row["state"] == "running"]) == limit, statuses
    assert set(statuses) <= {201, 429}


def test_a_draining_host_keeps_its_sandboxes_and_gets_no_new_ones(cluster: Cluster) -> None:
    admin = cluster.key("boss", scopes=EVERYTHING)
    red = cluster.key("red")
    made = [create(cluster, red, number) for number in range(4)]
    drained = next(name for name, paths in places(cluster).items() if paths)
    before = places(cluster)[drained]
    operate(cluster.hosts[drained], "POST", "/admin/drain", {"mode": "pause"})
    wait_for_health(cluster, admin, drained, "draining")
    new = [create(cluster, red, number) for number in range(6)]
    assert places(cluster)[drained] == before
    for gateway in cluster.gateways:
        for path in (*made, *new):
            assert ask(gateway.port, "GET", path, key=red).status == 200


def test_a_host_that_refuses_before_its_record_says_so_is_passed_over(cluster: Cluster) -> None:
    """Between the drain and the gateways' knowledge of it, creates go to the next host."""
    red = cluster.key("red")
    create(cluster, red)
    names = list(cluster.hosts)
    for name in names[:2]:
        operate(cluster.hosts[name], "POST", "/admin/drain", {"mode": "pause"})
    made = [create(cluster, red, number) for number in range(6)]
    assert set(made) <= places(cluster)[names[2]]


def test_a_new_host_takes_ids_and_old_ids_stay_where_they_are(cluster: Cluster) -> None:
    admin = cluster.key("boss", scopes=EVERYTHING)
    red = cluster.key("red", pools=Pools(vcpus=12))
    made = [create(cluster, red, number) for number in range(4)]
    cluster.add_host("newcomer")
    cluster.wait_until_alive()
    wait_for_health(cluster, admin, "newcomer", "alive")
    for gateway in cluster.gateways:
        for path in made:
            assert ask(gateway.port, "GET", path, key=red).json["state"] == "running"
    late = [create(cluster, red, number) for number in range(8)]
    for number in range(TRIES):
        if places(cluster)["newcomer"]:
            break
        assert ask(cluster.gateways[0].port, "DELETE", late.pop(0), key=red).status == 200
        late.append(create(cluster, red, number))
    assert places(cluster)["newcomer"]
    over = ask(cluster.gateways[0].port, "POST", "/v1/sandboxes", {}, key=red)
    assert over.code == "pool_exhausted", "the book was moved, and nothing in it was lost"


def test_a_gateway_that_starts_anew_knows_everything(cluster: Cluster) -> None:
    red = cluster.key("red", pools=Pools(vcpus=3))
    made = [create(cluster, red, number) for number in range(3)]
    cluster.gateways[0].kill()
    for path in made:
        assert ask(cluster.gateways[1].port, "GET", path, key=red).json["state"] == "running"
    cluster.gateways[0].start()
    cluster.gateways[0].wait_until("/readyz", lambda reply: reply.status == 200)
    for path in made:
        assert ask(cluster.gateways[0].port, "GET", path, key=red).json["state"] == "running"
    assert ask(cluster.gateways[0].port, "POST", "/v1/sandboxes", {}, key=red).code == "pool_exhausted"


def test_a_gateway_stops_when_it_is_told_to_also_with_a_stream_open(cluster: Cluster) -> None:
    red = cluster.key("red")
    path = create(cluster, red)
    gateway = cluster.gateways[0]
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        head = f"GET {path}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nX-API-Key: {red}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert gateway.kill(signal.SIGTERM) == 0, gateway.told()


def test_several_workers_share_one_port(cluster: Cluster) -> None:
    gateway = cluster.add_gateway(GATEWAY_WORKERS="2")
    cluster.wait_until_alive()
    red = cluster.key("red")

    known_to = set()

    def is_known_to_both() -> bool:
        reply = ask(gateway.port, "GET", "/v1/sandboxes", key=red)
        if reply.status == 200:
            known_to.add(reply.headers["x-request-id"].rpartition("-")[0])  # each has a beginning of its own
        return len(known_to) == 2

    wait_for(is_known_to_both, "an answer of each worker", gateway.told)
    assert gateway.kill(signal.SIGTERM) == 0, gateway.told()


def test_workers_that_have_only_just_begun_end_when_they_are_told_to() -> None:
    with clustered() as cluster:
        write_pki(cluster.folder / "pki")
        gateway = cluster.add_gateway(GATEWAY_WORKERS="2")
        assert gateway.process is not None
        children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
        wait_for(lambda: len(children.read_text().split()) == 2, "two workers", gateway.told)
        assert gateway.kill(signal.SIGTERM) == 0, gateway.told()


def test_hosts_can_be_listed_instead_of_registered(cluster: Cluster) -> None:
    listed = ",".join(f"{name}=http://127.0.0.1:{host.port}" for name, host in cluster.hosts.items())
    gateway = cluster.add_gateway(GATEWAY_HOSTS=listed)
    cluster.wait_until_alive()
    red = cluster.key("red")
    path = create(cluster, red, 2)
    for each in cluster.gateways:
        assert ask(each.port, "GET", path, key=red).json["state"] == "running"
    assert gateway.kill(signal.SIGTERM) == 0

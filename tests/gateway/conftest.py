"""One cluster for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.gateway.cluster import Cluster, ask, open_cluster
from tests.gateway.preview_place import DOMAIN, Place


@pytest.fixture(scope="session")
def pair() -> Iterator[Cluster]:
    """Two hosts and two gateways."""
    with open_cluster(hosts=2, gateways=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared() -> Iterator[Place]:
    """For all tests of previews."""
    with open_cluster(1, 0) as cluster:
        key, stranger = cluster.key("alice"), cluster.key("mallory")
        gateway = cluster.add_gateway(GATEWAY_DOMAIN=DOMAIN)
        cluster.wait_until_alive()
        reply = ask(gateway.port, "POST", "/v1/sandboxes", {}, key)
        assert reply.status == 201, (reply, gateway.told())
        yield Place(cluster, gateway, key, stranger, reply.json["id"])


@pytest.fixture
async def place(shared: Place) -> Place:
    return shared

"""One cluster for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.gateway.cluster import Cluster, open_cluster


@pytest.fixture(scope="session")
def pair() -> Iterator[Cluster]:
    """Two hosts and two gateways."""
    with open_cluster(hosts=2, gateways=2) as cluster:
        yield cluster

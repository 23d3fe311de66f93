"""One cluster for all tests of this folder: four hosts at first, so that a fifth can join."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import HOSTS, Cluster, open_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    assert os.geteuid() == 0, "these tests make network namespaces: run them as root"
    with open_cluster(HOSTS[:-1]) as cluster:
        yield cluster

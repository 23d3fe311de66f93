"""What the SDK's tests speak to: a real gateway before two real hosts of the local engine."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.gateway.cluster import EVERYTHING, Cluster, ask, open_cluster, wait_for

# The local engine's commands run on this machine: login shells must not read, or write, what is its user's.
BARE = {"HOME": "/"}


@dataclass(frozen=True)
class Service:
    """A gateway, and a key that opens all of it."""

    url: str
    key: str = field(repr=False)
    cluster: Cluster = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"WARREN_URL": self.url, "WARREN_API_KEY": self.key}


@contextlib.contextmanager
def open_service() -> Iterator[Service]:
    with open_cluster(2, 1) as cluster:
        key, port = cluster.key("anna", scopes=EVERYTHING), cluster.gateways[0].port
        wait_for(lambda: ask(port, "GET", "/v1/hosts", key=key).status == 200, "the gateway knows the key")
        yield Service(f"http://127.0.0.1:{port}", key, cluster)

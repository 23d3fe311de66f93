"""What the SDK's tests speak to: a real gateway before two real hosts of the local engine."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.gateway.cluster import EVERYTHING, Cluster, open_cluster

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
    with (
        tempfile.TemporaryDirectory(prefix="warren-workspaces-") as shared,
        open_cluster(2, 0, POOLD_WORKSPACES=shared) as cluster,
    ):
        key = cluster.key("anna", scopes=EVERYTHING)  # before the gateway: it counts keys that it does not know
        gateway = cluster.add_gateway()
        cluster.wait_until_alive()
        yield Service(f"http://127.0.0.1:{gateway.port}", key, cluster)

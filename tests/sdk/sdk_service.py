"""What the SDK's tests speak to."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.host import open_host

# The local engine's commands run on this machine: login shells must not read, or write, what is its user's.
BARE = {"HOME": "/"}


@dataclass(frozen=True)
class Service:
    url: str
    key: str | None

    @property
    def environment(self) -> dict[str, str]:
        return {"WARREN_URL": self.url} | ({} if self.key is None else {"WARREN_API_KEY": self.key})


@contextlib.contextmanager
def open_service() -> Iterator[Service]:
    with open_host(pool="", POOLD_ENGINE="local") as host:
        host.wait_until_serving()
        yield Service(f"unix:{host.socket}", None)

"""A ledger with a replica in a folder or in a real S3 server, and Litestream between them."""

from collections.abc import Iterator

import pytest
import uvloop

from poold.devstore import S3Server
from tests.s3server import running_s3


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server

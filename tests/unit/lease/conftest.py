"""Leases are kept on uvloop, and so are those of the tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from lease_hosts import Troubled

from poold.store.folder import open_folder


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Troubled]:
    async with open_folder(tmp_path / "store") as folder:
        yield Troubled(folder)

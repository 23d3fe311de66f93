"""poold runs on uvloop, and so do its tests; a host and a CA for those that want no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from tests.unit.poold.poold_certificates import Authority
from tests.unit.poold.poold_host import Host, open_host


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def nothing_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine becomes warm because one like it was asked for: what there is belongs to a sandbox."""
    monkeypatch.setattr("poold.pool.keeper.Keeper.asked", lambda *_: None)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with open_host(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()

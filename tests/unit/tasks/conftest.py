"""poold runs on uvloop, and so do its tests."""

from collections.abc import AsyncIterator

import pytest
import uvloop

from tests.unit.tasks.tasks_stage import Stage, open_stage


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage

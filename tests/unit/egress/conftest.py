"""A proxy and its world, for tests that need one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from egress_world import Poold, World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


@pytest.fixture
async def poold(world: World) -> Poold:
    return await world.poold()

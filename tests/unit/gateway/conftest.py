"""The gateway runs on uvloop; its data path has to be right on both loops: they differ where connections end."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

DATA_PATH = ("test_gateway_upstream", "test_gateway_proxy", "test_gateway_sockets")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem.startswith(DATA_PATH):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}

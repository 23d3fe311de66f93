"""poold runs on uvloop, and so do its tests."""

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}

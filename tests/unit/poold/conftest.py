"""poold runs on uvloop, and so do its tests."""

import pytest
import uvloop
from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def nothing_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine becomes warm because one like it was asked for: what there is belongs to a sandbox."""
    monkeypatch.setattr("poold.pool.keeper.Keeper.asked", lambda *_: None)

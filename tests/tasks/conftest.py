"""One stage for all tests of this folder."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.tasks.client import Caller
from tests.tasks.stage import OTHER, Stage, open_stage
from tests.vm import traces

IMAGE = "minimal"


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    assert os.geteuid() == 0, "these tests make network namespaces: run them as root"
    before = traces.host_network()
    with open_stage(pool=f"{IMAGE}=2-4", image=IMAGE) as stage:
        yield stage
        assert stage.host.process.poll() is None, stage.host.log()[-3000:]
        for trouble in ("unforeseen", "Traceback"):
            assert trouble not in stage.logs(), stage.logs()[-6000:]
    assert traces.mentioning(stage.host.state) == []
    assert traces.host_network() == before


@pytest.fixture(scope="session")
def alice(stage: Stage) -> Caller:
    return stage.caller()


@pytest.fixture(scope="session")
def mallory(stage: Stage) -> Caller:
    return stage.caller(OTHER)

"""One world for all tests of this folder: a host with real microVMs in it, and an internet that they must not reach."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.bench.host import Host, open_host
from tests.egress.attempts_addresses import POOLD_PORT
from tests.egress.internet import Internet, open_internet
from tests.egress.world import World, open_world
from tests.vm import traces
from tests.vm.client import Api

IMAGE = "minimal"
SLOTS = 24
# Nobody else's: the tests of other rooms may run on this host at the same time.
# Two runs at once have users of their own, too, for whatever runs as a proxy's user ends with it.
BASE_UID = 310_000 + os.getpid() % 40 * 200


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Nothing is tried unless it is proven that nothing gets out of it."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    assert os.geteuid() == 0, "these tests make network namespaces: run them as root"
    before = traces.host_network()
    with open_world() as world:
        yield world
    assert traces.host_network() == before


@pytest.fixture(scope="session")
def internet(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with open_internet(world.internet, tmp_path_factory.mktemp("internet")) as internet:
        yield internet


@pytest.fixture(scope="session")
def host(world: World, internet: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A poold whose way out is the test's internet and nothing else. Its pip is set up for a mirror of its own."""
    settings = tmp_path_factory.mktemp("host") / "pip.conf"
    settings.write_text("[global]\nindex-url = https://someone:secret@mirror.example.com/simple\n")
    with open_host(
        pool=f"{IMAGE}=2-4",
        prefix=world.host.inside([]),
        POOLD_LISTEN=f"127.0.0.1:{POOLD_PORT}",
        POOLD_DEFAULT_IMAGE=IMAGE,
        POOLD_SLOTS=str(SLOTS),
        POOLD_BASE_UID=str(BASE_UID),
        POOLD_GUEST_CA=str(internet.certificates.ca),
        PIP_CONFIG_FILE=str(settings),
    ) as host:
        host.wait_until_warm()
        yield host
        assert host.process.poll() is None, host.log()[-3000:]
        for trouble in ("unforeseen", "cannot be written down"):
            assert trouble not in host.log(), host.log()[-3000:]
    assert traces.mentioning(host.state) == []


@pytest.fixture(scope="session")
def api(host: Host) -> Api:
    return Api(host, as_operator=True)

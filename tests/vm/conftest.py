"""Real microVMs behind a real poold, which most tests share. Fixtures look that nothing is left on the host."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import snapshots
from tests.bench.host import Host, open_host
from tests.vm import traces
from tests.vm.client import Api, Sandbox

IMAGE = "minimal"
SLOTS = 24
# Nobody else's: the tests of other rooms may run on this host at the same time.
BASE_UID = 280_000
RUN_PREFIX = f"warren-vmtest-{os.getpid()}-"
# Of another shape than usual; one for all tests that need it, because a shape's first machine takes its time.
SMALL_DISK = {"vcpus": 2, "memory_mb": 320, "disk_mb": 128}

OpenOwn = Callable[..., AbstractContextManager[Host]]


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """The host after the run is the host before it."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    assert os.geteuid() == 0, "poold makes network namespaces: run these tests as root"
    before = traces.host_network()
    yield
    assert traces.host_network() == before
    assert traces.mentioning(Path("/run") / RUN_PREFIX) == []
    assert list(Path("/run").glob(f"{RUN_PREFIX}*")) == []


@contextlib.contextmanager
def _run_dir() -> Iterator[Path]:
    """A folder for pins during the block. After it, poold has left nothing there but its own empty folder."""
    folder = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir="/run"))
    try:
        yield folder
    finally:
        left = [path for path in folder.rglob("*") if path != folder / "netns"]
        # The test that left something fails, and not those after it.
        for path in left:
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
        shutil.rmtree(folder)
    assert left == []


@pytest.fixture(scope="session")
def host(_nothing_is_left: None) -> Iterator[Host]:
    """The poold that tests share: they leave it and its other sandboxes as they found them."""
    with _run_dir() as run_dir:
        with open_host(
            pool=f"{IMAGE}=2-4",
            POOLD_DEFAULT_IMAGE=IMAGE,
            POOLD_SLOTS=str(SLOTS),
            POOLD_BASE_UID=str(BASE_UID),
            POOLD_RUN_DIR=str(run_dir),
        ) as host:
            host.wait_until_warm()
            yield host
            assert host.process.poll() is None, host.log()[-3000:]
            assert "unforeseen" not in host.log(), host.log()[-3000:]
        assert traces.mentioning(host.state) == []
        assert traces.proxies(BASE_UID, SLOTS) == []


@pytest.fixture(scope="session")
def api(host: Host) -> Api:
    return Api(host)


@pytest.fixture
def sandbox(api: Api) -> Iterator[Sandbox]:
    """A sandbox of the test's own."""
    with api.sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared(api: Api) -> Iterator[Sandbox]:
    """A sandbox for all tests of a module that do no harm to it."""
    with api.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def state(host: Host) -> Iterator[Path]:
    """A state folder that several poolds can use one after the other, with the snapshots that there are already."""
    with tempfile.TemporaryDirectory(prefix="warren-") as name:
        folder = Path(name)
        snapshots.borrow(folder, host.state)
        yield folder
        left = traces.mentioning(folder)
        for pid in traces.machines(folder).values():
            os.kill(pid, signal.SIGKILL)
        assert left == []


@pytest.fixture
def open_own(state: Path) -> Iterator[OpenOwn]:
    """Opens a poold of the test's own, again with the same folders when it is called again."""
    with _run_dir() as run_dir:

        @contextlib.contextmanager
        def open_own(**variables: str) -> Iterator[Host]:
            own = {
                "pool": f"{IMAGE}=1-1",
                "POOLD_DEFAULT_IMAGE": IMAGE,
                "POOLD_SLOTS": "6",
                "POOLD_BASE_UID": str(BASE_UID + SLOTS),
                "POOLD_RUN_DIR": str(run_dir),
                "POOLD_CGROUP": f"warren-vmtest-{os.getpid()}",
                **variables,
            }
            with open_host(state=state, **own) as host:
                host.wait_until_warm()
                yield host

        yield open_own


@pytest.fixture(autouse=True)
def _no_sandbox_is_left(request: pytest.FixtureRequest, api: Api) -> Iterator[None]:
    """The test that leaves a sandbox behind fails, and not those after it."""
    if "shared" in request.fixturenames:
        request.getfixturevalue("shared")
    before = set(api.ids())
    yield
    left = set(api.ids()) - before
    for sandbox_id in left:
        api.call("DELETE", f"/v1/sandboxes/{sandbox_id}")
    assert left == set()

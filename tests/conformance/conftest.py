"""Every engine and every store, one after the other, under the same tests. Each leaves the host as it found it."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from poold import processes
from poold.config import S3Config
from poold.devstore import BUCKET, S3Server
from tests.conformance import stores
from tests.conformance.bench import ENGINES, QEMU, Bench, open_bench, processes_of, until
from tests.conformance.stores import FOLDER, STORES
from tests.s3server import running_s3


@pytest.fixture(scope="session")
def shared_folders() -> Iterator[dict[str, Path]]:
    """Where each engine keeps the snapshot that the tests share. Short names: they become those of unix sockets."""
    folders = {name: Path(tempfile.mkdtemp(prefix="warren-")) for name in ENGINES}
    yield folders
    for folder in folders.values():
        shutil.rmtree(folder)


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == QEMU and shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    return name


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def _leaving_nothing(name: str, folder: Path) -> AsyncIterator[Bench]:
    run_dir = folder / "run"
    files = _open_files()
    async with open_bench(name, folder, run_dir) as bench:
        yield bench
        left = await bench.traces()
        # The test that left something fails, and not those after it.
        for machine_id in [found.id for found in bench.engine.found()]:
            await bench.engine.destroy(machine_id)
        for pid in processes_of(folder):
            await processes.end(pid)
    pins = [str(path) for path in run_dir.rglob("netns/*")]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(run_dir) in line]
    assert left + pins + mounts == []
    await until(lambda: _open_files() <= files)


@pytest.fixture
async def bench(engine_name: str, shared_folders: dict[str, Path]) -> AsyncIterator[Bench]:
    """An engine with a snapshot that other tests use too."""
    async with _leaving_nothing(engine_name, shared_folders[engine_name]) as bench:
        yield bench


@pytest.fixture
async def fresh_bench(engine_name: str) -> AsyncIterator[Bench]:
    """An engine that has no snapshot yet."""
    with tempfile.TemporaryDirectory(prefix="warren-") as folder:
        async with _leaving_nothing(engine_name, Path(folder)) as bench:
            yield bench


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(params=STORES)
async def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[stores.Bench]:
    """Either kind of store, empty, with nothing half written in it afterwards."""
    if request.param == FOLDER:
        where: Path | S3Config = tmp_path / "store"
        server = None
    else:
        where = S3Config(BUCKET, f"of-test/{secrets.token_hex(8)}")
        server = request.getfixturevalue("s3_server")
    async with stores.open_bench(where, server) as bench:
        yield bench
        assert bench.back.left_over() == []

"""A real guest on a unix socket."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.gitserver import GitServer, serve
from tests.unit.guest.client import Client, end, launch
from tests.unit.guest.gits import SECRET


@pytest.fixture(scope="session")
def shared_guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    folder = tmp_path_factory.mktemp("guest")
    (folder / "workspace").mkdir()
    process, path = launch(folder)
    yield path, process.pid, folder / "workspace"
    end(process)


@pytest.fixture
async def guest(shared_guest: tuple[str, int, Path]) -> AsyncIterator[Client]:
    """A guest that other tests use too. Afterwards no test has left it with a bug in its log."""
    client = Client(*shared_guest)
    yield client
    await client.close()
    log = (await client.call("GET", "/logs")).body.decode()
    assert "Traceback" not in log, log


@pytest.fixture
async def fresh_guest(tmp_path: Path) -> AsyncIterator[Client]:
    """A guest of one test alone."""
    (tmp_path / "workspace").mkdir()
    process, path = launch(tmp_path)
    client = Client(path, process.pid, tmp_path / "workspace")
    yield client
    await client.close()
    end(process)


@pytest.fixture
def folder(shared_guest: tuple[str, int, Path], request: pytest.FixtureRequest) -> Path:
    """An empty folder that the guest sees."""
    name: str = request.node.name
    path = shared_guest[2] / name.replace("/", "_").replace("[", "_")[:80]
    path.mkdir()
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """A git server for everybody."""
    (tmp_path / "server").mkdir()
    with serve(tmp_path / "server") as server:
        yield server


@pytest.fixture
def private(tmp_path: Path) -> Iterator[GitServer]:
    """A git server that wants to know who asks."""
    (tmp_path / "private").mkdir()
    with serve(tmp_path / "private", users={"bot": SECRET}) as server:
        yield server

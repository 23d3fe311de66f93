"""A whole poold on the local engine, with the real guest in it, whose sandboxes have workspaces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

from poold.workspaces import Shelf
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_host import Host, Reply, open_host
from tests.unit.tasks.tasks_stage import LIMIT_S, _engine, a_folder

NAME = "my-repl"


class Stage:
    """A host, and what tests ask of its workspaces."""

    def __init__(self, host: Host, store: Path) -> None:
        self.host = host
        self.store = store

    @property
    def shelf(self) -> Shelf:
        return self.host.sandboxes.workspaces.shelf

    async def create(self, **wanted: object) -> str:
        return await self.host.create(**{"workspace": NAME, **wanted})

    async def get(self, sandbox: str) -> Any:
        return (await self.host.ask("GET", f"/v1/sandboxes/{sandbox}")).json

    async def run(self, sandbox: str, cmd: str) -> str:
        """The output of a command in the workspace."""
        reply = await self.host.exec(sandbox, f"set -e; cd {await self.where(sandbox)}; {cmd}")
        assert reply.status == 200, reply.body
        assert reply.json["exit_code"] == 0, reply.json
        out: str = reply.json["stdout"]
        return out

    async def where(self, sandbox: str) -> Path:
        machine = (await self.host.sandboxes.get(sandbox)).machine
        return next((self.store.parent / "local" / "machines").glob(f"{machine}*")) / "workspace"

    async def save(self, sandbox: str) -> Any:
        reply = await self.host.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save")
        assert reply.status == 200, reply.body
        return reply.json

    async def end(self, sandbox: str, query: str = "") -> Reply:
        return await self.host.ask("DELETE", f"/v1/sandboxes/{sandbox}{query}")

    async def ask(self, path: str = "", method: str = "GET", body: object = None, **more: Any) -> Reply:
        return await self.host.ask(method, f"/v1/workspaces{path}", body, **more)

    async def versions(self, name: str = NAME) -> list[Any]:
        found: list[Any] = (await self.ask(f"/{name}/versions")).json["versions"]
        return found

    async def numbers(self) -> list[int]:
        return [each["version"] for each in await self.versions()]

    async def kinds(self, sandbox: str) -> list[str]:
        reply = await self.host.ask("GET", f"/v1/sandboxes/{sandbox}/events?limit=1000")
        return [event["kind"] for event in reply.json["events"] if event["kind"].startswith("workspace")]

    def objects(self, what: str = "") -> list[Path]:
        place = self.store / "workspaces"
        return sorted(path for path in place.rglob("*") if path.is_file() and what in str(path))


@contextlib.asynccontextmanager
async def open_stage(
    folder: Path | None = None, *, store: Path | None = None, settings: Mapping[str, str] | None = None, slots: int = 4
) -> AsyncIterator[Stage]:
    """In a folder of its own, or in one that a former stage has left."""
    async with contextlib.AsyncExitStack() as stack:
        place = folder or await stack.enter_async_context(a_folder())
        engine = cast(FakeEngine, _engine(place))
        opened = open_host(
            place,
            slots=slots,
            engine=engine,
            settings=settings,
            recover=True,
            store_folder=store,
            limit_s=3 * LIMIT_S,
        )
        yield Stage(await stack.enter_async_context(opened), store or place / "store")


async def until(is_so: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await is_so():
            await asyncio.sleep(0.05)

"""A whole poold on the local engine, with the real guest in it: agents are real programs, and no machine is needed."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from poold.engines.local import LocalEngine
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_host import Host, Post, Reply, nobody_listens, open_host

GUEST = Path(__file__).parents[3] / "guest"
LIMIT_S = 60.0
FINAL = ("completed", "failed", "stopped")
Task = dict[str, Any]


class Stage:
    """A host, and what tests ask of its tasks."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def create(self, prompt: str = "Do nothing.", **fields: Any) -> str:
        reply = await self.host.ask("POST", "/v1/tasks", {"agent": "mock", "prompt": prompt, **fields})
        assert reply.status == 202, reply.body
        assert reply.headers["location"] == f"/v1/tasks/{reply.json['id']}"
        name: str = reply.json["id"]
        return name

    async def get(self, task: str) -> Task:
        found: Task = (await self.host.ask("GET", f"/v1/tasks/{task}")).json
        return found

    async def ask(self, method: str, task: str, path: str = "", body: object = None) -> Reply:
        return await self.host.ask(method, f"/v1/tasks/{task}{path}", body)

    async def until(self, task: str, is_so: Callable[[Task], bool]) -> Task:
        async with asyncio.timeout(LIMIT_S):
            while not is_so(found := await self.get(task)):
                if found["state"] in FINAL:
                    raise AssertionError(f"it ended: {found['state']} {found['reason']} {found['result']}")
                await asyncio.sleep(0.03)
        return found

    async def ended(self, task: str) -> Task:
        async with asyncio.timeout(LIMIT_S):
            while (found := await self.get(task))["phase"] != "done":
                await asyncio.sleep(0.03)
        return found

    async def events(self, task: str) -> list[tuple[str, dict[str, Any]]]:
        reply = await self.ask("GET", task, "/events?limit=1000")
        return [(event["kind"], event["data"]) for event in reply.json["events"]]

    async def kinds(self, task: str) -> list[str]:
        return [kind for kind, _ in await self.events(task)]

    async def steps(self, task: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("GET", task, "/steps?limit=1000")).json["steps"]
        return found


@contextlib.asynccontextmanager
async def a_folder() -> AsyncIterator[Path]:
    """With a short name: a socket's may not be long. Afterwards no machine in it runs any more."""
    with tempfile.TemporaryDirectory(prefix="wt-") as name:
        try:
            yield Path(name)
        finally:
            engine = _engine(Path(name))
            for machine in engine.found():
                await engine.destroy(machine.id)


@contextlib.asynccontextmanager
async def open_stage(
    folder: Path | None = None,
    *,
    slots: int = 4,
    post: Post = nobody_listens,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Stage]:
    """In a folder of its own, or in one that a former stage has left, whose tasks go on then."""
    async with contextlib.AsyncExitStack() as stack:
        place = folder or await stack.enter_async_context(a_folder())
        engine = cast(FakeEngine, _engine(place))
        opened = open_host(
            place, slots=slots, engine=engine, post=post, settings=settings, recover=True, limit_s=2 * LIMIT_S
        )
        yield Stage(await stack.enter_async_context(opened))


def _engine(folder: Path) -> LocalEngine:
    return LocalEngine(folder / "local", python=sys.executable, guest_path=GUEST)

"""Each step of a save and of a pull, broken by an error, by a lost reply and by a cancellation: nothing is half."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from poold.errors import GuestError
from poold.store.errors import Unreachable
from poold.workspaces import content, of_owner, saving
from tests.unit.workspaces.workspaces_stage import NAME, Stage, open_stage, until

PLACE = of_owner("local", NAME)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage


class Breaking:
    """The store, whose `number`th call of one kind fails: before it does anything, after it, or never returning."""

    def __init__(self, store: Any, call: str, number: int, how: str) -> None:
        self._store, self._call, self._left, self._how = store, call, number, how
        self.reached = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._call or name in ("list", "read"):
            return real if name != self._call else self._broken_iterator(real)
        return self._broken(real)

    def _is_it(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _broken(self, real: Any) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            if not self._is_it():
                return await real(*args, **more)
            if self._how == "lost":
                await real(*args, **more)
            self.reached.set()
            if self._how == "hangs":
                await asyncio.Event().wait()
            raise Unreachable("the store does not answer")

        return call

    def _broken_iterator(self, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if self._is_it():
                self.reached.set()
                raise Unreachable("the store does not answer")
            return real(*args, **more)

        return call


async def broken_save(stage: Stage, sandbox: str, call: str, number: int, how: str) -> None:
    store = stage.shelf.store
    stage.shelf.store = breaking = Breaking(store, call, number, how)  # type: ignore[assignment]
    try:
        reply = asyncio.ensure_future(stage.host.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save"))
        if how == "hangs":
            await asyncio.wait_for(breaking.reached.wait(), 30)
            for task in list(stage.host.sandboxes.workspaces._work._under_way):
                task.cancel()
        # The last step finds its object there already: its reply cannot be lost.
        is_there = (call, number, how) == ("create", 2, "lost")
        assert (await reply).status >= 500 or is_there, (await reply).body
    finally:
        stage.shelf.store = store


@pytest.mark.parametrize("how", ["fails", "lost", "hangs"])
@pytest.mark.parametrize(("call", "number"), [("write", 1), ("head", 1), ("put", 1), ("create", 1), ("create", 2)])
async def test_a_save_that_breaks_at_any_step_leaves_whole_versions_and_loses_nothing(
    stage: Stage, call: str, number: int, how: str
) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    assert (await stage.save(sandbox))["version"] == 1
    await stage.run(sandbox, "echo two > b")
    await broken_save(stage, sandbox, call, number, how)
    await assert_all_are_whole(stage)
    last = await stage.save(sandbox)
    assert last["workspace"]["saved_version"] == last["version"] == 2
    assert await stage.numbers() == [2, 1]
    assert list((stage.store.parent / "workspaces").iterdir()) == []  # nothing is left on this host's own disk
    other = await stage.create()
    assert (await stage.run(other, "cat a b")).split() == ["one", "two"]


async def test_what_is_discarded_ends_also_while_a_save_of_it_hangs(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    stage.shelf.store = breaking = Breaking(stage.shelf.store, "write", 1, "hangs")  # type: ignore[assignment]
    ending = asyncio.ensure_future(stage.end(sandbox))
    await asyncio.wait_for(breaking.reached.wait(), 30)
    assert (await stage.end(sandbox, "?discard=1")).json["state"] == "stopped"
    assert (await ending).code in ("workspace_unsaved", "sandbox_stopped")
    assert (await stage.get(sandbox))["state"] == "stopped"


async def assert_all_are_whole(stage: Stage) -> None:
    """Every version that there is can be read to its end."""
    for number in await stage.shelf.numbers(PLACE):
        whole = await stage.shelf.manifest(PLACE, number)
        listing = await stage.shelf.listing(PLACE, whole)
        async for _ in content.files(stage.shelf, PLACE, whole, listing):
            pass


@pytest.mark.parametrize("call", ["list", "get", "read"])
async def test_a_pull_that_breaks_fails_the_create_and_loses_nothing(stage: Stage, call: str) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    await stage.end(sandbox)
    store = stage.shelf.store
    stage.shelf.store = Breaking(store, call, 1, "fails")  # type: ignore[assignment]
    reply = await stage.host.ask("POST", "/v1/sandboxes", {"workspace": NAME})
    assert (reply.status, reply.code) == (503, "store_unreachable")
    stage.shelf.store = store
    await until(lambda: _is_empty(stage))
    assert await stage.run(await stage.create(), "cat a") == "one\n"


async def _is_empty(stage: Stage) -> bool:
    return not stage.host.sandboxes.machines()


async def test_a_create_that_is_cut_short_while_it_pulls_leaves_nothing(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    await stage.end(sandbox)
    store = stage.shelf.store
    stage.shelf.store = breaking = Breaking(store, "get", 2, "hangs")  # type: ignore[assignment]
    asked = asyncio.ensure_future(stage.host.ask("POST", "/v1/sandboxes", {"workspace": NAME}))
    await asyncio.wait_for(breaking.reached.wait(), 30)
    (made,) = stage.host.sandboxes.creations.of()
    stage.shelf.store = store
    assert (await stage.end(made)).json["state"] in ("error", "stopped")
    assert (await asked).status >= 400
    assert await stage.run(await stage.create(), "cat a") == "one\n"


async def test_a_guest_that_dies_while_it_is_saved_costs_nothing_that_was_saved(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    await stage.save(sandbox)
    (live,) = stage.host.sandboxes.machines()
    wish = saving.Wish(PLACE, sandbox, 10**12, 1, live.sandbox.workspace.mark if live.sandbox.workspace else None)
    saving_it = asyncio.ensure_future(saving.save(stage.shelf, live.guest, wish))
    await asyncio.sleep(0)
    live.guest.close(GuestError("it was killed"))
    with contextlib.suppress(GuestError):
        await saving_it
    assert await stage.numbers() == [1]
    await assert_all_are_whole(stage)

"""Workspaces and templates as programs ask for them, with both clients."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import open_stage, refusal, reply, stream
from tests.sdk.sdk_workspaces import Shelf, open_shelf
from warren import (
    AsyncWarren,
    CapacityError,
    Change,
    HeldWorkspace,
    NotFound,
    Retries,
    StreamBroken,
    Unreachable,
    Warren,
    WorkspaceUnsaved,
)
from warren.calls import SAVE_S, kill
from warren.lines import _read_limit
from warren.workspace_calls import save


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with open_shelf() as shelf:
        yield shelf


@pytest.fixture
def warren(shelf: Shelf) -> Iterator[Warren]:
    with Warren(shelf.url, KEY) as warren:
        yield warren


def test_what_one_sandbox_saved_the_next_one_has(shelf: Shelf, warren: Warren) -> None:
    with warren.create(workspace="my-repl", template="node") as sandbox:
        assert sandbox.info.workspace == HeldWorkspace("my-repl", None, None, "node")
        shelf.files["a.txt"] = b"one"
        saved = sandbox.save_workspace()
        assert (saved.version, saved.is_new, sandbox.info.workspace.saved_version) == (1, True, 1)
        assert sandbox.save_workspace().is_new is False
        shelf.files["a.txt"] = b"two"
    assert sandbox.info.workspace == HeldWorkspace("my-repl", None, 2, "node")
    again = warren.create(workspace="my-repl")
    assert again.info.workspace == HeldWorkspace("my-repl", 2, None, None)
    assert shelf.asked[0] == ("POST", "/v1/sandboxes", {"workspace": "my-repl", "template": "node"})


def test_workspaces_and_versions_come_page_after_page(shelf: Shelf, warren: Warren) -> None:
    for name in "edcba":
        for count in range(5):
            shelf.add(name, {"f": b"x" * count})
    assert [each.name for each in warren.workspaces.list()] == ["a", "b", "c", "d", "e"]
    workspace = warren.workspaces.get("c")
    assert (workspace.version, workspace.info.size_bytes, workspace.info.files) == (5, 4, 1)
    assert [(each.version, each.parent) for each in workspace.versions()] == [(5, 4), (4, 3), (3, 2), (2, 1), (1, None)]
    assert [each.name for each in warren.templates()] == ["node", "shop"]


def test_what_is_different_is_told_and_an_earlier_version_is_the_newest_again(shelf: Shelf, warren: Warren) -> None:
    shelf.add("w", {"a": b"1\n", "b": b"1\n"})
    shelf.add("w", {"a": b"1\n2\n", "c": b"\0"})
    workspace = warren.workspaces.get("w")
    found = workspace.diff()
    assert (found.from_version, found.to_version, found.is_truncated, found.text) == (1, 2, False, None)
    assert found.changes == (
        Change("a", "changed", 2, 4),
        Change("b", "removed", 2, None),
        Change("c", "added", None, 1),
    )
    assert workspace.diff(2, 1).changes[1].change == "added"
    assert workspace.diff(to_version=1).from_version is None
    text = workspace.diff(1, 2, path="a").text
    assert text is not None
    assert text.endswith("+2\n")
    restored = workspace.restore(1)
    assert (restored.version, restored.restored_from, workspace.version) == (3, 1, 3)
    assert workspace.diff(1, 3).changes == ()
    assert workspace.delete() == 3
    with pytest.raises(NotFound):
        warren.workspaces.get("w")


def test_a_version_is_carried_here_and_the_newest_is_the_newest_of_now(
    shelf: Shelf, warren: Warren, tmp_path: Path
) -> None:
    shelf.add("w", {"a": b"1"})
    workspace = warren.workspaces.get("w")
    shelf.add("w", {"a": b"2"})
    shelf.archives = {("w", 1): b"first", ("w", 2): b"second" * 1000}
    seen: list[int] = []
    done = workspace.download(tmp_path / "it", progress=lambda count, total: seen.append(count))
    assert (tmp_path / "it").read_bytes() == b"second" * 1000
    assert (done.bytes, seen[-1]) == (6000, 6000)
    target = io.BytesIO()
    workspace.download(target, 1)
    assert target.getvalue() == b"first"
    with pytest.raises(NotFound):
        workspace.download(tmp_path / "no", 7)
    assert not (tmp_path / "no").exists()


async def test_the_client_for_asyncio_does_the_same(shelf: Shelf, tmp_path: Path) -> None:
    async with AsyncWarren(shelf.url, KEY) as warren:
        async with await warren.create(workspace="w") as sandbox:
            shelf.files["a"] = b"1\n"
            assert (await sandbox.save_workspace()).version == 1
            shelf.files["a"] = b"2\n"
        assert sandbox.info.workspace == HeldWorkspace("w", None, 2, None)
        workspace = await warren.workspaces.get("w")
        assert repr(workspace) == "<AsyncWorkspace w version 2>"
        assert [each.name async for each in warren.workspaces.list()] == ["w"]
        assert [each.version async for each in workspace.versions()] == [2, 1]
        assert [each.path for each in (await workspace.diff(1, 2)).changes] == ["a"]
        shelf.archives["w", 2] = b"all"
        assert (await workspace.download(tmp_path / "it")).bytes == 3
        assert ((await workspace.restore(1)).version, workspace.version) == (3, 3)
        assert await workspace.delete() == 3
        assert [each.name for each in await warren.templates()] == ["node", "shop"]
        with pytest.raises(NotFound):
            await warren.workspaces.get("w")


def test_a_sandbox_whose_workspace_cannot_be_saved_is_told_at_once_and_ends_if_that_is_wanted(
    shelf: Shelf, warren: Warren
) -> None:
    sandbox = warren.create(workspace="w")
    shelf.is_store_away = True
    with pytest.raises(WorkspaceUnsaved) as error:
        sandbox.kill()
    assert error.value.code == "workspace_unsaved"
    assert isinstance(error.value, CapacityError)
    assert [method for method, _, _ in shelf.asked].count("DELETE") == 1  # the host itself goes on trying
    assert sandbox.refresh().state == "running"
    assert sandbox.kill(discard=True).state == "stopped"
    assert shelf.asked[-1] == ("DELETE", f"/v1/sandboxes/{ID}", {"discard": "1"})


def test_a_block_does_not_end_quietly_if_its_workspace_was_not_saved(shelf: Shelf, warren: Warren) -> None:
    with pytest.raises(WorkspaceUnsaved), warren.create(workspace="w"):
        shelf.is_store_away = True
    with pytest.raises(ZeroDivisionError), warren.get(ID):
        print(1 // 0)


@pytest.mark.parametrize("name", ["", ".", "..", "../keys", "a/b", "A", "a b", "a?x", "-a", "a" * 65, "ä"])
def test_what_can_be_no_name_is_not_even_asked_for(shelf: Shelf, warren: Warren, name: str) -> None:
    with pytest.raises(NotFound):
        warren.workspaces.get(name)
    assert shelf.asked == []


def test_a_restore_and_a_deletion_are_sent_once_and_reads_and_saves_again() -> None:
    row = {"name": "w", "version": 1}
    quick = Retries(attempts=3, first_s=0.01)
    with open_stage() as stage, Warren(stage.url, KEY, retries=quick) as warren:
        stage.play(b"", reply(200, row))
        workspace = warren.workspaces.get("w")
        for act in (lambda: workspace.restore(1), workspace.delete):
            stage.asked.clear()
            stage.play(b"", reply(201, {"version": 2}))
            with pytest.raises(Unreachable):
                act()
            assert len(stage.asked) == 1
        held = {"name": "w", "from_version": None, "saved_version": 3, "template": None}
        stage.play(
            reply(200, {**ROW, "workspace": held}),
            b"",
            reply(200, {"workspace": held, "version": 3, "is_new": True, "later": 1}),
        )
        assert warren.get(ID).save_workspace().version == 3


def test_an_archive_that_breaks_off_is_an_error_and_no_file(tmp_path: Path) -> None:
    with open_stage() as stage, Warren(stage.url, KEY, retries=Retries(attempts=1)) as warren:
        stage.play(reply(200, {"name": "w", "version": 1}), stream(b"half of it", is_whole=False))
        workspace = warren.workspaces.get("w")
        with pytest.raises(StreamBroken):
            workspace.download(tmp_path / "it", 1)
        assert list(tmp_path.iterdir()) == []


def test_a_gateway_that_knows_no_workspaces_is_understood() -> None:
    with open_stage() as stage, Warren(stage.url, KEY) as warren:
        stage.play(reply(200, ROW), refusal(404, "no_such_route"))
        sandbox = warren.get(ID)
        assert (sandbox.info.workspace, sandbox.info.is_saved) == (None, False)
        with pytest.raises(NotFound) as error:
            list(warren.workspaces.list())
        assert error.value.code == "no_such_route"


def test_what_saves_may_take_longer_than_anything_else() -> None:
    assert _read_limit(save(ID), 5.0) == SAVE_S
    assert _read_limit(kill(ID, is_saved=True), 5.0) == SAVE_S
    assert _read_limit(kill(ID, is_saved=True, discard=True), 5.0) == 5.0
    assert _read_limit(kill(ID), 5.0) == 5.0


def test_a_cancelled_program_saves_its_workspace_before_it_leaves(shelf: Shelf) -> None:
    async def work() -> None:
        async with AsyncWarren(shelf.url, KEY) as warren, await warren.create(workspace="w"):
            shelf.files["a"] = b"1"
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.ensure_future(work())
        while "a" not in shelf.files:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert shelf.saved["w"][-1][1] == {"a": b"1"}


def test_a_task_is_asked_for_with_a_workspace() -> None:
    with open_stage() as stage, Warren(stage.url, KEY) as warren:
        stage.play(reply(202, {"id": "tk-2zkqmnb5wc7hxv3a", "state": "queued", "agent": "mock", "created_ms": 1}))
        warren.tasks.create("do it", agent="mock", workspace="w")
        assert json.loads(stage.asked[0].body)["workspace"] == "w"

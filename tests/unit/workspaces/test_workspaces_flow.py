"""A sandbox begins with what another has saved."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator

import pytest
import zstandard

from poold.store.errors import Unreachable
from tests.unit.tasks.tasks_stage import a_folder
from tests.unit.tasks.tasks_stage import open_stage as open_tasks
from tests.unit.workspaces.workspaces_stage import Stage, open_stage, until

MADE = "echo one > a; mkdir -p b/c; echo two > b/c/d; chmod 750 b; chmod 640 a; ln -s a link; ln a hard; mkfifo pipe"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage


async def test_what_was_there_at_the_end_is_there_at_the_next_beginning(stage: Stage) -> None:
    first = await stage.create()
    kept = {"name": "my-repl", "from_version": None, "saved_version": None, "template": None}
    assert (await stage.get(first))["workspace"] == kept
    await stage.run(first, MADE)
    reply = await stage.end(first)
    assert (reply.status, reply.json["state"]) == (200, "stopped")
    assert reply.json["workspace"] == {**kept, "saved_version": 1}
    (version,) = await stage.versions()
    assert (version["version"], version["files"], version["sandbox"], version["size_bytes"]) == (1, 5, first, 8)
    second = await stage.create()
    assert (await stage.get(second))["workspace"] == {**kept, "from_version": 1}
    told = await stage.run(
        second, "cat a b/c/d; stat -c %a a b; readlink link; stat -c %h hard; stat -c %F pipe; ls -A"
    )
    assert told.split() == ["one", "two", "640", "750", "a", "2", "fifo", "a", "b", "hard", "link", "pipe"]
    assert "workspace_pulled" in await stage.kinds(second)


async def test_versions_are_made_when_something_changed_and_only_then(stage: Stage) -> None:
    sandbox = await stage.create()
    assert await stage.save(sandbox) == {
        "workspace": (await stage.get(sandbox))["workspace"],
        "version": None,
        "is_new": False,
    }
    await stage.run(sandbox, "echo one > a; echo keep > b")
    assert [(each["version"], each["is_new"]) for each in (await stage.save(sandbox), await stage.save(sandbox))] == [
        (1, True),
        (1, False),
    ]
    await stage.run(sandbox, "rm a; mkdir c; echo two > c/a")
    assert (await stage.save(sandbox))["version"] == 2
    assert (await stage.end(sandbox)).json["workspace"]["saved_version"] == 2
    assert await stage.numbers() == [2, 1]
    assert await stage.kinds(sandbox) == ["workspace_saved", "workspace_saved"]
    other = await stage.create()
    assert (await stage.run(other, "find . -type f | sort")).split() == ["./b", "./c/a"]
    assert (await stage.end(other)).json["workspace"]["saved_version"] is None
    assert await stage.numbers() == [2, 1]


async def test_a_long_row_of_small_changes_is_pulled_as_what_it_came_to(stage: Stage) -> None:
    sandbox = await stage.create()
    for number in range(15):
        await stage.run(sandbox, f"echo {number} > f{number}; echo {number} > last; rm -f f{number - 2}; ln -f last l")
        assert (await stage.save(sandbox))["version"] == number + 1
    assert len(stage.objects("/packs/")) == 15
    await stage.end(sandbox)
    other = await stage.create()
    assert (await stage.run(other, "cat *; stat -c %h last")).split() == ["13", "14", "14", "14", "2"]


async def test_two_that_save_at_once_make_two_versions(stage: Stage) -> None:
    one, two = await stage.create(), await stage.create()
    await asyncio.gather(stage.run(one, "echo one > a"), stage.run(two, "echo two > a"))
    saved = await asyncio.gather(stage.save(one), stage.save(two))
    assert sorted(each["version"] for each in saved) == [1, 2]
    assert {each["sandbox"] for each in await stage.versions()} == {one, two}
    # Who has changed nothing since does not undo what the other has saved.
    await asyncio.gather(stage.end(one), stage.end(two))
    assert await stage.numbers() == [2, 1]


async def test_an_end_that_cannot_save_waits_and_says_so(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    store, stage.shelf.store = stage.shelf.store, Away()  # type: ignore[assignment]
    reply = await stage.end(sandbox)
    assert (reply.status, reply.code) == (503, "workspace_unsaved")
    assert "discard=1" in reply.json["error"]["message"]
    assert (await stage.get(sandbox))["state"] == "running"
    assert (await stage.get(sandbox))["next"]["action"] == "destroy"
    assert await stage.kinds(sandbox) == ["workspace_unsaved"]
    stage.shelf.store = store
    await stage.host.later(40, sandbox)
    await stage.host.until_state(sandbox, "stopped")
    assert (await stage.get(sandbox))["workspace"]["saved_version"] == 1


async def test_what_is_discarded_ends_without_being_saved(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    stage.shelf.store = Away()  # type: ignore[assignment]
    reply = await stage.end(sandbox, "?discard=1")
    assert (reply.status, reply.json["state"], reply.json["workspace"]["saved_version"]) == (200, "stopped", None)
    assert (await stage.end(await stage.host.create(), "?discard=2")).code == "bad_field"


async def test_a_workspace_is_saved_while_its_sandbox_runs() -> None:
    async with open_stage(settings={"POOLD_WORKSPACE_SAVE_SEC": "1"}) as stage:
        sandbox = await stage.create()
        await stage.run(sandbox, "echo one > a")
        await until(lambda: _has(stage, 1))
        await stage.run(sandbox, "echo two > a")
        await until(lambda: _has(stage, 2))
        assert (await stage.get(sandbox))["workspace"]["saved_version"] == 2


async def _has(stage: Stage, version: int) -> bool:
    reply = await stage.ask("/my-repl/versions")
    return reply.status == 200 and [each["version"] for each in reply.json["versions"]][:1] == [version]


async def test_a_sandbox_whose_time_is_up_is_saved(stage: Stage) -> None:
    sandbox = await stage.create(timeout_sec=100)
    await stage.run(sandbox, "echo one > a")
    await stage.host.later(101, sandbox)
    await stage.host.until_state(sandbox, "stopped")
    assert await stage.numbers() == [1]


async def test_a_daemon_that_is_killed_goes_on_where_it_was() -> None:
    async with a_folder() as folder:
        async with open_stage(folder) as stage:
            sandbox = await stage.create()
            await stage.run(sandbox, "echo one > a")
            assert (await stage.save(sandbox))["version"] == 1
            await stage.run(sandbox, "echo two > b")
        async with open_stage(folder) as stage:
            assert (await stage.get(sandbox))["workspace"]["saved_version"] == 1
            assert (await stage.end(sandbox)).json["workspace"]["saved_version"] == 2
            other = await stage.create()
            assert (await stage.run(other, "cat a b")).split() == ["one", "two"]


async def test_another_host_of_the_store_pulls_what_the_first_has_saved() -> None:
    async with a_folder() as one, a_folder() as two, open_stage(one, store=two / "shared") as first:
        sandbox = await first.create()
        await stage_run(first, sandbox, one, "echo one > a")
        await first.end(sandbox)
        async with open_stage(two, store=two / "shared") as second:
            assert [each["version"] for each in await second.versions()] == [1]
            other = await second.create()
            assert await stage_run(second, other, two, "cat a") == "one\n"


async def stage_run(stage: Stage, sandbox: str, folder: object, cmd: str) -> str:
    machine = (await stage.host.sandboxes.get(sandbox)).machine
    reply = await stage.host.exec(sandbox, f"cd {folder}/local/machines/{machine}/workspace; {cmd}")
    out: str = reply.json["stdout"]
    return out


async def test_versions_are_listed_compared_read_and_restored(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "printf 'one\\ntwo\\n' > a; echo gone > b; mkdir c")
    await stage.save(sandbox)
    await stage.run(sandbox, "printf 'one\\n2\\n' > a; rm b; echo new > c/d; chmod 700 c")
    await stage.save(sandbox)
    told = (await stage.ask("/my-repl/diff?from=1&to=2")).json
    assert (told["from"], told["to"], told["truncated"], told["text"]) == (1, 2, False, None)
    assert [(each["path"], each["change"], each["size_before"], each["size_after"]) for each in told["changes"]] == [
        ("a", "changed", 8, 6),
        ("b", "removed", 5, None),
        ("c", "changed", None, None),
        ("c/d", "added", None, 4),
    ]
    text = (await stage.ask("/my-repl/diff?path=a")).json["text"]
    assert text == "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert (await stage.ask("/my-repl/diff?to=1")).json["from"] is None
    assert (await stage.ask("/my-repl/diff?from=1&to=7")).code == "not_found"
    assert (await stage.ask("/my-repl/diff?limit=1")).json["truncated"] is True
    reply = await stage.ask("/my-repl/restore", "POST", {"version": 1})
    assert (reply.status, reply.json["version"], reply.json["restored_from"], reply.json["parent"]) == (201, 3, 1, 2)
    other = await stage.create()
    assert (await stage.run(other, "cat a b")).split() == ["one", "two", "gone"]
    page = (await stage.ask("/my-repl/versions?limit=2")).json
    assert ([each["version"] for each in page["versions"]], page["next"]) == ([3, 2], 2)
    assert [each["version"] for each in (await stage.ask("/my-repl/versions?before=2")).json["versions"]] == [1]
    archive = await stage.ask("/my-repl/versions/2/archive")
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(archive.body)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert sorted(tar.getnames()) == ["workspace/a", "workspace/c", "workspace/c/d"]


async def test_workspaces_are_their_owners(stage: Stage) -> None:
    for owner, name in (("ann", "a"), ("ann", "b"), ("bob", "a")):
        sandbox = await stage.host.create(owner=owner, workspace=name, template=None)
        machine = (await stage.host.sandboxes.get(sandbox)).machine
        where = stage.store.parent / "local" / "machines" / str(machine) / "workspace"
        (where / "file").write_text(f"{owner} {name}")
        await stage.host.ask("DELETE", f"/v1/sandboxes/{sandbox}", owner=owner)
    listed = (await stage.ask(owner="ann")).json
    assert ([each["name"] for each in listed["workspaces"]], listed["next"]) == (["a", "b"], None)
    page = (await stage.ask("?limit=1", owner="ann")).json
    assert ([each["name"] for each in page["workspaces"]], page["next"]) == (["a"], "a")
    assert [each["name"] for each in (await stage.ask("?after=a", owner="ann")).json["workspaces"]] == ["b"]
    assert (await stage.ask("/b", owner="bob")).code == "not_found"
    assert (await stage.ask("/b", "DELETE", owner="bob")).code == "not_found"
    assert (await stage.ask("/a", owner="bob")).json["version"] == 1
    assert (await stage.ask("/a", "DELETE", owner="bob")).json == {"name": "a", "versions": 1}
    assert (await stage.ask("/a", owner="bob")).code == "not_found"
    assert (await stage.ask("/a", owner="ann")).status == 200


@pytest.mark.parametrize("name", ["", "-a", ".a", "A", "a/b", "a b", "a" * 65, "ä"])
async def test_a_name_that_is_none_is_refused(stage: Stage, name: str) -> None:
    reply = await stage.host.ask("POST", "/v1/sandboxes", {"workspace": name})
    assert (reply.status, reply.json["error"]["field"]) == (400, "workspace")


async def test_a_task_works_in_a_workspace_and_saves_it() -> None:
    async with open_tasks() as stage:
        for version in (1, 2):
            task = await stage.create("Work.\nrun echo more >> file", workspace="notes")
            assert (await stage.ended(task))["state"] == "completed"
            told = [data for kind, data in await stage.events(task) if kind == "task.saved"]
            assert told == [{"name": "notes", "version": version, "is_new": True}]
        (newest, first) = (await stage.host.ask("GET", "/v1/workspaces/notes/versions")).json["versions"]
        assert (newest["task"], newest["parent"], first["parent"]) == (task, 1, None)
        diff = (await stage.host.ask("GET", "/v1/workspaces/notes/diff?path=file")).json
        assert diff["text"].endswith(" more\n+more\n")
        fields = {"agent": "mock", "prompt": "Work.", "workspace": "notes", "repo": "https://git.example.com/a.git"}
        reply = await stage.host.ask("POST", "/v1/tasks", fields)
        assert (reply.status, reply.json["error"]["field"]) == (400, "workspace")


class Away:
    """A store that does not answer."""

    def __getattr__(self, name: str) -> object:
        raise Unreachable("the store does not answer")

"""A sandbox begins with what another has saved."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.workspaces.workspaces_stage import Stage, open_stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage


async def test_what_was_there_at_the_end_is_there_at_the_next_beginning(stage: Stage) -> None:
    first = await stage.create()
    assert (await stage.get(first))["workspace"] == {
        "name": "my-repl",
        "from_version": None,
        "saved_version": None,
        "template": None,
    }
    await stage.run(
        first, "pwd; echo one > a; mkdir -p b/c; echo two > b/c/d; chmod 750 b; chmod 640 a; ln -s a link; ln a hard"
    )
    reply = await stage.end(first)
    assert (reply.status, reply.json["state"]) == (200, "stopped")
    assert reply.json["workspace"]["saved_version"] == 1
    (version,) = await stage.versions()
    assert (version["version"], version["files"], version["sandbox"]) == (1, 4, first)
    second = await stage.create()
    assert (await stage.get(second))["workspace"]["from_version"] == 1
    told = await stage.run(second, "cat a b/c/d; stat -c %a a b; readlink link; stat -c %h hard; ls -A")
    assert told.split() == ["one", "two", "640", "750", "a", "2", "a", "b", "hard", "link"]

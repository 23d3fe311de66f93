"""Templates: what workspaces begin with, where nothing was saved of them yet."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from poold.tarring import put_archive, put_folder
from poold.workspaces import of_template, templates
from tests.unit.workspaces.workspaces_stage import Stage, open_stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        await templates.ship(stage.shelf, "1.2.3")
        yield stage


async def test_a_workspace_without_versions_begins_with_its_template(stage: Stage) -> None:
    sandbox = await stage.create(template="python")
    assert (await stage.get(sandbox))["workspace"]["template"] == "python"
    await stage.run(sandbox, "python3 main.py; python3 -m unittest 2>&1; rm -rf __pycache__")
    await stage.end(sandbox)
    (version,) = await stage.versions()
    assert (version["template"], version["parent"]) == ("python", None)
    other = await stage.create(template="node")
    kept = {"name": "my-repl", "from_version": 1, "saved_version": None, "template": None}
    assert (await stage.get(other))["workspace"] == kept
    assert "main.py" in await stage.run(other, "ls")


async def test_a_template_alone_is_not_saved(stage: Stage) -> None:
    sandbox = await stage.host.create(template="web")
    kept = {"name": None, "from_version": None, "saved_version": None, "template": "web"}
    assert (await stage.get(sandbox))["workspace"] == kept
    assert "index.html" in await stage.run(sandbox, "ls")
    reply = await stage.host.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save")
    assert (reply.status, reply.code) == (409, "wrong_state")
    await stage.end(sandbox)
    assert (await stage.ask()).json["workspaces"] == []


async def test_a_template_that_is_none_is_refused_and_others_are_named(stage: Stage) -> None:
    reply = await stage.host.ask("POST", "/v1/sandboxes", {"template": "no-such"})
    assert (reply.status, reply.json["error"]["field"]) == (400, "template")
    assert "node, python, web" in reply.json["error"]["message"]


async def test_shipped_templates_are_put_where_they_are_missing_or_older(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "shipped"
    (folder / "web").mkdir(parents=True)
    (folder / "web" / "index.html").write_text("new")
    assert await templates.ship(stage.shelf, "1.2.3") == []
    assert await templates.ship(stage.shelf, "1.2.2", folder) == []  # an older host does not take a newer one's place
    assert await templates.ship(stage.shelf, "1.3.0", folder) == ["web"]
    assert await stage.shelf.numbers(of_template("web")) == [2]
    reply = await stage.host.admin("PUT", "/admin/templates/web", packed({"own.txt": b"own"}))
    assert (reply.status, reply.json["is_shipped"]) == (201, False)
    (folder / "web" / "index.html").write_text("newer")
    assert await templates.ship(stage.shelf, "1.4.0", folder) == []
    assert await stage.run(await stage.host.create(template="web"), "ls") == "own.txt\n"


def packed(files: dict[str, bytes], top: str = "workspace/") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            header = tarfile.TarInfo(top + name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return stream.getvalue()


async def test_what_is_no_template_is_refused(stage: Stage) -> None:
    for body in (b"", b"x" * 2000, packed({"a": b""}, ""), packed({"../a": b""}), packed({"/etc/passwd": b""}, "")):
        reply = await stage.host.admin("PUT", "/admin/templates/bad", body)
        assert (reply.status, reply.code) == (400, "bad_template"), reply.body
    assert (await stage.host.admin("PUT", "/admin/templates/BAD", packed({}))).code == "bad_field"
    assert (await stage.host.admin("DELETE", "/admin/templates/bad")).code == "not_found"
    names = [each["name"] for each in (await stage.host.ask("GET", "/v1/templates")).json["templates"]]
    assert names == ["node", "python", "web"]


async def test_the_operator_adds_lists_and_removes_templates(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "run").write_text("#!/bin/sh\necho it runs\n")
    (folder / "bin" / "run").chmod(0o700)
    (folder / "link").symlink_to("bin/run")

    async def ctl(*words: str) -> str:
        argv = [sys.executable, "-m", "poold.ctl", *words, "--socket", str(stage.host.socket)]
        done = await run(argv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "mine: 2 files" in await ctl("template", "add", "mine", str(folder))
    assert "mine" in await ctl("template", "ls")
    assert '"is_shipped": false' in await ctl("template", "ls", "--json")
    assert await stage.run(await stage.host.create(template="mine"), "./link") == "it runs\n"
    archive = tmp_path / "mine.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, ".")
    assert "again: 2 files" in await ctl("template", "add", "again", str(archive))
    assert await stage.run(await stage.host.create(template="again"), "./bin/run") == "it runs\n"
    await ctl("template", "rm", "mine")
    assert "mine" not in await ctl("template", "ls")


async def run(argv: list[str]) -> "subprocess.CompletedProcess[str]":
    import asyncio

    kept = {name: value for name, value in os.environ.items() if not name.startswith("POOLD_")}
    return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False, env=kept)


def names_of(stream: bytes) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        return {each.name: each for each in tar}


def test_the_same_files_give_the_same_stream(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "b").write_text("same")
        os.utime(tmp_path / name / "a" / "b", (1, len(name)))
    streams = [io.BytesIO(), io.BytesIO()]
    for name, stream in zip(("one", "two"), streams, strict=True):
        put_folder(tmp_path / name, stream)
    assert streams[0].getvalue() == streams[1].getvalue()
    found = names_of(streams[0].getvalue())
    assert (found["workspace/a"].mode, found["workspace/a/b"].mode, found["workspace/a/b"].uid) == (0o755, 0o644, 1000)


def test_an_archive_is_put_below_one_folder() -> None:
    into = io.BytesIO()
    put_archive(io.BytesIO(packed({"a": b"one", "b/c": b"two"}, "./")), into)
    assert set(names_of(into.getvalue())) == {"workspace/a", "workspace/b/c"}

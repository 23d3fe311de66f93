"""The files of a machine that ends, told by one guest and put into another: of an overlay, and of a folder."""

import asyncio
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from warren_guest import checkpoints, layers
from warren_guest.checkpoint_routes import _CREATE, _EXTRACT
from warren_guest.errors import RefusedError
from warren_guest.layer_routes import _ATTRIBUTES
from warren_guest.trees import Root

from tests.unit.guest.client import Client, end, launch
from tests.unit.guest.test_guest_checkpoints import listed


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Client]:
    """A guest of its own: one that is frozen is of no use to others."""
    async for client in launched(tmp_path / "one"):
        yield client


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Client]:
    """The guest of another machine."""
    async for client in launched(tmp_path / "other"):
        yield client


async def launched(folder: Path) -> AsyncIterator[Client]:
    (folder / "workspace").mkdir(parents=True)
    process, path = launch(folder)
    client = Client(path, process.pid, folder / "workspace")
    yield client
    await client.close()
    end(process)


async def frozen(guest: Client, **asked: object) -> dict[str, int]:
    reply = await guest.call("POST", "/layer/freeze", {"grace_ms": 200, **asked})
    assert reply.status == 200, reply
    told: dict[str, int] = reply.json
    return told


async def identified(guest: Client, **env: str) -> None:
    body = {"generation": 1, "unix_ns": 1, "entropy": "A" * 44, "id": "sb-1", "env": env}
    assert (await guest.call("POST", "/identity", body)).status == 200


async def started(guest: Client, line: str) -> int:
    reply = await guest.call("POST", "/processes?detach=1", {"cmd": "/bin/sh", "args": ["-c", line]})
    assert reply.status == 201, reply
    return int(reply.json["pid"])


async def test_nothing_runs_when_the_files_are_told_and_they_are_those_of_that_moment(guest: Client) -> None:
    ends = await started(guest, "trap 'echo bye > ended; exit' TERM; touch a; while :; do sleep 0.01; done")
    stays = await started(guest, "trap '' TERM; (trap '' TERM; while :; do date > now; done) & touch b; wait")
    while not ((guest.workspace / "a").exists() and (guest.workspace / "now").exists()):
        await asyncio.sleep(0.01)
    told = await frozen(guest)
    assert told["ended"] >= 3
    assert told["killed"] >= 2
    for pid in (ends, stays):
        assert not Path(f"/proc/{pid}/cwd").exists() or not os.path.lexists(f"/proc/{pid}/exe")
    assert (guest.workspace / "ended").read_text() == "bye\n"
    files = listed(guest.workspace)
    reply = await guest.call("GET", "/layer")
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as archive:
        names = archive.getnames()
    assert names[:2] == ["removed", "env"]
    assert {"workspace/a", "workspace/ended", "workspace/now"} <= set(names)
    assert listed(guest.workspace) == files


async def test_a_frozen_guest_starts_and_changes_nothing_until_it_is_thawed(guest: Client) -> None:
    refused = await guest.call("GET", "/layer")
    assert (refused.status, refused.json["error"]["code"]) == (409, "not_possible")
    await frozen(guest)
    await frozen(guest)
    for method, path in (("POST", "/processes"), ("POST", "/files/make"), ("PUT", "/files/content?path=/workspace/x")):
        reply = await guest.call(method, path, {"cmd": "true"})
        assert (reply.status, reply.json["error"]["code"]) == (409, "not_possible")
    assert (await guest.call("GET", "/health")).json["frozen"] is True
    assert (await guest.call("POST", "/layer/thaw", {})).status == 200
    await started(guest, "true")


async def test_files_and_environment_go_on_in_another_guest(guest: Client, other: Client) -> None:
    await identified(guest, MINE="1", OURS="of host one", BOTH="mine")
    (guest.workspace / "run.sh").write_text("#!/bin/sh\n")
    (guest.workspace / "run.sh").chmod(0o750)
    os.link(guest.workspace / "run.sh", guest.workspace / "same")
    (guest.workspace / "link").symlink_to("/etc/hostname")
    (other.workspace / "of the image").write_text("gone")
    await frozen(guest, env={"OURS": "of host one", "BOTH": "ours"})
    reply = await guest.call("GET", "/layer")
    await identified(other, OURS="of host two", BOTH="ours")
    assert (await other.call("PUT", "/layer", reply.body)).status == 200
    assert listed(other.workspace) == listed(guest.workspace)
    await started(other, 'echo "$MINE $OURS $BOTH" > env')
    while not (other.workspace / "env").exists() or not (other.workspace / "env").read_text():
        await asyncio.sleep(0.01)
    assert (other.workspace / "env").read_text() == "1 of host two mine\n"


@pytest.mark.parametrize("body", [b"no archive", b"\0" * 100, b"x" * 100_000])
async def test_what_is_no_archive_changes_nothing(guest: Client, body: bytes) -> None:
    (guest.workspace / "here").write_text("here")
    reply = await guest.call("PUT", "/layer", body)
    assert (reply.status, reply.json["error"]["code"]) == (400, "bad_request")
    assert (guest.workspace / "here").read_text() == "here"


async def test_more_than_the_limit_breaks_the_stream_off(guest: Client) -> None:
    (guest.workspace / "large").write_bytes(os.urandom(3 << 20))
    await frozen(guest)
    with pytest.raises((EOFError, ConnectionError, asyncio.IncompleteReadError)):
        await guest.call("GET", "/layer?limit=1000000")


@pytest.fixture
def overlays(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two machines of one image, each with `upper` and `merged`. As root only."""
    if os.geteuid() != 0:
        pytest.skip("an overlay needs root")
    lower, drive = tmp_path / "lower", tmp_path / "drive"
    lower.mkdir()
    drive.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", drive], check=True)
    mounted = [drive]
    try:
        image(lower)
        for name in ("one", "two"):
            place = drive / name
            for each in ("upper", "work", "merged"):
                (place / each).mkdir(parents=True)
            layers_of = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers_of, place / "merged"], check=True)
            mounted.append(place / "merged")
        yield drive / "one", drive / "two"
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", path], check=True)


def image(root: Path) -> None:
    for name in ("etc/conf.d", "usr/bin", "usr/lib/old", "opt/app/data", "var/log"):
        (root / name).mkdir(parents=True)
    for name in ("etc/passwd", "etc/conf.d/a", "usr/bin/tool", "usr/bin/other", "usr/lib/old/lib.so", "opt/app/data/x"):
        (root / name).write_text(f"{name} of the image\n")
    (root / "lib").symlink_to("usr/lib")


def use(root: Path) -> None:
    """What people and package managers do to a system."""
    (root / "etc/passwd").write_text("changed\n")
    (root / "usr/bin/tool").unlink()
    (root / "usr/bin/tool.new").write_text("#!/bin/sh\n")
    (root / "usr/bin/tool.new").chmod(0o4755)
    subprocess.run(["rm", "-rf", root / "usr/lib/old"], check=True)
    subprocess.run(["rm", "-rf", root / "opt/app"], check=True)
    (root / "opt/app/data").mkdir(parents=True)
    (root / "opt/app/data/y").write_text("only this\n")
    (root / "var/log").chmod(0o2750)
    os.chown(root / "var/log", 1000, 1001)
    os.link(root / "usr/bin/tool.new", root / "usr/bin/tool2")
    (root / "lib").unlink()
    (root / "lib").mkdir()
    (root / "lib/real").write_text("a folder now\n")
    (root / "etc/conf.d/a").unlink()
    (root / "etc/conf.d/a").mkdir()
    (root / "run").mkdir()
    (root / "run/pid").write_text("1")
    os.mkfifo(root / "var/pipe")
    (root / os.fsdecode(b"odd-\xff\n")).symlink_to("nowhere")
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(root / "usr/bin/other", "security.capability", capability)


def copied(one: Path, two: Path) -> None:
    """The files of the first machine, in the second, as the guest does it."""
    changes = layers.Layer(str(one / "upper"), "/none", "/none").changes()
    names = b"".join(name + b"\0" for name in changes.present)
    with checkpoints.doors((Root(layers.ROOT, os.fsencode(one / "upper")),)) as doors:
        told = subprocess.run(["tar", *_ATTRIBUTES, *_CREATE], cwd=doors, input=names, capture_output=True, check=True)
    with checkpoints.staged(str(two / "merged/var/lib/warren")) as staging:
        (Path(staging) / "removed").write_bytes(b"".join(name + b"\0" for name in changes.gone))
        subprocess.run(["tar", *_ATTRIBUTES, *_EXTRACT], cwd=staging, input=told.stdout, check=True)
        checkpoints.apply((Root(layers.ROOT, os.fsencode(two / "merged")),), staging, layers.copy_attributes)
    (two / "merged/var/lib/warren").rmdir()


def test_what_was_made_changed_and_removed_above_an_image_is_so_in_another_machine_of_it(
    overlays: tuple[Path, Path],
) -> None:
    one, two = overlays
    use(one / "merged")
    copied(one, two)
    wanted, found = listed(one / "merged"), listed(two / "merged")
    wanted.pop("run/pid")
    wanted.pop("run")
    found.pop("var/lib")
    assert found == wanted
    log = (two / "merged/var/log").stat()
    assert (log.st_uid, log.st_gid, stat.S_IMODE(log.st_mode)) == (1000, 1001, 0o2750)
    assert os.getxattr(two / "merged/usr/bin/other", "security.capability")
    assert not (two / "merged/usr/lib/old").exists()
    assert os.listdir(two / "merged/opt/app/data") == ["y"]


def test_a_machine_of_which_nothing_was_changed_has_nothing_to_tell(overlays: tuple[Path, Path]) -> None:
    one, _ = overlays
    changes = layers.Layer(str(one / "upper"), "/none", "/none").changes()
    assert (changes.present, changes.gone) == ([], [])


def test_a_folder_that_shows_another_one_is_refused_by_name(overlays: tuple[Path, Path]) -> None:
    one, _ = overlays
    (one / "upper/etc").mkdir()
    os.setxattr(one / "upper/etc", layers.REDIRECT, b"usr")
    with pytest.raises(RefusedError, match="upper/etc"):
        layers.Layer(str(one / "upper"), "/none", "/none").changes()

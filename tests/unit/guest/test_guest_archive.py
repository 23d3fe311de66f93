"""Archives of the workspace, as they are read by whoever keeps them."""

import asyncio
import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.unit.guest.client import Client, Conversation


async def archive(guest: Client, path: Path | str, limit: int | None = None) -> bytes:
    query = f"?path={quote(str(path))}" + (f"&limit={limit}" if limit else "")
    reply = await guest.call("GET", f"/archive{query}")
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/x-tar"
    return reply.body


def read(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


async def test_an_archive_has_everything_as_it_is(guest: Client, folder: Path, tmp_path: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "läng\n").write_bytes(b"\0\xff" * 1000)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "out").symlink_to("/etc/passwd")
    os.link(folder / "run", folder / "same")
    os.mkfifo(folder / "fifo")
    (folder / ("n" * 200)).write_text("long name")
    data = await archive(guest, folder)
    found = read(data)
    assert set(found) == {".", "./sub", "./sub/läng\n", "./run", "./out", "./same", "./fifo", "./" + "n" * 200}
    assert found["./out"].issym()
    assert found["./out"].linkname == "/etc/passwd"
    assert found["./run"].mode == 0o755
    subprocess.run(["tar", "--extract", "--directory", tmp_path], input=data, check=True)
    assert (tmp_path / "sub" / "läng\n").read_bytes() == b"\0\xff" * 1000


async def test_holes_stay_holes(guest: Client, folder: Path, tmp_path: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"here")
    data = await archive(guest, folder)
    assert len(data) < 1 << 20
    subprocess.run(["tar", "--extract", "--directory", tmp_path], input=data, check=True)
    facts = (tmp_path / "sparse").stat()
    assert facts.st_size == 1 << 30
    assert facts.st_blocks * 512 < 1 << 20


async def test_sockets_are_left_out(guest: Client, folder: Path) -> None:
    (folder / "file").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # the name of a socket is short
        listener.bind("socket")
        assert set(read(await archive(guest, folder))) == {".", "./file"}
    os.chdir("/")


async def test_without_a_path_it_is_the_workspace(fresh_guest: Client) -> None:
    (fresh_guest.workspace / "file").write_text("x")
    reply = await fresh_guest.call("GET", "/archive")
    assert set(read(reply.body)) == {".", "./file"}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc", "bad_path"),
        ("/", "bad_path"),
        ("{folder}/../..", "bad_path"),
        ("{folder}-sibling", "not_found"),
        ("{folder}/out", "not_a_directory"),
        ("{folder}/out/ssl", "not_a_directory"),
        ("{folder}/file", "not_a_directory"),
        ("{folder}/nothing", "not_found"),
    ],
)
async def test_only_folders_of_the_workspace_are_archived(guest: Client, folder: Path, path: str, code: str) -> None:
    (folder / "out").symlink_to("/etc")
    (folder / "file").write_text("x")
    reply = await guest.call("GET", f"/archive?path={quote(path.format(folder=folder))}")
    assert reply.code == code


async def test_an_archive_over_its_limit_is_broken_off(guest: Client, folder: Path) -> None:
    (folder / "large").write_bytes(os.urandom(3 << 20))
    whole = await archive(guest, folder, 4 << 20)
    assert len(whole) > 3 << 20
    stream = await guest.stream("GET", f"/archive?path={quote(str(folder))}&limit={1 << 20}")
    assert await until_cut(stream) <= 1 << 20


async def until_cut(stream: Conversation) -> int:
    """How many bytes came before the stream broke off, which it has to."""
    size = 0
    try:
        while piece := await stream.piece():
            size += len(piece)
    except (asyncio.IncompleteReadError, ConnectionError):
        return size
    raise AssertionError("the archive came to its end")


async def tars_of(guest: Client) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                facts = (process / "stat").read_text()
                if int(facts.rsplit(")", 1)[1].split()[1]) == guest.pid and "(tar)" in facts:
                    found.append(process.name)
            except OSError:
                continue
    return found


async def test_who_leaves_ends_it_and_who_is_slow_slows_it(fresh_guest: Client) -> None:
    large = fresh_guest.workspace / "large"
    with large.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
    stream: Conversation = await fresh_guest.stream("GET", "/archive")
    await stream.piece()
    assert len(await tars_of(fresh_guest)) == 1, "it waits for its reader"
    resident = int((Path("/proc") / str(fresh_guest.pid) / "statm").read_text().split()[1]) * 4096
    assert resident < 128 << 20
    await stream.close()

    async def is_over() -> bool:
        return not await tars_of(fresh_guest)

    await fresh_guest.until(is_over)


async def test_a_tar_that_fails_breaks_it_off(fresh_guest: Client) -> None:
    (fresh_guest.workspace / "large").write_bytes(os.urandom(16 << 20))
    stream = await fresh_guest.stream("GET", "/archive")
    await stream.piece()
    (tar,) = await tars_of(fresh_guest)
    os.kill(int(tar), 15)
    await until_cut(stream)

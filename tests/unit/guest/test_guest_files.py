"""Files: what goes in comes out, every refusal has its name, and a watch tells what happened exactly once."""

import asyncio
import os
import pwd
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.guest.client import Client


def at(path: Path | str, **more: object) -> str:
    """The query for `path`."""
    return "&".join([f"path={quote(str(path))}", *(f"{name}={value}" for name, value in more.items())])


async def test_a_file_that_was_put_is_read_back_whole(guest: Client, folder: Path) -> None:
    content = os.urandom(300_000)
    reply = await guest.call("PUT", f"/files/content?{at(folder / 'a/b/c')}", content)
    assert reply.status == 200
    assert reply.json["bytes"] == 300_000
    assert reply.json["entry"]["size"] == 300_000
    read = await guest.call("GET", f"/files/content?{at(folder / 'a/b/c')}")
    assert read.headers["content-length"] == "300000"
    assert read.body == content


@pytest.mark.parametrize("size", [0, 10, 200_000])
@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=2-5", slice(2, 6)),
        ("bytes=2-", slice(2, None)),
        ("bytes=-3", slice(-3, None)),
        ("bytes=5-9999999", slice(5, None)),
    ],
)
async def test_ranges_are_the_bytes_that_were_asked_for(
    guest: Client, folder: Path, size: int, asked: str, part: slice
) -> None:
    content = os.urandom(size)
    (folder / "f").write_bytes(content)
    reply = await guest.call("GET", f"/files/content?{at(folder / 'f')}", Range=asked)
    if size == 0:
        assert (reply.status, reply.code) == (416, "bad_range")
        return
    assert reply.status == 206
    assert reply.body == content[part]
    first = part.indices(size)[0]
    assert reply.headers["content-range"] == f"bytes {first}-{first + len(reply.body) - 1}/{size}"


async def test_a_range_behind_the_end_is_refused_and_an_odd_one_ignored(guest: Client, folder: Path) -> None:
    (folder / "f").write_bytes(b"0123456789")
    assert (await guest.call("GET", f"/files/content?{at(folder / 'f')}", Range="bytes=10-")).status == 416
    assert (await guest.call("GET", f"/files/content?{at(folder / 'f')}", Range="lines=1-2")).status == 200


async def test_an_empty_file_has_no_bytes_and_a_file_of_proc_some(guest: Client, folder: Path) -> None:
    (folder / "empty").touch()
    empty = await guest.call("GET", f"/files/content?{at(folder / 'empty')}")
    assert (empty.headers["content-length"], empty.body) == ("0", b"")
    proc = await guest.call("GET", "/files/content?path=/proc/cpuinfo")
    assert proc.headers["transfer-encoding"] == "chunked"
    assert proc.body.startswith(b"processor")


async def test_a_part_of_a_file_is_written_in_place(guest: Client, folder: Path) -> None:
    (folder / "f").write_bytes(b"0123456789")
    target = f"/files/content?{at(folder / 'f')}"
    reply = await guest.call("PUT", target, b"abc", Content_Range="bytes 4-6/*")
    assert reply.json["bytes"] == 3
    assert (folder / "f").read_bytes() == b"0123abc789"
    for header, body in [("bytes 4-6/*", b"ab"), ("bytes 6-4/*", b"ab"), ("4-6", b"abc")]:
        reply = await guest.call("PUT", target, body, Content_Range=header)
        assert (reply.code, reply.json["error"]["field"]) == ("bad_field", "Content-Range")
    assert (folder / "f").read_bytes() == b"0123abc789"


async def test_an_existing_file_is_overwritten_in_place_and_keeps_its_mode(guest: Client, folder: Path) -> None:
    file = folder / "f"
    file.write_bytes(b"long before")
    file.chmod(0o751)
    inode = file.stat().st_ino
    await guest.call("PUT", f"/files/content?{at(file)}", b"new")
    assert (file.read_bytes(), file.stat().st_ino, file.stat().st_mode & 0o7777) == (b"new", inode, 0o751)
    await guest.call("PUT", f"/files/content?{at(file, mode='0640')}", b"new")
    assert file.stat().st_mode & 0o7777 == 0o640


async def test_new_files_have_the_mode_and_owner_that_were_asked_for(guest: Client, folder: Path) -> None:
    owner = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    await guest.call("PUT", f"/files/content?{at(folder / 'new/plain', user=owner)}", b"x")
    await guest.call("PUT", f"/files/content?{at(folder / 'new/exact', user=owner, mode=4777)}", b"x")
    uid = pwd.getpwnam(owner).pw_uid
    modes = {name: os.stat(folder / name) for name in ("new", "new/plain", "new/exact")}
    assert {facts.st_uid for facts in modes.values()} == {uid}
    assert [facts.st_mode & 0o7777 for facts in modes.values()] == [0o755, 0o644, 0o4777]


async def test_a_small_file_can_be_written_as_json(guest: Client, folder: Path) -> None:
    path = str(folder / "f")
    reply = await guest.call("POST", "/files/write", {"path": path, "content": "grüße\0", "mode": "600"})
    assert (reply.json["bytes"], reply.json["entry"]["mode"]) == (8, 0o600)
    await guest.call("POST", "/files/write", {"path": path, "content_base64": "AP8="})
    assert (folder / "f").read_bytes() == b"\x00\xff"
    for wrong in ({}, {"content": "a", "content_base64": "YQ=="}, {"content_base64": "!"}, {"content": 5}):
        assert (await guest.call("POST", "/files/write", {"path": path, **wrong})).code == "bad_field"


async def test_a_large_file_goes_up_and_down_without_being_held_in_memory(fresh_guest: Client) -> None:
    await fresh_guest.call("PUT", f"/files/content?{at(fresh_guest.workspace / 'warm')}", b"x" * 3_000_000)
    before = peak_rss_kib(fresh_guest.pid)
    size, block = 256 << 20, os.urandom(1 << 20)
    conversation = await fresh_guest.connect()
    path = fresh_guest.workspace / "large"
    await conversation.send("PUT", f"/files/content?{at(path)}", Content_Length=str(size))
    for _ in range(size >> 20):
        conversation.writer.write(block)
        await conversation.writer.drain()
    assert (await conversation.reply()).json["bytes"] == size
    await conversation.send("GET", f"/files/content?{at(path)}")
    await conversation.head()
    received = 0
    while piece := await conversation.piece():
        received += len(piece)
    assert received == size
    assert peak_rss_kib(fresh_guest.pid) - before < 16 * 1024
    assert await asyncio.to_thread(lambda: path.read_bytes() == block * (size >> 20))


def peak_rss_kib(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


async def test_a_chunked_upload_is_written_whole(guest: Client, folder: Path) -> None:
    conversation = await guest.connect()
    await conversation.send("PUT", f"/files/content?{at(folder / 'f')}", Transfer_Encoding="chunked")
    for _ in range(3000):
        conversation.writer.write(b"3e8\r\n" + b"y" * 1000 + b"\r\n")
    conversation.writer.write(b"0\r\n\r\n")
    assert (await conversation.reply()).json["bytes"] == 3_000_000
    assert (folder / "f").read_bytes() == b"y" * 3_000_000


@pytest.mark.parametrize(
    ("method", "target", "body", "refused"),
    [
        ("GET", "/files/content?path=", None, (400, "bad_path")),
        ("GET", "/files/content", None, (400, "bad_path")),
        ("GET", "/files/content?path=/etc/../etc/passwd", None, (400, "bad_path")),
        ("GET", "/files/content?path=a%00b", None, (400, "bad_path")),
        ("GET", "/files/content?path=/" + "a/" * 2100, None, (400, "bad_path")),
        ("GET", "/files/content?path=/" + "a" * 300, None, (400, "bad_path")),
        ("GET", "/files/content?path=/dev/zero", None, (400, "bad_path")),
        ("GET", "/files/content?path=/etc", None, (400, "is_a_directory")),
        ("GET", "/files/content?path=/nope", None, (404, "not_found")),
        ("GET", "/files/content?path=/etc/passwd/x", None, (400, "not_a_directory")),
        ("GET", "/files/content?path=/etc/passwd&user=nope", None, (400, "unknown_user")),
        ("PUT", "/files/content?path=/etc", b"x", (400, "is_a_directory")),
        ("PUT", "/files/content?path=/tmp/x&mode=9", b"x", (400, "bad_field")),
        ("PUT", "/files/content?path=/etc/passwd/x", b"x", (400, "not_a_directory")),
        ("PUT", "/files/content?path=/proc/nope/x", b"x", (404, "not_found")),
        ("PUT", "/files/content?path=/dev/full", b"x", (400, "bad_path")),
        ("GET", "/files/stat?path=/nope", None, (404, "not_found")),
        ("GET", "/files/list?path=/nope", None, (404, "not_found")),
        ("GET", "/files/list?path=/etc/passwd", None, (400, "not_a_directory")),
        ("POST", "/files/make", {"path": "/etc"}, (409, "already_exists")),
        ("POST", "/files/make", {"path": "/etc/passwd"}, (400, "not_a_directory")),
        ("POST", "/files/make", {}, (400, "bad_field")),
        ("POST", "/files/move", {"source": "/nope", "destination": "/tmp/x"}, (404, "not_found")),
        ("POST", "/files/move", {"source": "/nope", "destination": "../x"}, (400, "bad_path")),
        ("POST", "/files/remove", {"path": "/"}, (400, "bad_path")),
        ("GET", "/files/watch?path=/nope", None, (404, "not_found")),
        ("GET", "/files/watch?path=/etc/passwd", None, (400, "not_a_directory")),
        ("GET", "/files/watch?path=/etc&recursive=x", None, (400, "bad_field")),
    ],
)
async def test_every_refusal_has_its_name(
    guest: Client, method: str, target: str, body: Any, refused: tuple[int, str]
) -> None:
    reply = await guest.call(method, target, body)
    assert (reply.status, reply.code) == refused


async def test_neither_a_fifo_nor_a_socket_is_waited_for(guest: Client, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sock"))
        for name in ("fifo", "sock"):
            for method, body in (("GET", None), ("PUT", b"x")):
                reply = await guest.call(method, f"/files/content?{at(folder / name)}", body)
                assert (reply.status, reply.code) == (400, "bad_path")


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system with room for 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_said_and_the_connection_lives_on(guest: Client, small_disk: Path) -> None:
    conversation = await guest.connect()
    await conversation.send("PUT", f"/files/content?{at(small_disk / 'f')}", b"x" * 20_000_000)
    reply = await conversation.reply()
    assert (reply.status, reply.code) == (507, "disk_full")
    await conversation.send("GET", "/health")
    assert (await conversation.reply()).status == 200


async def test_a_move_across_file_systems_keeps_everything(guest: Client, small_disk: Path) -> None:
    source = small_disk.parent / "tree-to-move"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_text("x")
    (source / "sub/file").chmod(0o751)
    (source / "link").symlink_to("sub/file")
    os.chown(source / "sub/file", 1234, 1235)
    reply = await guest.call("POST", "/files/move", {"source": str(source), "destination": str(small_disk / "there")})
    assert reply.json["entry"]["type"] == "directory"
    moved = os.stat(small_disk / "there/sub/file")
    assert (moved.st_uid, moved.st_gid, moved.st_mode & 0o7777) == (1234, 1235, 0o751)
    assert os.readlink(small_disk / "there/link") == "sub/file"
    assert not source.exists()


async def test_an_entry_tells_the_facts_of_a_file(guest: Client, folder: Path) -> None:
    (folder / "f").write_bytes(b"abc")
    (folder / "f").chmod(0o640)
    entry = (await guest.call("GET", f"/files/stat?{at(folder / 'f')}")).json["entry"]
    facts = os.stat(folder / "f")
    assert entry == {
        "name": "f",
        "path": str(folder / "f"),
        "type": "file",
        "size": 3,
        "mode": 0o640,
        "permissions": "-rw-r-----",
        "owner": pwd.getpwuid(facts.st_uid).pw_name,
        "group": entry["group"],
        "uid": facts.st_uid,
        "gid": facts.st_gid,
        "modified_ns": facts.st_mtime_ns,
    }


async def test_a_link_shows_its_targets_facts_and_a_broken_one_is_other(guest: Client, folder: Path) -> None:
    (folder / "dir").mkdir()
    (folder / "good").symlink_to("dir")
    (folder / "broken").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    entries = {e["name"]: e for e in (await guest.call("GET", f"/files/list?{at(folder)}")).json["entries"]}
    assert (entries["good"]["type"], entries["good"]["symlink_target"]) == ("directory", str(folder / "dir"))
    assert (entries["broken"]["type"], entries["broken"]["symlink_target"]) == ("other", str(folder / "nowhere"))
    assert entries["loop"]["type"] == "other"
    assert "symlink_target" not in entries["dir"]


async def test_a_listing_is_sorted_depth_first_with_parents_before_children(guest: Client, folder: Path) -> None:
    for name in ("b/y/deep", "b/x", "a", "c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    os.symlink(folder, folder / "self")

    async def names(depth: int) -> list[str]:
        reply = await guest.call("GET", f"/files/list?{at(folder, depth=depth)}")
        assert reply.json["truncated"] is False
        return [str(Path(entry["path"]).relative_to(folder)) for entry in reply.json["entries"]]

    assert await names(1) == ["a", "b", "c", "self"]
    assert await names(2) == ["a", "b", "b/x", "b/y", "c", "self"]
    assert await names(9) == ["a", "b", "b/x", "b/y", "b/y/deep", "c", "self"]


async def test_a_listing_ends_at_its_limit_and_says_so(guest: Client, folder: Path) -> None:
    for i in range(10_001):
        (folder / f"{i:05}").touch()
    reply = (await guest.call("GET", f"/files/list?{at(folder)}")).json
    assert (len(reply["entries"]), reply["truncated"]) == (10_000, True)


async def test_a_name_that_is_not_utf8_does_not_break_a_listing(guest: Client, folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/odd-\xff"))).touch()
    entries = (await guest.call("GET", f"/files/list?{at(folder)}")).json["entries"]
    assert [entry["name"] for entry in entries] == ["odd-?"]
    assert (await guest.call("POST", "/files/remove", {"path": str(folder)})).json == {}


async def test_folders_are_made_moved_and_removed(guest: Client, folder: Path) -> None:
    made = await guest.call("POST", "/files/make", {"path": f"{folder}/x/y/z/"})
    assert (made.status, made.json["entry"]["type"], made.json["entry"]["mode"]) == (200, "directory", 0o755)
    moved = await guest.call("POST", "/files/move", {"source": f"{folder}/x/y", "destination": f"{folder}/new/place"})
    assert moved.json["entry"]["path"] == f"{folder}/new/place"
    assert (folder / "new/place/z").is_dir()
    into_itself = {"source": f"{folder}/new", "destination": f"{folder}/new/place/again"}
    assert (await guest.call("POST", "/files/move", into_itself)).code == "bad_path"
    for _ in range(2):
        assert (await guest.call("POST", "/files/remove", {"path": f"{folder}/new"})).json == {}
    assert not (folder / "new").exists()


async def test_removing_a_link_leaves_what_it_leads_to(guest: Client, folder: Path) -> None:
    (folder / "kept").mkdir()
    (folder / "link").symlink_to("kept")
    await guest.call("POST", "/files/remove", {"path": f"{folder}/link"})
    assert (folder / "kept").is_dir()
    assert not (folder / "link").is_symlink()


async def test_paths_may_begin_in_a_home(guest: Client) -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    user = pwd.getpwuid(os.geteuid()).pw_name
    for path in ("~", f"~{user}", "."):
        assert (await guest.call("GET", f"/files/stat?{at(path)}")).json["entry"]["path"] == home


async def test_a_new_small_file_is_one_create_one_chmod_and_one_write(guest: Client, folder: Path) -> None:
    stream = await guest.stream("GET", f"/files/watch?{at(folder)}")
    told = stream.events()
    assert (await anext(told))["event"] == "start"
    await guest.call("PUT", f"/files/content?{at(folder / 'put')}", b"x" * 50_000)
    await guest.call("POST", "/files/write", {"path": f"{folder}/json", "content": "x"})
    (folder / "mark").mkdir()
    events: list[tuple[str, str]] = []
    while ("create", "mark") not in events:
        event = await anext(told)
        events.append((event["event"], event["name"]))
    kinds = ("create", "chmod", "write")
    assert events == [(k, "put") for k in kinds] + [(k, "json") for k in kinds] + [("create", "mark")]


async def test_a_recursive_watch_follows_new_folders_and_reports_what_is_in_them(guest: Client, folder: Path) -> None:
    (folder / "old").mkdir()
    stream = await guest.stream("GET", f"/files/watch?{at(folder, recursive=1)}")
    told = stream.events()
    await anext(told)
    (folder / "new/inner").mkdir(parents=True)
    (folder / "new/inner/file").touch()
    (folder / "old/file").touch()
    await guest.call("POST", "/files/move", {"source": f"{folder}/new", "destination": f"{folder}/moved"})
    (folder / "moved/inner/later").touch()
    (folder / "moved/inner/later").unlink()
    events: list[tuple[str, str]] = []
    while ("remove", "moved/inner/later") not in events:
        event = await anext(told)
        events.append((event["event"], event["name"]))
    creates = sorted(name for kind, name in events if kind == "create")
    assert [name for name in creates if name.startswith(("new", "old"))] == [
        "new",
        "new/inner",
        "new/inner/file",
        "old/file",
    ]
    assert {"moved", "moved/inner", "moved/inner/file", "moved/inner/later"} <= set(creates)
    assert len(creates) == len(set(creates))
    assert ("rename", "new") in events


async def test_a_watch_ends_when_its_folder_is_gone(guest: Client, folder: Path) -> None:
    (folder / "watched").mkdir()
    stream = await guest.stream("GET", f"/files/watch?{at(folder / 'watched')}")
    (folder / "watched").rmdir()
    assert [event["event"] async for event in stream.events()] == ["start"]


async def test_watches_have_a_limit_and_are_given_back(fresh_guest: Client) -> None:
    target = f"/files/watch?{at(fresh_guest.workspace)}"
    streams = [await fresh_guest.stream("GET", target) for _ in range(100)]
    reply = await fresh_guest.call("GET", target)
    assert (reply.status, reply.code) == (429, "too_many_watches")
    await streams.pop().close()

    async def is_given() -> bool:
        conversation = await fresh_guest.connect()
        await conversation.send("GET", target)
        return (await conversation.head()).status == 200

    await fresh_guest.until(is_given)

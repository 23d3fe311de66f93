"""Files go into a sandbox and come out of it unchanged, whatever their size."""

import hashlib
import random
from collections.abc import Iterator

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import PIECE_BYTES, Api, Reply, Sandbox
from tests.vm.conftest import SMALL_DISK

GROWTH_MB = 20
GIGABYTE = 1 << 30
SEED = 20_260_117


@pytest.mark.parametrize(
    "data",
    [b"", b"hello\n", bytes(range(256)) * 17, "Ümläut ✓\r\n".encode(), b"\0" * 65_537],
    ids=["empty", "text", "binary", "utf-8", "zeros"],
)
def test_a_file_comes_back_as_it_was_sent(shared: Sandbox, data: bytes) -> None:
    reply = shared.put("/workspace/new folder/ein Näme", data)
    assert reply.status == 200
    assert (reply.json["bytes"], reply.json["entry"]["size"]) == (len(data), len(data))
    back = shared.get("/workspace/new folder/ein Näme")
    assert (back.status, back.body) == (200, data)
    assert back.headers["content-length"] == str(len(data))
    assert shared.sh("sha256sum < 'new folder/ein Näme'").split()[0] == hashlib.sha256(data).hexdigest()


def test_a_new_file_belongs_to_the_user_unless_another_is_asked_for(shared: Sandbox) -> None:
    assert shared.put("owned/a", b"#!/bin/sh\necho ran\n", mode="0755").status == 200
    assert shared.put("/root/b", b"b", user="root").status == 200
    assert shared.sh("stat -c '%U %a' ~/owned ~/owned/a; ~/owned/a").splitlines() == ["user 755", "user 755", "ran"]
    assert shared.sh("stat -c '%U %a' /root/b", user="root") == "root 644"


def test_a_shorter_file_takes_the_place_of_a_longer_one(shared: Sandbox) -> None:
    shared.put("/workspace/over", b"a long content")
    assert shared.put("/workspace/over", b"short").status == 200
    assert shared.get("/workspace/over").body == b"short"


def test_a_body_without_a_length_is_a_file_too(shared: Sandbox) -> None:
    reply = shared.put("/workspace/chunked", (bytes([n]) * 1000 for n in range(100)))
    assert (reply.status, reply.json["bytes"]) == (200, 100_000)
    assert shared.get("/workspace/chunked").body == b"".join(bytes([n]) * 1000 for n in range(100))


@pytest.mark.parametrize(
    ("asked", "part", "told"),
    [("2-4", b"234", "2-4/10"), ("7-", b"789", "7-9/10"), ("-2", b"89", "8-9/10"), ("5-500", b"56789", "5-9/10")],
)
def test_a_part_of_a_file_is_given_when_asked_for(shared: Sandbox, asked: str, part: bytes, told: str) -> None:
    shared.put("/workspace/digits", b"0123456789")
    reply = shared.get("/workspace/digits", Range=f"bytes={asked}")
    assert (reply.status, reply.body) == (206, part)
    assert reply.headers["content-range"] == f"bytes {told}"


def test_a_part_beyond_the_end_is_refused(shared: Sandbox) -> None:
    shared.put("/workspace/digits", b"0123456789")
    assert shared.get("/workspace/digits", Range="bytes=10-").refusal == (416, "bad_range")


def test_a_part_of_a_file_is_written_when_asked_for(shared: Sandbox) -> None:
    shared.put("/workspace/patched", b"0123456789")
    assert shared.put("/workspace/patched", b"xyz", {"Content-Range": "bytes 3-5/*"}).status == 200
    assert shared.get("/workspace/patched").body == b"012xyz6789"


def test_a_file_whose_size_nobody_knows_is_given_whole(shared: Sandbox) -> None:
    reply = shared.get("/proc/self/status")
    assert reply.status == 200
    assert reply.body.startswith(b"Name:")


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("/no/such/file", (404, "not_found")),
        ("/etc", (400, "is_a_directory")),
        ("/dev/zero", (400, "bad_path")),
        ("/etc/passwd/below", (400, "not_a_directory")),
    ],
)
def test_what_is_no_file_is_refused(shared: Sandbox, path: str, refusal: tuple[int, str]) -> None:
    assert shared.get(path).refusal == refusal


def test_a_file_cannot_take_the_place_of_a_folder(shared: Sandbox) -> None:
    assert shared.put("/workspace", b"data").refusal == (400, "is_a_directory")


def test_a_full_disk_is_told_and_the_sandbox_still_works(api: Api) -> None:
    with api.sandbox(**SMALL_DISK) as sandbox:
        sandbox.sh("fallocate -l $(($(df -B1 --output=avail . | tail -1) - 8000000)) filler")
        reply = sandbox.put("/workspace/big", _data(32 << 20), {"Content-Length": str(32 << 20)})
        assert reply.refusal == (507, "disk_full")
        assert sandbox.sh("echo alive") == "alive"
        assert sandbox.run("rm -f big filler && echo room > small")["exit_code"] == 0
        assert sandbox.put("/workspace/next", b"fits").status == 200
        assert sandbox.get("/workspace/next").body == b"fits"


def test_a_client_that_leaves_in_the_middle_of_a_file_harms_nothing(shared: Sandbox) -> None:
    shared.sh("head -c 50000000 /dev/zero > zeros")
    with shared.api.open("GET", shared.files(path="/workspace/zeros")) as answer:
        assert len(answer.read(1_000_000)) == 1_000_000
    assert shared.sh("rm zeros; echo alive") == "alive"


def test_a_gigabyte_goes_in_and_comes_out_the_same_with_flat_memory(host: Host, sandbox: Sandbox) -> None:
    """The slow one: about a gigabyte a minute through an emulated network card."""
    traces.forget_peak(host.process.pid)
    before = host.rss_mb()
    assert _upload(sandbox, "/workspace/big").json["bytes"] == GIGABYTE
    assert _digest_of_download(sandbox, "/workspace/big") == _digest(_data(GIGABYTE))
    assert traces.peak_mb(host.process.pid) - before < GROWTH_MB


def _upload(sandbox: Sandbox, path: str) -> Reply:
    reply = sandbox.put(path, _data(GIGABYTE), {"Content-Length": str(GIGABYTE)})
    assert reply.status == 200, reply
    return reply


def _digest_of_download(sandbox: Sandbox, path: str) -> str:
    with sandbox.api.open("GET", sandbox.files(path=path)) as answer:
        assert (answer.status, answer.getheader("content-length")) == (200, str(GIGABYTE))
        return _digest(iter(lambda: answer.read(PIECE_BYTES), b""))


def _data(size: int) -> Iterator[bytes]:
    """The same bytes each time, made as they are needed. `size` is a whole number of pieces."""
    source = random.Random(SEED)
    for _ in range(size // PIECE_BYTES):
        yield source.randbytes(PIECE_BYTES)


def _digest(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()

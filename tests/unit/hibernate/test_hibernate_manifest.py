"""Manifests: what was written is read again, and what a stranger wrote is refused."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from poold.hibernate.errors import Damaged, NotOurs
from poold.hibernate.manifest import (
    File,
    Frame,
    Golden,
    Manifest,
    Part,
    decode_golden,
    decode_manifest,
    encode,
)

SHA = "0" * 64
FILE = File(10, SHA, (Part("drive-00001", SHA, (Frame(5, 10), Frame(6, 10))),))
WHOLE = Manifest("c1", "sb-1", "vm-1", 2, 3, "qemu", {"shape": {"image": "a"}}, {}, SHA, {"drive": FILE})


def test_what_was_written_is_read_again() -> None:
    assert decode_manifest("key", encode(WHOLE)) == WHOLE
    assert decode_golden("key", encode(Golden("0" * 16, FILE))) == Golden("0" * 16, FILE)
    assert WHOLE.stored_bytes == 11


def test_one_of_files_alone_has_a_format_of_its_own_that_older_hosts_refuse() -> None:
    files = replace(WHOLE, golden=None, files={"files": FILE})
    data = encode(files)
    assert (decode_manifest("key", data), orjson.loads(data)["format"]) == (files, 2)
    assert (WHOLE.kind, files.kind) == ("machine", "files")
    with pytest.raises(Damaged):
        decode_manifest("key", changed("format", to=2))
    with pytest.raises(NotOurs):
        decode_golden("key", orjson.dumps({"format": 2, "at": "0" * 16, "file": {}}))


def changed(*path: str | int, to: Any) -> bytes:
    facts = orjson.loads(encode(WHOLE))
    place = facts
    for name in path[:-1]:
        place = place[name]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return orjson.dumps(facts)


PART = ("files", "drive", "parts", 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        encode(WHOLE)[:-1],
        changed("format", to=...),
        changed("sandbox", to=7),
        changed("sandbox", to="x" * 300),
        changed("sandbox", to="sb-1/../x"),
        changed("machine", to="../../etc"),
        changed("machine", to="vm-1/.."),
        changed("machine", to=""),
        changed("cluster", to="x" * 300),
        changed("golden", to="../../cluster"),
        changed("golden", to=SHA.upper().replace("0", "A")),
        changed("facts", to=[1]),
        changed("files", to=[1]),
        changed("files", "drive", "bytes", to=-1),
        changed("files", "drive", "bytes", to=1 << 60),
        changed("files", "drive", "bytes", to=True),
        changed("files", "drive", "bytes", to=1.5),
        changed("files", "drive", "parts", to=[orjson.loads(encode(WHOLE))["files"]["drive"]["parts"][0]] * 2),
        changed(*PART, "name", to="../../leases/host-1"),
        changed(*PART, "name", to="drive-1"),
        changed(*PART, "name", to="drive-00001\n"),
        changed(*PART, "sha256", to=SHA[1:]),
        changed(*PART, "frames", 0, "raw_bytes", to=1 << 40),
        changed(*PART, "frames", 0, "bytes", to=1 << 40),
        changed(*PART, "frames", to=[{"bytes": 16 << 20, "raw_bytes": 1}] * 2),
    ],
)
def test_what_makes_no_sense_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged, match="a key"):
        decode_manifest("a key", data)


@pytest.mark.parametrize("version", [0, 3, "1", True, None])
def test_another_version_is_refused_by_its_number(version: object) -> None:
    with pytest.raises(NotOurs, match="format"):
        decode_manifest("a key", changed("format", to=version))


@pytest.mark.parametrize("at", ["", "..", "0" * 15, "x" * 16, 7, None])
def test_a_golden_memory_has_its_parts_beside_it(at: object) -> None:
    facts = orjson.loads(encode(Golden("0" * 16, FILE)))
    with pytest.raises(Damaged):
        decode_golden("a key", orjson.dumps({**facts, "at": at}))

"""Slots without a network, images on disk, and logs."""

import json
import logging
import sys
from pathlib import Path

import pytest

from contract.errors import BadField
from contract.models import Shape
from poold.errors import HostFault, NoFreeSlot
from poold.images import HostImages, Images
from poold.logs import JsonLines
from poold.slots import PlainSlots

MANIFEST = {
    "name": "python",
    "key": "abc",
    "rootfs": "root.ext4",
    "kernel": "vmlinux",
    "initramfs": "initramfs",
    "defaults": {"vcpus": 1, "memory_mb": 256, "disk_mb": 1024},
}


def build(folder: Path, name: str, key: str, manifest: dict[str, object]) -> None:
    """As the builder does it: a folder, and then the pointer to it."""
    (folder / f"{name}-{key}").mkdir(parents=True)
    (folder / f"{name}-{key}" / "manifest.json").write_text(json.dumps(manifest))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(f"{name}-{key}")


async def test_a_slot_is_with_one_machine_at_a_time() -> None:
    slots = PlainSlots(3, uid=1000)
    taken = [slots.take_nowait() for _ in range(3)]
    assert sorted(slot.number for slot in taken) == [0, 1, 2]
    assert slots.free == 0
    with pytest.raises(NoFreeSlot, match="all 3 slots"):
        slots.take_nowait()
    await slots.give_back(taken[1])
    assert slots.free == 1
    assert slots.take_nowait() == taken[1]


def test_an_image_is_found_by_its_name_and_stays_what_it_was(tmp_path: Path) -> None:
    images = Images(tmp_path)
    build(tmp_path, "python", "one", {**MANIFEST, "key": "one"})
    first = images.find("python")
    assert first.defaults == Shape("python", 1, 256, 1024)
    assert first.rootfs == tmp_path.resolve() / "python-one" / "root.ext4"
    build(tmp_path, "python", "two", {**MANIFEST, "key": "two"})
    assert (images.find("python").key, first.key) == ("two", "one")
    assert images.names() == ["python"]  # the folders behind the pointers are not images


@pytest.mark.parametrize("name", ["", "nothing", "..", "../python", "python-one", "python/", "PYTHON", "/etc"])
def test_a_name_that_is_no_image_is_refused_with_those_that_are(tmp_path: Path, name: str) -> None:
    build(tmp_path, "python", "one", MANIFEST)
    with pytest.raises(BadField, match="must be one of python"):
        Images(tmp_path).find(name)


def test_without_images_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadField, match="no image is built"):
        Images(tmp_path / "missing").find("python")


@pytest.mark.parametrize("missing", sorted(MANIFEST))
def test_a_manifest_that_lacks_something_says_what(tmp_path: Path, missing: str) -> None:
    build(tmp_path, "python", "one", {name: value for name, value in MANIFEST.items() if name != missing})
    with pytest.raises(HostFault, match=missing):
        Images(tmp_path).find("python")


def test_a_build_that_is_not_whole_is_a_fault_of_the_host_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "python-1").mkdir()
    (tmp_path / "python").symlink_to("python-1")
    (tmp_path / ".next-python").symlink_to("python-1")
    assert Images(tmp_path).names() == ["python"]
    with pytest.raises(HostFault, match=r"manifest\.json.*build it again"):
        Images(tmp_path).find("python")


def test_the_local_engine_has_one_image() -> None:
    assert HostImages().names() == ["host"]
    assert HostImages().find("host").defaults.image == "host"
    with pytest.raises(BadField, match="host"):
        HostImages().find("python")


def test_a_log_line_is_one_json_object_with_what_was_given() -> None:
    record = logging.makeLogRecord(
        {"name": "poold.pool", "levelname": "WARNING", "msg": "two\nlines of %s", "args": ("text",), "machine": "vm-1"}
    )
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["where"], told["level"], told["what"]) == ("poold.pool", "warning", "two\nlines of text")
    assert told["machine"] == "vm-1"
    assert told["at"].endswith("Z")


def test_a_log_line_has_the_traceback_and_takes_any_value() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.makeLogRecord({"msg": "x", "exc_info": sys.exc_info(), "path": Path("/a"), "odd": {1, 2}})
    told = json.loads(JsonLines().format(record))
    assert "ValueError: broken" in told["traceback"]
    assert told["path"] == "/a"

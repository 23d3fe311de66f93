"""What goes into the initramfs: the archive's format, the modules and their order."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from images import cpio
from images.errors import ImageError
from images.kernel import initramfs_entries, payload_of
from images.modules import canonical, depends_in, load_order, modules_under

_INIT = Path(__file__).resolve().parents[3] / "images/init.sh"


def _fields(header: bytes) -> list[int]:
    return [int(header[at : at + 8], 16) for at in range(6, 110, 8)]


def test_a_record_is_laid_out_as_the_kernel_reads_it() -> None:
    data = cpio.archive([cpio.file("init", b"12345", mode=0o755)])
    assert data[:6] == b"070701"
    inode, mode, _, _, links, mtime, size, *_, name_size, check = _fields(data[:110])
    assert (inode, mode, links, mtime, size) == (1, stat.S_IFREG | 0o755, 1, 0, 5)
    assert (name_size, check) == (5, 0)
    # Header and name are padded together, then the content: each record starts at a multiple of four.
    assert data[110:116] == b"init\0\0"[: 116 - 110]
    assert data[116:124] == b"12345\0\0\0"
    assert data[124:130] == b"070701"
    assert len(data) % 4 == 0
    assert data.rstrip(b"\0").endswith(b"TRAILER!!!")


def test_a_device_keeps_its_numbers() -> None:
    data = cpio.archive([cpio.character_device("dev/console", 5, 1)])
    assert _fields(data[:110])[9:11] == [5, 1]


@pytest.mark.skipif(shutil.which("busybox") is None, reason="needs busybox")
def test_another_program_reads_the_archive(tmp_path: Path) -> None:
    entries = [cpio.folder("bin"), cpio.file("bin/a", b"hello"), cpio.link("bin/b", "a"), cpio.file("empty", b"")]
    done = subprocess.run(["busybox", "cpio", "-i"], cwd=tmp_path, input=cpio.archive(entries), check=False)
    assert done.returncode == 0
    assert (tmp_path / "bin/a").read_bytes() == b"hello"
    assert os.readlink(tmp_path / "bin/b") == "a"
    assert (tmp_path / "empty").read_bytes() == b""


def test_modules_load_after_what_they_need_and_once() -> None:
    needs = {"net": ["core", "failover"], "failover": ["core"], "core": [], "disk": ["core"]}
    order = load_order(["net", "disk", "net"], needs.__getitem__)
    assert order == ["core", "failover", "net", "disk"]


def test_modules_in_a_circle_are_refused() -> None:
    needs = {"a": ["b"], "b": ["a"]}
    with pytest.raises(ImageError, match="a → b → a"):
        load_order(["a"], needs.__getitem__)


def test_a_module_says_itself_what_it_needs() -> None:
    assert depends_in(b"\x7fELF..\0license=GPL\0depends=virtio,virtio-ring\0retpoline=Y\0") == ["virtio", "virtio_ring"]
    assert depends_in(b"..\0depends=\0..") == []
    with pytest.raises(ImageError, match="no dependency field"):
        depends_in(b"compressed")


def test_modules_are_found_by_the_kernels_spelling(tmp_path: Path) -> None:
    path = tmp_path / "drivers" / "virtio-rng.ko"
    path.parent.mkdir()
    path.touch()
    assert modules_under(tmp_path) == {"virtio_rng": path}
    assert canonical("virtio-rng") == "virtio_rng"


def test_the_initramfs_has_parents_first_and_every_program_that_init_calls() -> None:
    entries = initramfs_entries(b"busybox", [("virtio", b"1"), ("virtio_blk", b"2")])
    names = [entry.name for entry in entries]
    for place, name in enumerate(names):
        parent = name.rpartition("/")[0]
        assert not parent or parent in names[:place]
    data = {entry.name: entry.data for entry in entries}
    assert data["modules/order"] == b"virtio\nvirtio_blk\n"
    for program in ("findfs", "insmod", "ln", "mount", "poweroff", "switch_root"):
        assert program in _INIT.read_text()
        assert data[f"bin/{program}"] == b"busybox"


@pytest.mark.skipif(shutil.which("busybox") is None, reason="needs busybox")
def test_init_is_a_script_that_busybox_accepts() -> None:
    assert subprocess.run(["busybox", "sh", "-n", str(_INIT)], check=False).returncode == 0


def test_the_kernel_inside_a_bzimage_is_found() -> None:
    image = bytearray(4096)
    image[0x1F1] = 3  # setup sectors, and one for the boot sector
    image[0x248:0x250] = (16).to_bytes(4, "little") + (10).to_bytes(4, "little")
    image[4 * 512 + 16 : 4 * 512 + 26] = b"kernelSIZE"
    assert payload_of(bytes(image)) == b"kernel"

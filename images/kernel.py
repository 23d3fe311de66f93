"""The kernel and its initramfs, the same for every image.

Debian's cloud kernel, fetched and unpacked, never installed. What we keep is the uncompressed ELF kernel out of the
package's `vmlinuz`: QEMU and Firecracker both enter it directly, and the machine is spared decompressing it, which
costs half a second where there is no KVM. The initramfs is not compressed for the same reason.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from images import cpio
from images.debian import Archive, Package, Sources
from images.errors import ImageError
from images.keys import hashes_of, key_of
from images.modules import WANTED, depends_in, load_order, modules_under
from images.programs import run

KERNEL = "vmlinux"
INITRAMFS = "initramfs"

_HERE = Path(__file__).parent
_INIT = _HERE / "init.sh"
_SOURCES = [_INIT, *(_HERE / f"{name}.py" for name in ("kernel", "modules", "cpio", "debian"))]

_METAPACKAGE = "linux-image-cloud-amd64"
_REAL_PACKAGE = r"linux-image-[0-9][\w.-]*-cloud-amd64"
# Passed over. 6.1.192-1: a bitmap of ext4's that is not in memory is taken for one that is (a null pointer in
# ext4_mb_load_buddy_gfp), and whoever writes to that file next waits for ever.
_BROKEN = frozenset({"6.1.192-1"})

# What init.sh calls; a program in the initramfs costs nothing, a forgotten one stops the machine.
_APPLETS = ("findfs", "insmod", "ln", "mount", "poweroff", "switch_root")

# Offsets in a bzImage, from Linux's boot protocol: setup sectors, then where the payload lies behind them.
_SETUP_SECTORS = 0x1F1
_PAYLOAD = 0x248
_LZ4_LEGACY = bytes.fromhex("02214c18")


def kernel_key(sources: Sources) -> str:
    """Return the key of the kernel that these sources and this builder give."""
    return key_of(stage="kernel", sources=sources.inputs(), builder=hashes_of(_SOURCES, relative_to=_HERE))


def make_kernel(into: Path, sources: Sources, work: Path) -> list[Package]:
    """Write the kernel and the initramfs into the folder `into`; return the packages they came from."""
    archive = Archive(sources, work)
    unpacked = work / "unpacked"
    packages = [
        archive.unpack(archive.newest_dependency(_METAPACKAGE, _REAL_PACKAGE, without=_BROKEN), unpacked),
        archive.unpack("busybox-static", unpacked),
    ]
    (packed,) = (unpacked / "boot").glob("vmlinuz-*")
    _extract(packed, into / KERNEL, work)
    busybox = (unpacked / "bin/busybox").read_bytes()
    entries = initramfs_entries(busybox, _chosen_modules(unpacked / "lib/modules"))
    (into / INITRAMFS).write_bytes(cpio.archive(entries))
    return packages


def _chosen_modules(folder: Path) -> list[tuple[str, bytes]]:
    """Return the modules that a machine needs, in the order they load, with their content."""
    paths = modules_under(folder)

    def content(name: str) -> bytes:
        if name not in paths:
            raise ImageError(
                f"the kernel package has no module {name}", hint="is it built in now? see images/modules.py"
            )
        return paths[name].read_bytes()

    return [(name, content(name)) for name in load_order(WANTED, lambda name: depends_in(content(name)))]


def initramfs_entries(busybox: bytes, modules: Iterable[tuple[str, bytes]]) -> list[cpio.Entry]:
    """Return what the initramfs holds; `modules/order` is the list that `/init` loads by."""
    modules = list(modules)
    order = "".join(f"{name}\n" for name, _ in modules)
    return [
        *(cpio.folder(name) for name in ("bin", "dev", "modules", "proc", "root", "sys")),
        # The kernel opens it for the first program before anything is mounted.
        cpio.character_device("dev/console", 5, 1),
        cpio.file("bin/busybox", busybox, mode=0o755),
        *(cpio.link(f"bin/{name}", "busybox") for name in _APPLETS),
        cpio.file("init", _INIT.read_bytes(), mode=0o755),
        cpio.file("modules/order", order.encode()),
        *(cpio.file(f"modules/{name}.ko", data) for name, data in modules),
    ]


def payload_of(bzimage: bytes) -> bytes:
    """Return the compressed kernel inside a bzImage, without the size that follows it."""
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD)
    start = (bzimage[_SETUP_SECTORS] + 1) * 512 + offset
    return bzimage[start : start + length - 4]


def _extract(packed: Path, into: Path, work: Path) -> None:
    payload = payload_of(packed.read_bytes())
    if not payload.startswith(_LZ4_LEGACY):
        raise ImageError(f"{packed.name} is not compressed with LZ4 but begins {payload[:6].hex()}")
    (work / "payload.lz4").write_bytes(payload)
    run(["lz4", "-q", "-d", "-f", work / "payload.lz4", into])
    if not into.read_bytes()[:4] == b"\x7fELF":
        raise ImageError(f"{packed.name} holds no ELF kernel")

"""Which kernel modules a machine needs, and the order in which they load.

Debian's kernel package carries no `modules.dep` (it is made when the package is installed, and ours never is), so each
module is asked itself: its `.modinfo` section names what it depends on.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from images.errors import ImageError

# What the guest's hardware is, in QEMU's microvm and in Firecracker, and the file systems that it lays over its root.
# ext4 is built into Debian's cloud kernel, as are unix and packet sockets.
WANTED = (
    "virtio_mmio",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "virtio_console",
    "vmw_vsock_virtio_transport",
    "overlay",
    "fuse",
)

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def load_order(wanted: Iterable[str], depends: Callable[[str], Iterable[str]]) -> list[str]:
    """Return `wanted` and all they depend on, each once and after what it needs.

    Raises `ImageError` if modules depend on each other in a circle.
    """
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ImageError(f"kernel modules depend on each other: {' → '.join([*path, name])}")
        if name in done:
            return
        for needed in depends(name):
            visit(needed, (*path, name))
        done[name] = None

    for name in wanted:
        visit(name, ())
    return list(done)


def depends_in(module: bytes) -> list[str]:
    """Return the names that a module file says it depends on."""
    found = _DEPENDS.search(module)
    if found is None:
        raise ImageError("a kernel module has no dependency field", hint="is it an uncompressed .ko file?")
    return [canonical(name) for name in found[1].decode().split(",") if name]


def canonical(name: str) -> str:
    """Return a module's name as the kernel spells it: file names may have dashes, names have none."""
    return name.replace("-", "_")


def modules_under(folder: Path) -> Mapping[str, Path]:
    """Return the module files below `folder` by name."""
    return {canonical(path.stem): path for path in folder.rglob("*.ko")}

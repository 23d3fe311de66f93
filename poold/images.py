"""The images on this host, as the builder's manifests tell of them. Building is `python -m images build`."""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.errors import BadField
from contract.models import Shape
from contract.network import Network
from poold.errors import HostFault

HOST_KEY = "host"  # of the computer that the local engine runs on


@dataclass(frozen=True)
class Image:
    name: str
    key: str  # a hash of everything that went into it
    rootfs: Path
    kernel: Path
    initramfs: Path
    defaults: Shape
    network: Network | None = None  # what its machines never get out of


class Images:
    """Finds images by name in the builder's folder. Looks again each time: an operator may build while we run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        found = (path for path in self._folder.iterdir() if path.is_symlink() and path.is_dir())
        return sorted(path.name for path in found if not path.name.startswith("."))

    def find(self, name: str) -> Image:
        """The current build of image `name`, or `BadField` with the names that exist."""
        names = self.names()
        if name not in names:
            raise BadField("image", name, f"must be one of {', '.join(names) or '(no image is built)'}")
        return read_image(self._folder / name)

    def shapes(self) -> tuple[Shape, ...]:
        """What a machine of each image is made of, unless a request says otherwise. Blocks."""
        found = []
        for name in self.names():
            with contextlib.suppress(HostFault, BadField):  # it is just being built or removed
                found.append(self.find(name).defaults)
        return tuple(found)

    def remove(self, name: str) -> None:
        """Forget image `name` and its current build. Machines that run keep their files open. Blocks."""
        self.find(name)
        pointer = self._folder / name
        build = Path(os.path.realpath(pointer))
        pointer.unlink()
        shutil.rmtree(build, ignore_errors=True)


def read_image(pointer: Path) -> Image:
    """The image that `pointer` leads to. Later builds may move the pointer; the image stays what it was."""
    folder = Path(os.path.realpath(pointer))
    try:
        manifest = orjson.loads((folder / "manifest.json").read_bytes())
        defaults = manifest["defaults"]
        return Image(
            name=manifest["name"],
            key=manifest["key"],
            rootfs=folder / manifest["rootfs"],
            kernel=folder / manifest["kernel"],
            initramfs=folder / manifest["initramfs"],
            defaults=Shape(manifest["name"], defaults["vcpus"], defaults["memory_mb"], defaults["disk_mb"]),
            network=Network.decode(manifest["network"]) if manifest.get("network") is not None else None,
        )
    except (OSError, ValueError, KeyError, BadField) as error:
        why = f"its manifest has no {error}" if isinstance(error, KeyError) else str(error)
        raise HostFault("reading", f"image {pointer.name}", hint=f"{why}; build it again") from error


class HostImages(Images):
    """The one image of the local engine: this computer as it is."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def names(self) -> list[str]:
        return ["host"]

    def remove(self, name: str) -> None:
        raise BadField("image", name, "cannot be removed: it is this computer")

    def find(self, name: str) -> Image:
        if name != "host":
            raise BadField("image", name, "must be 'host' with the local engine")
        nothing = Path("/dev/null")
        return Image("host", HOST_KEY, nothing, nothing, nothing, Shape("host", 1, 256, 1024))

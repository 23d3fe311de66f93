"""A saved machine taken apart, and put together again: on this host or on another one. All of this blocks.

What it is made of besides the golden memory and the root of its image is three files: the state of its devices, the
pages that it changed, and its drive. Whoever brings them may bring anything: nothing of them is believed unchecked.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from poold.engines import Parts, sparse
from poold.engines.qemu import golden, made, pages, saved
from poold.engines.qemu.made import Made
from poold.errors import EngineError
from poold.images import Image

PREFIX = "plant-"  # of the folder of a machine that is being put together; a daemon's next start removes it


def parts(folder: Path) -> Parts:
    """What the saved machine in `folder` is made of."""
    made_of = made.read(folder)
    saved.check_drive(folder)
    files = {
        golden.DRIVE: folder / golden.DRIVE,
        saved.DEVICES: folder / saved.SAVED / saved.DEVICES,
        saved.PAGES: folder / saved.SAVED / saved.PAGES,
    }
    return Parts(orjson.loads(orjson.dumps(made_of)), folder / golden.MEMORY, files)


def check_fits(facts: Mapping[str, Any], image: Image, now: Made, machine_id: str) -> Made:
    """What a machine of these facts is made of. Raises `EngineError` unless this host can load it."""
    made_of = made.from_facts(facts, machine_id)
    if made_of.image_key != image.key:
        hint = (
            f"it needs the build {made_of.image_key} of image {made_of.shape.image!r} and this host has {image.key};"
            " with the former it loads again"
        )
        raise EngineError("loading", machine_id, hint=hint)
    made_of.check_loads_under(now, machine_id)
    return made_of


def begin(folder: Path) -> dict[str, Path]:
    """A new folder, and where the files of the machine belong in it."""
    remove(folder)
    folder.mkdir(mode=0o700)
    (folder / saved.SAVED).mkdir(mode=0o700)
    return {
        golden.DRIVE: folder / golden.DRIVE,
        saved.DEVICES: folder / saved.SAVED / saved.DEVICES,
        saved.PAGES: folder / saved.SAVED / saved.PAGES,
    }


def commit(folder: Path, target: Path, made_of: Made, image: Image, memory: Path) -> None:
    """Let what was put into `folder` be the saved machine `target`, on disk as a whole. It is checked before."""
    _check(folder, made_of, memory)
    sparse.share(memory, folder / golden.MEMORY)
    sparse.share(image.rootfs, folder / golden.ROOT)
    made_of.write(folder)
    saved.write_drive_facts(folder)
    for path in (*(folder / saved.SAVED).iterdir(), folder / saved.SAVED, *folder.iterdir(), folder):
        sparse.sync(path)
    if target.exists():
        raise EngineError("planting", target.name, hint="there is a machine of that name on this host")
    folder.rename(target)
    sparse.sync(target.parent)


def _check(folder: Path, made_of: Made, memory: Path) -> None:
    """Raise `EngineError` unless sizes are those of the machine's shape and every page is one of its memory."""
    for path, size in ((folder / golden.DRIVE, made_of.shape.disk_mb << 20), (memory, made_of.memory_bytes)):
        if (found := path.stat().st_size) != size:
            raise EngineError("planting", str(path), hint=f"it has {found} bytes and its machine {size}")
    saved.check_devices(folder / saved.SAVED, folder.name)
    with pages.open_pages(folder / saved.SAVED / saved.PAGES, made_of.memory_bytes) as content:
        content.check(lambda _done, _total: None)


def remove(folder: Path) -> None:
    """Nothing is left of a machine that is not put together."""
    if os.path.lexists(folder):
        shutil.rmtree(folder)

"""The agents' own command lines, as the image `agent` has them: unpacked beside the images for tests without a machine.

They are there once the image was built: its archives are kept on the shelf, and have what the recipe pins.
"""

import os
import shutil
import tarfile
from pathlib import Path

from images.npm import hexadecimal
from images.recipe import NpmPackage, load
from images.shelf import Shelf

ROOT = Path(__file__).parents[1]
IMAGES = Path(os.environ.get("WARREN_IMAGES", ROOT / "build" / "images"))
PROGRAMS = {
    "claude": ("@anthropic-ai/claude-code-linux-x64", "package/claude"),
    "codex": ("@openai/codex", "package/vendor/x86_64-unknown-linux-musl/bin/codex"),
}


def find_cli(name: str) -> Path | None:
    """The program, or None if no image with it was built here."""
    wanted, member = PROGRAMS[name]
    package = next(each for each in load(ROOT / "images", "agent").npm if each.name == wanted)
    archive = Shelf(IMAGES).archives / f"{hexadecimal(package.integrity)[:32]}.tgz"
    folder = ROOT / "build" / "clis" / f"{name}-{package.version}"
    if not folder.exists() and archive.exists():
        _unpack(archive, package, folder)
    program = folder / member
    return program if program.exists() else None


def _unpack(archive: Path, package: NpmPackage, folder: Path) -> None:
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        with tarfile.open(archive) as members:
            members.extractall(beside)  # its content is pinned
        beside.rename(folder)
    except OSError:  # another run was first
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)

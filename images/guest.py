"""The guest inside the image: copied into the environment that the root file system has ready for it.

It needs nothing but Python's standard library, so there is nothing to resolve and installing it is copying its package.
That is a promise of the guest's; it is checked here, because a guest that lacks a module shows it only when it boots.
"""

import shutil
import tomllib
from pathlib import Path

from images.errors import ImageError
from images.keys import files_under, hashes_of
from images.programs import run_contained
from images.tree import GUEST_HOME

_PACKAGE = "warren_guest"


def guest_hashes(guest: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that is installed from the folder `guest`."""
    return hashes_of([_project_file(guest), *files_under(_package(guest))], relative_to=guest)


def guest_version(guest: Path) -> str:
    """Return the guest's version. Raises `ImageError` if it asks for anything beside the standard library."""
    path = _project_file(guest)
    project = tomllib.loads(path.read_text()).get("project", {})
    if project.get("dependencies"):
        raise ImageError(f"{path}: dependencies = {project['dependencies']!r}: the guest may need nothing but Python")
    return str(project.get("version", "0"))


def install_guest(guest: Path, tree: Path) -> None:
    """Put the guest into the root file system at `tree`, compiled, as it can write nothing when it runs."""
    found = list((tree / GUEST_HOME.lstrip("/") / "lib").glob("python3*/site-packages"))
    if len(found) != 1:
        raise ImageError(f"the root file system has no environment at {GUEST_HOME}", hint="does it have python3?")
    for source in files_under(_package(guest)):
        target = found[0] / source.relative_to(guest)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)
    inside = Path("/") / found[0].relative_to(tree) / _PACKAGE
    # Unchecked: the source beside it cannot change, so no start has to look.
    compile_all = ["-I", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", str(inside)]
    run_contained(["chroot", str(tree), f"{GUEST_HOME}/bin/python", *compile_all])


def _project_file(guest: Path) -> Path:
    path = guest / "pyproject.toml"
    if not path.is_file():
        raise ImageError(f"there is no guest at {guest}: {path.name} is missing")
    return path


def _package(guest: Path) -> Path:
    path = guest / _PACKAGE
    if not (path / "__init__.py").is_file():
        raise ImageError(f"there is no guest at {guest}: the package {_PACKAGE} is missing")
    return path

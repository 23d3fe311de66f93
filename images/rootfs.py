"""The root file system without the guest: packages, users and setup steps, laid out in a folder.

This is the slow part, so it is kept apart from the guest, which changes often, and cached by a key of its own.
"""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from images.debian import SUITE, Package, Sources, installed_packages
from images.errors import ImageError
from images.keys import hashes_of, key_of
from images.programs import run_contained
from images.recipe import NpmPackage, Recipe, User
from images.tree import GUEST_HOME, fix_times, settle
from images.unpack import WHOLE, unpack

# Behind a folder that only root may enter: it has programs that run as root for whoever reaches them.
TREE = "closed/tree"

_HERE = Path(__file__).parent
_SOURCES = [_HERE / f"{name}.py" for name in ("rootfs", "tree", "debian", "unpack")]

# Nobody reads manuals in a machine; licences stay. Kept in the image, so that packages installed later are small too.
_LEFT_OUT = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


def root_key(recipe: Recipe, sources: Sources) -> str:
    """Return the key of the root file system that this recipe gives, without its guest."""
    return key_of(
        stage="root",
        recipe=recipe.root_inputs(),
        sources=sources.inputs(),
        builder=hashes_of(_SOURCES, relative_to=_HERE),
    )


def make_root(
    into: Path, recipe: Recipe, sources: Sources, work: Path, fetch: Callable[[NpmPackage], Path]
) -> list[Package]:
    """Lay the root file system out in the folder `into`; return the packages that are installed in it.

    `fetch` gives the archive of a package of the npm registry.
    """
    since = int(time.time())
    (into / TREE).parent.mkdir(mode=0o700)
    shown, added = work / "packages", work / "added"
    unpack_foreign(added, recipe, fetch)
    hook = work / "finish.sh"
    hook.write_text(finishing_script(recipe, packages_into=shown, added=added))
    hook.chmod(0o755)
    argv: list[str | Path] = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join(recipe.packages)}",
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Retries "3"',
        *(f"--dpkgopt={line}" for line in _LEFT_OUT),
        f'--customize-hook={shlex.quote(str(hook))} "$1"',
        SUITE,
        into / TREE,
        sources.write(work),
    ]
    run_contained(argv, env={"TMPDIR": str(work)})
    settle(into / TREE)
    fix_times(into / TREE, building_since=since)
    return installed_packages(shown.read_text())


def unpack_foreign(added: Path, recipe: Recipe, fetch: Callable[[NpmPackage], Path]) -> None:
    """Lay out in the folder `added` what does not come from Debian, at the places that it has in the image."""
    (added / "usr/local/bin").mkdir(mode=0o755, parents=True)
    for package in recipe.npm:
        unpack(fetch(package), added, package.files)
    for supplied in recipe.supplied:
        if supplied.archive is None:
            continue
        unpack(supplied.archive, added, {WHOLE: supplied.folder})
        for program in supplied.programs:
            place = added / supplied.folder.lstrip("/") / program
            if not place.is_file() or not place.stat().st_mode & 0o111:
                raise ImageError(f"{supplied.variable} = {str(supplied.archive)!r}: has no program {program!r}")
            (added / "usr/local/bin" / place.name).symlink_to(f"{supplied.folder}/{program}")
    # Whatever mask we were started with: the image's own folders get these modes.
    for folder in (added, *(path for path in added.rglob("*") if path.is_dir() and not path.is_symlink())):
        folder.chmod(0o755)


def finishing_script(recipe: Recipe, *, packages_into: Path, added: Path) -> str:
    """Return the script that mmdebstrap runs, with the root's path as its argument, when all packages are installed."""
    lines = [
        "#!/bin/sh",
        "set -eu",
        "root=$1",
        *(line for user in recipe.users for line in _make_user(user)),
        # All of it is below /usr/local and /opt, where nothing of Debian's is, no links either.
        f'cp --archive --link {shlex.quote(str(added))}/. "$root"',
        *(f'chroot "$root" /bin/sh -euc {shlex.quote(step)}' for step in recipe.setup),
        f'chroot "$root" python3 -m venv --without-pip {GUEST_HOME}',
        # While apt's lists are still there: each installed package as the archive describes it.
        "chroot \"$root\" dpkg-query --show --showformat '${Package}:${Architecture}=${Version}\\n' |"
        f' xargs chroot "$root" apt-cache show > {shlex.quote(str(packages_into))}',
    ]
    return "".join(f"{line}\n" for line in lines)


def _make_user(user: User) -> list[str]:
    system = "--system " if user.is_system else ""
    lines = [
        f'chroot "$root" groupadd {system}--gid {user.uid} {user.name}',
        f'chroot "$root" useradd {system}--uid {user.uid} --gid {user.uid} --home-dir {user.home} --create-home'
        f" --shell {user.shell} {user.name}",
    ]
    if user.sudo:
        rule = f"$root/etc/sudoers.d/{user.name}"
        lines += [f'echo "{user.name} ALL=(ALL:ALL) NOPASSWD: ALL" > "{rule}"', f'chmod 0440 "{rule}"']
    return lines

"""Checkpoints: what changed in the workspace and the agent's session since an earlier one, as a tar stream; and back.

In a stream names begin with `workspace/` or `home/`. Before them comes a file `removed`: names that are gone, each with
a NUL behind it. To restore one, that is removed first; then what is in the stream takes the place of what is there. No
link is followed on the way, whatever a stream says: it is unpacked beside, and moved from there.
"""

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator

from warren_guest.paths import make_own_folder
from warren_guest.trees import Changes, Index, Root, compare

WORKSPACE, HOME = b"workspace", b"home"
REMOVED = "removed"
# Credentials of the agents' own: whoever continues the task brings them again.
SECRET = frozenset({b"home/.claude/.credentials.json", b"home/.codex/auth.json"})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVED_LIMIT = 64 << 20

# What else of a folder goes to the one that is there already, by their descriptors.
Keep = Callable[[int, int], None]


class Checkpoints:
    """Which files there were at each of the checkpoints that may still be asked about. Lives on the loop."""

    def __init__(self, staging: str) -> None:
        self.staging = staging
        self.turn = asyncio.Lock()
        self._known: dict[int, Index] = {}

    def since(self, base: int | None) -> Index | None:
        """The files at checkpoint `base`, if they are known. All others are not asked about any more."""
        self._known = {number: index for number, index in self._known.items() if number == base}
        return None if base is None else self._known.get(base)

    def made(self, number: int, index: Index) -> None:
        """One was told to its end. Whether it was kept says who asks for the next one."""
        self._known[number] = index


def roots(workspace: str, home: str, session_folders: tuple[str, ...]) -> tuple[Root, ...]:
    tops = tuple(os.fsencode(folder) for folder in session_folders)
    return Root(WORKSPACE, os.fsencode(workspace)), Root(HOME, os.fsencode(home), tops)


def difference(before: Index | None, now: Index) -> Changes:
    for name in SECRET & now.keys():
        del now[name]
    return compare(before or {}, now)


@contextlib.contextmanager
def doors(places: tuple[Root, ...]) -> Iterator[str]:
    """A folder in which each root has its name in checkpoints, during the block."""
    with tempfile.TemporaryDirectory(prefix="warren-") as folder:
        for place in places:
            os.symlink(place.path, os.path.join(os.fsencode(folder), place.name))  # noqa: PTH118, PTH211
        yield folder


def removed_member(names: list[bytes]) -> bytes:
    """The first file of a stream."""
    return file_member(REMOVED, b"".join(name + b"\0" for name in names))


def file_member(name: str, data: bytes) -> bytes:
    """A file of a stream that is none on disk."""
    import tarfile

    header = tarfile.TarInfo(name)
    header.size, header.mode = len(data), 0o600
    return header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


@contextlib.contextmanager
def staged(staging: str) -> Iterator[str]:
    """An empty folder that nobody else looks into, on the file system of the workspace. After the block it is gone."""
    make_own_folder(staging, 0o700)
    folder = tempfile.mkdtemp(dir=staging)
    try:
        yield folder
    finally:
        _make_removable(folder)
        shutil.rmtree(folder)


def _make_removable(folder: str) -> None:
    """Who is no superuser cannot remove what is in a folder that it may not write."""
    if os.geteuid() != 0:
        for path, names, _ in os.walk(folder):
            for name in names:
                inner = os.path.join(path, name)  # noqa: PTH118
                if not os.path.islink(inner):  # noqa: PTH114
                    os.chmod(inner, 0o700)  # noqa: PTH101


def clear(places: tuple[Root, ...], folder: str) -> None:
    """Remove what a whole checkpoint, unpacked in `folder`, is to take the place of."""
    for place in places:
        inner = os.path.join(os.fsencode(folder), place.name)  # noqa: PTH118
        listed = place.path if place.tops is None else inner
        with contextlib.suppress(FileNotFoundError), _opened(place.path) as fd:
            for name in os.listdir(listed):  # noqa: PTH208
                _remove(fd, name)


def apply(places: tuple[Root, ...], folder: str, keep: Keep = lambda _source, _target: None) -> None:
    """Make of a checkpoint, unpacked in `folder`, what the roots are."""
    by_name = {place.name: place for place in places}
    for name in _removed_names(folder):
        top, _, below = name.partition(b"/")
        if top in by_name and below:
            _remove_below(by_name[top].path, below)
    for place in places:
        inner = os.path.join(os.fsencode(folder), place.name)  # noqa: PTH118
        if os.path.isdir(inner) and not os.path.islink(inner):  # noqa: PTH112, PTH114
            os.makedirs(place.path, exist_ok=True)  # noqa: PTH103
            with _opened(inner) as source, _opened(place.path) as target:
                _move_all(source, target, keep)


def _removed_names(folder: str) -> list[bytes]:
    try:
        fd = os.open(os.path.join(folder, REMOVED), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # noqa: PTH118
    except OSError:
        return []
    with open(fd, "rb") as file:  # noqa: PTH123
        return [name for name in file.read(_REMOVED_LIMIT).split(b"\0") if name]


@contextlib.contextmanager
def _opened(path: bytes, above: int | None = None) -> Iterator[int]:
    fd = os.open(path, _FOLDER if above is not None else os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


def _remove_below(root: bytes, below: bytes) -> None:
    """Remove what is at `below`, if only folders lead to it."""
    *way, name = below.split(b"/")
    if b".." in way or name in (b"", b".", b".."):
        return
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        fd = stack.enter_context(_opened(root))
        for step in way:
            fd = stack.enter_context(_opened(step, fd))
        _remove(fd, name)


def _remove(above: int, name: bytes) -> None:
    """Whatever it is. No link is followed."""
    try:
        facts = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(facts.st_mode):
        os.unlink(name, dir_fd=above)
        return
    with _opened(name, above) as fd:
        os.fchmod(fd, 0o700)
        for inner in os.listdir(fd):  # noqa: PTH208
            _remove(fd, os.fsencode(inner))
    os.rmdir(name, dir_fd=above)


def _move_all(source: int, target: int, keep: Keep) -> None:
    """Everything of one folder into the other. Two folders of one name become one."""
    for text in os.listdir(source):
        name = os.fsencode(text)
        facts = os.stat(name, dir_fd=source, follow_symlinks=False)
        if not stat.S_ISDIR(facts.st_mode):
            if _is_folder(target, name):
                _remove(target, name)
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            continue
        if not _is_folder(target, name):
            _remove(target, name)
            os.mkdir(name, 0o700, dir_fd=target)
        with _opened(name, source) as inner, _opened(name, target) as into:
            os.fchmod(inner, 0o700)
            os.fchmod(into, 0o700)
            _move_all(inner, into, keep)
            keep(inner, into)
            _become(into, facts)


def _become(fd: int, facts: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(fd, facts.st_uid, facts.st_gid)
    os.chmod(fd, stat.S_IMODE(facts.st_mode))
    os.utime(fd, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _is_folder(above: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def unlock(workspace: str) -> None:
    """Locks of git that died with its machine: nobody holds them."""
    for path, folders, _ in os.walk(workspace):
        if ".git" in folders:
            folders.remove(".git")
            for inner, below, files in os.walk(os.path.join(path, ".git")):  # noqa: PTH118
                below[:] = [each for each in below if each != "objects"]
                for name in files:
                    if name.endswith(".lock"):
                        os.unlink(os.path.join(inner, name))  # noqa: PTH108, PTH118

"""Where results stand, and how they get there: whole or not at all.

    cache/kernel-KEY/      a kernel with its initramfs
    cache/root-NAME-KEY/   a root file system without the guest
    cache/npm/             archives of packages of the npm registry, named after their content
    NAME-KEY/              a build; never changed
    NAME                   a link to the current build of an image
    .work-…/               somebody is building; removed by the next builder if they were killed
    .lock                  held by whoever builds

A folder gets its name by a rename, after all of it has reached the disk: a name that exists is complete.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from images import manifest
from images.keys import SHORT
from images.programs import run

_WORK = ".work-"
_KEY_PATTERN = "[0-9a-f]" * SHORT


class Shelf:
    """The folder that results are in. Reading is safe at any time; writing only inside `open_for_building`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def cached(self, stage: str, key: str) -> Path:
        """Return where the result of `stage` stands, or would stand."""
        return self._root / "cache" / f"{stage}-{key[:SHORT]}"

    @property
    def archives(self) -> Path:
        """Return where archives stand that were fetched, or would stand."""
        return self._root / "cache" / "npm"

    def build(self, image: str, key: str) -> Path:
        """Return where a build stands, or would stand."""
        return self._root / f"{image}-{key[:SHORT]}"

    def current(self, image: str) -> Path | None:
        """Return the current build of an image, if there is one."""
        pointer = self._root / image
        return pointer.resolve() if (pointer / manifest.FILE_NAME).is_file() else None

    @contextmanager
    def open_for_building(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Be the only builder during the block; `waiting` is called if somebody else is, before waiting for them."""
        (self._root / "cache").mkdir(parents=True, exist_ok=True)
        with (self._root / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self._root.glob(f"{_WORK}*"):
                shutil.rmtree(leftover)
            yield

    @contextmanager
    def open_work(self) -> Iterator[Path]:
        """Give a folder to work in, on the same disk as the results. After the block it is gone, whatever happened."""
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=self._root))
        try:
            yield work
        finally:
            shutil.rmtree(work)

    def put(self, made: Path, place: Path) -> None:
        """Give a finished folder its name, replacing what has it: all of it is on disk first."""
        made.chmod(0o755)
        run(["sync", "--file-system", made])
        if place.exists():
            # Only a cached stage, resolved anew; builds that came of it have links to its files.
            self._discard(place)
        made.rename(place)
        _sync(place.parent)

    def drop_cached(self, stage: str, *, but: Path) -> None:
        """Remove results of `stage` that other inputs gave."""
        for old in (self._root / "cache").glob(f"{stage}-{_KEY_PATTERN}"):
            if old != but:
                self._discard(old)

    def point(self, image: str, build: Path) -> None:
        """Make `build` the current one of its image, in one step, and remove the older ones that nobody holds."""
        link = self._root / f".next-{image}"
        link.unlink(missing_ok=True)
        link.symlink_to(build.name)
        link.rename(self._root / image)
        _sync(self._root)
        for old in self._root.glob(f"{image}-{_KEY_PATTERN}"):
            if old != build and not _is_held(old):
                self._discard(old)

    def _discard(self, place: Path) -> None:
        """Remove a result. Its name goes first: what has its name is whole, also if we are cut off here."""
        with self.open_work() as work:
            place.rename(work / place.name)


def _is_held(build: Path) -> bool:
    with suppress(FileNotFoundError), (build / manifest.FILE_NAME).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

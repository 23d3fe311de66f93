"""What a machine's files are besides its image: all that was made, changed or removed since it was first started.

In a machine that is the upper folder of its overlay, read as the kernel keeps it: a removed name is a device 0/0, and a
folder that hides what the image has below it says so in an attribute. On a developer's computer it is the workspace and
the home. Plain functions that may block.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator

from warren_guest.checkpoints import HOME, WORKSPACE
from warren_guest.errors import RefusedError
from warren_guest.trees import MAX_NAMES, Changes, Root, compare, look

ROOT = b"root"
OPAQUE = "trusted.overlay.opaque"
REDIRECT = "trusted.overlay.redirect"
# Made anew by every start, or of the guest's own. Names below the root.
LEFT_OUT = frozenset({b"dev", b"proc", b"run", b"sys", b"var/lib/warren", b"lost+found"})


class Layer:
    """Where those files are, by their names in archives. `upper`: the overlay's folder, if there is one."""

    def __init__(self, upper: str | None, workspace: str, home: str) -> None:
        self._upper = upper
        self.read: tuple[Root, ...]
        self.written: tuple[Root, ...]
        if upper is None:
            self.read = (Root(WORKSPACE, os.fsencode(workspace)), Root(HOME, os.fsencode(home)))
            self.written = self.read
        else:
            # Who wrote below an overlay would confuse it: what comes back goes through it.
            self.read, self.written = (Root(ROOT, os.fsencode(upper)),), (Root(ROOT, b"/"),)

    @property
    def is_whole(self) -> bool:
        """Whether an archive has all that is in its folders, and not a difference."""
        return self._upper is None

    def changes(self) -> Changes:
        if self._upper is None:
            return compare({}, look(self.read, time.time_ns()))
        present: list[bytes] = []
        gone: list[bytes] = []
        for name, is_there, is_gone in _upper_names(os.fsencode(self._upper)):
            if is_gone:
                gone.append(ROOT + b"/" + name)
            if is_there:
                present.append(ROOT + b"/" + name)
            if len(present) + len(gone) > MAX_NAMES:
                raise RefusedError("body_too_large", f"more than {MAX_NAMES} files were changed")
        return Changes(present, gone)


def _upper_names(upper: bytes) -> Iterator[tuple[bytes, bool, bool]]:
    """Each name with whether it is there, and whether what the image has there is gone. Folders come first."""
    folders = [b""]
    while folders:
        above = folders.pop()
        with os.scandir(upper + b"/" + above) as entries:
            for entry in entries:
                name = above + b"/" + entry.name if above else entry.name
                facts = entry.stat(follow_symlinks=False)
                if name in LEFT_OUT or stat.S_ISSOCK(facts.st_mode):
                    continue
                is_whiteout = stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0
                if is_whiteout or not _is_device(facts.st_mode):
                    is_folder = stat.S_ISDIR(facts.st_mode)
                    yield name, not is_whiteout, is_whiteout or (is_folder and _hides(entry.path))
                    folders += [name] if is_folder else []


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _hides(folder: bytes) -> bool:
    """Whether nothing of the image shows through. One that shows another folder's cannot be told in an archive."""
    if _attribute(folder, REDIRECT) is not None:
        raise RefusedError("internal", f"{os.fsdecode(folder)} was renamed by the kernel in a way that cannot be kept")
    return _attribute(folder, OPAQUE) == b"y"


def _attribute(path: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
            return None
        raise


def copy_attributes(source: int, target: int) -> None:
    """A folder that was there already gets those of the one that takes its place. Others are left as they are."""
    for name in os.listxattr(source):
        if name.startswith(("user.", "system.posix_acl_")):
            with contextlib.suppress(OSError):  # the file system has none of that kind
                os.setxattr(target, name, os.getxattr(source, name))

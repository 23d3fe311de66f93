"""Folders as lists of what is in them, so that the next look finds what is different. Plain functions that may block.

A file is known by its name, and by what changes whenever it does: its kind, mode, owner, size, inode and times. Of
these only the kernel sets the time of the last change (ctime), and to the tick of its clock: what was changed just
before a look may change again in the same tick and look the same, and counts as changed at the next look, too.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from warren_guest.errors import RefusedError

# More than a tick of any kernel's clock.
_TICK_NS = 100_000_000
MAX_NAMES = 500_000
_UNSURE = -1
_KIND_BITS = 4

Index = dict[bytes, int]


@dataclass(frozen=True, slots=True)
class Root:
    """A folder, and its name in checkpoints. `tops`: all that counts in it, if that is not everything."""

    name: bytes
    path: bytes
    tops: tuple[bytes, ...] | None = None


@dataclass(slots=True)
class Changes:
    """What is different: names that are new or changed, with the folders above them; and those that are gone, without
    what was below them.
    """

    present: list[bytes]
    gone: list[bytes]


def look(roots: Iterable[Root], now_ns: int) -> Index:
    """All that is in the folders now. Sockets, devices and other file systems are left out."""
    index: Index = {}
    for root in roots:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            device = os.lstat(root.path).st_dev
            for path, facts in _below(root, device):
                name = root.name + path[len(root.path) :]
                index[name] = _fact(facts, now_ns)
                if len(index) > MAX_NAMES:
                    raise RefusedError("body_too_large", f"there are more than {MAX_NAMES} files")
    return index


def _below(root: Root, device: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """Folders come before what is in them."""
    if root.tops is None:
        folders = [root.path]
    else:
        folders = []
        for top in root.tops:
            path = root.path + b"/" + top
            with contextlib.suppress(FileNotFoundError):
                facts = os.lstat(path)
                yield path, facts
                folders += [path] if stat.S_ISDIR(facts.st_mode) else []
    while folders:
        # What goes while we look is gone, and told at the next look.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    is_folder = stat.S_ISDIR(facts.st_mode)
                    # Files of an overlay have the number of whatever file system they are really in.
                    if (is_folder and facts.st_dev != device) or _is_odd(facts.st_mode):
                        continue
                    yield entry.path, facts
                    if is_folder:
                        folders.append(entry.path)


def _is_odd(mode: int) -> bool:
    return stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _fact(facts: os.stat_result, now_ns: int) -> int:
    """One number for all of it: a workspace may have a hundred thousand files. Its last bits are the kind."""
    kind = stat.S_IFMT(facts.st_mode) >> 12
    if stat.S_ISDIR(facts.st_mode):  # what is in it has names of its own
        known = hash((facts.st_mode, facts.st_uid, facts.st_gid))
    elif facts.st_ctime_ns > now_ns - _TICK_NS:
        known = _UNSURE
    else:
        known = hash(
            (
                *(facts.st_mode, facts.st_uid, facts.st_gid, facts.st_size),
                *(facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino),
            )
        )
    return known << _KIND_BITS | kind


def _is_unsure(fact: int) -> bool:
    return fact >> _KIND_BITS == _UNSURE


def _kind(fact: int) -> int:
    return fact & (1 << _KIND_BITS) - 1


def compare(before: Index, now: Index) -> Changes:
    """What has to be done to have `now` where `before` is."""
    present: dict[bytes, None] = {}
    gone = [name for name in before if name not in now]
    for name, fact in now.items():
        known = before.get(name)
        if known != fact or _is_unsure(fact):
            # A folder that is not told of itself would be made with a mode and an owner of nobody's choice.
            present.update(dict.fromkeys(above for above in _above(name) if above in now))
            present[name] = None
        if known is not None and _kind(known) != _kind(fact):
            gone.append(name)
    return Changes(list(present), list(_topmost(gone)))


def _above(name: bytes) -> Iterator[bytes]:
    at = name.find(b"/")
    while at >= 0:
        yield name[:at]
        at = name.find(b"/", at + 1)


def _topmost(names: list[bytes]) -> Iterator[bytes]:
    """Without what is below another one of them. Sorted by their parts: a name comes just before what is below it."""
    above: bytes | None = None
    for name in sorted(names, key=lambda name: name.split(b"/")):
        if above is None or not name.startswith(above):
            above = name + b"/"
            yield name

"""Golden snapshots that the hosts of one `make test` share: who needs one first boots it, and others need not.

They are the same by their names: whatever makes a difference is in a snapshot's key. Alone, a host boots its own.
"""

import contextlib
import os
import shutil
from pathlib import Path

VARIABLE = "WARREN_SNAPSHOTS"  # the folder that they share


def borrow(state: Path, *others: Path) -> None:
    """Before a poold starts with this state folder: what others have booted is there."""
    shared = os.environ.get(VARIABLE)
    for source in [*map(_of, others), *([] if shared is None else [Path(shared)])]:
        if source.exists():
            _link_all(source, _of(state))


def lend(state: Path) -> None:
    """What the poold of this state folder has booted is there for others."""
    shared = os.environ.get(VARIABLE)
    if shared is not None and _of(state).exists():
        _link_all(_of(state), Path(shared))


def _link_all(source: Path, target: Path) -> None:
    """Each snapshot that is whole appears at `target` as a whole, or was there before."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for snapshot in source.iterdir():
        if snapshot.name.startswith(".") or (target / snapshot.name).exists():
            continue
        making = target / f".{snapshot.name}.{os.getpid()}"
        try:
            shutil.copytree(snapshot, making, copy_function=os.link)
            with contextlib.suppress(OSError):  # another run was faster
                making.rename(target / snapshot.name)
        except OSError:  # it was pruned meanwhile, or is on another file system
            pass
        finally:
            shutil.rmtree(making, ignore_errors=True)


def are_there(state: Path) -> bool:
    """Whether a poold with this state folder has one at least."""
    return any(not path.name.startswith(".") for path in _of(state).glob("*"))


def _of(state: Path) -> Path:
    return state / "qemu" / "snapshots"

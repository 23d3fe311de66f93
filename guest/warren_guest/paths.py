"""Paths in requests, and what is told about the file behind one."""

import contextlib
import os
import stat
from typing import Any

from warren_guest.accounts import Account, Accounts
from warren_guest.errors import RefusedError, refusal_of

_LIMIT = 4096

Entry = dict[str, Any]


def bad_path(message: str, field: str) -> RefusedError:
    return RefusedError("bad_path", f"{field}: {message}", field=field)


def resolve(path: str, account: Account, accounts: Accounts, field: str = "path") -> str:
    """An absolute path: as it is, in a home (`~`, `~name`), or below the home of `account`. Raises `bad_path`."""
    if not path or "\0" in path:
        raise bad_path("is empty or has a NUL", field)
    if len(os.fsencode(path)) > _LIMIT:
        raise bad_path(f"is longer than {_LIMIT} bytes", field)
    if ".." in path.split("/"):
        raise bad_path(f"{path[:100]} has a .. part", field)
    if path.startswith("~"):
        first, _, rest = path.partition("/")
        home = accounts.find(first[1:]).home if len(first) > 1 else account.home
        path = f"{home}/{rest}"
    return os.path.normpath(os.path.join(account.home, path))  # noqa: PTH118 - texts; links stay unresolved


def make_own_folder(path: str, mode: int = 0o755) -> None:
    """Make a folder of the guest's own, unless it is there, and what is missing above it.

    Not `makedirs`: with our umask of 0 that leaves the folders above open to everybody, who may then put another one in
    the place of ours.
    """
    above = os.path.dirname(path)  # noqa: PTH120
    if above and not os.path.isdir(above):  # noqa: PTH112
        make_own_folder(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)  # noqa: PTH102


def entry_of(path: str, accounts: Accounts) -> Entry:
    """The facts of `path`. Of a symbolic link: its target's, and where it leads; a broken one is `other`."""
    try:
        facts = os.lstat(path)
        target = None
        if stat.S_ISLNK(facts.st_mode):
            target = os.path.realpath(path)
            facts = _target_facts(path, facts)
    except OSError as exc:
        raise refusal_of(exc, path) from exc
    entry: Entry = {
        "name": os.path.basename(path) or "/",  # noqa: PTH119
        "path": path,
        "type": _type_of(facts.st_mode),
        "size": facts.st_size,
        "mode": stat.S_IMODE(facts.st_mode),
        "permissions": stat.filemode(facts.st_mode),
        "owner": accounts.owner_of(facts.st_uid),
        "group": accounts.group_of(facts.st_gid),
        "uid": facts.st_uid,
        "gid": facts.st_gid,
        "modified_ns": facts.st_mtime_ns,
    }
    if target is not None:
        entry["symlink_target"] = target
    return entry


def _target_facts(path: str, of_link: os.stat_result) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116 - ten thousand times per listing
    except OSError:
        return of_link


def _type_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"

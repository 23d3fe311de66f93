"""Who may own files and run processes: the machine's accounts, read from its passwd and group files.

Looking one up through the C library reads both files each time; here they are read again only when they changed.
"""

import grp
import os
import pwd
from dataclasses import dataclass

from warren_guest.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


class Accounts:
    """Accounts and their names. Safe to use from threads: the worst that a race does is read a file twice."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._stamp: object = None
        self._accounts: dict[str, Account] = {}
        self._owners: dict[int, str] = {}
        self._groups: dict[int, str] = {}

    def find(self, name: str | None) -> Account:
        """The account `name`, or the default one. Raises `unknown_user`."""
        self._refresh()
        name = self._default if name is None else name
        known = self._accounts.get(name)
        if known is None:
            known = self._accounts[name] = _look_up(name)
        return known

    def owner_of(self, uid: int) -> str:
        """The name of `uid`, or its number where it has none. As fresh as the last `find`."""
        name = self._owners.get(uid)
        if name is None:
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = str(uid)
            self._owners[uid] = name
        return name

    def group_of(self, gid: int) -> str:
        name = self._groups.get(gid)
        if name is None:
            try:
                name = grp.getgrgid(gid).gr_name
            except KeyError:
                name = str(gid)
            self._groups[gid] = name
        return name

    def _refresh(self) -> None:
        stamp = (_stamp_of("/etc/passwd"), _stamp_of("/etc/group"))
        if stamp != self._stamp:
            self._accounts, self._owners, self._groups = {}, {}, {}
            self._stamp = stamp


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - on the path of every request; Path costs more than the call
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _look_up(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError) as exc:
        raise RefusedError("unknown_user", f"there is no user {name[:60]!a}", field="user") from exc
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")

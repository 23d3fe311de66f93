"""Folders for the time of one operation: the keeper's, which `user` may read at most, and `user`'s own."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from warren_guest.accounts import Account
from warren_guest.children import outlasting
from warren_guest.errors import refusal_of
from warren_guest.paths import make_own_folder

# Calls a function in a thread. Cancelled, it still waits for it.
InThread = Callable[..., Coroutine[Any, Any, Any]]


@contextlib.asynccontextmanager
async def scratch(in_thread: InThread, parent: str | None, account: Account, mode: int) -> AsyncIterator[str]:
    """An empty folder of `account` during the block. Afterwards it is gone."""
    # Named before it is made: whenever this is broken off, it is known what to remove.
    folder = f"{parent or tempfile.gettempdir()}/warren-git-{secrets.token_hex(8)}"
    try:
        try:
            await in_thread(_make, parent, folder, account, mode)
        except OSError as exc:
            raise refusal_of(exc, folder) from exc
        yield folder
    finally:
        await outlasting(in_thread(shutil.rmtree, folder, True))


def _make(parent: str | None, folder: str, account: Account, mode: int) -> None:
    if parent is not None:
        make_own_folder(parent)
        os.chmod(parent, 0o755)  # noqa: PTH101, S103 - whatever the image made of it: what is in it has its own mode
    os.mkdir(folder, mode)  # noqa: PTH102
    os.chmod(folder, mode)  # noqa: PTH101
    # Last: from now on `account` may put something else in its place, which is not ours to change.
    if os.geteuid() == 0:
        os.chown(folder, account.uid, account.gid)

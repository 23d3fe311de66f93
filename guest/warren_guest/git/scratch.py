"""Folders for the time of one operation: the keeper's, which `user` may read at most, and `user`'s own."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from warren_guest.accounts import Account
from warren_guest.errors import refusal_of

InThread = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def scratch(in_thread: InThread, parent: str | None, account: Account, mode: int) -> AsyncIterator[str]:
    """An empty folder of `account` during the block. Afterwards it is gone."""
    try:
        folder = await in_thread(_make, parent, account, mode)
    except OSError as exc:
        raise refusal_of(exc, parent or tempfile.gettempdir()) from exc
    try:
        yield folder
    finally:
        await _finished(asyncio.ensure_future(in_thread(shutil.rmtree, folder, True)))


def _make(parent: str | None, account: Account, mode: int) -> str:
    if parent is not None:
        os.makedirs(parent, 0o755, exist_ok=True)  # noqa: PTH103
        os.chmod(parent, 0o755)  # noqa: PTH101, S103 - whatever the image made of it: what is in it has its own mode
    folder = tempfile.mkdtemp(prefix="warren-git-", dir=parent)
    try:
        if os.geteuid() == 0:
            os.chown(folder, account.uid, account.gid)
        os.chmod(folder, mode)  # noqa: PTH101
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


async def _finished(work: "asyncio.Future[Any]") -> None:
    """Wait for `work`, also when cancelled meanwhile."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError

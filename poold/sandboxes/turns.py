"""Who may do something with a sandbox now, and who has to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contract.errors import WarrenError
from contract.models import Shape


class Turns:
    """One operation at a time on each sandbox."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self._none = asyncio.Event()

    @asynccontextmanager
    async def of(self, sandbox_id: str) -> AsyncIterator[None]:
        lock, users = self._locks.setdefault(sandbox_id, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[sandbox_id]
            if not self._locks:
                self._none.set()

    async def all_over(self) -> None:
        """Wait until no operation is under way."""
        while self._locks:
            self._none.clear()
            await self._none.wait()


@dataclass(frozen=True)
class Making:
    """What is being created, and for whom."""

    owner: str
    shape: Shape


class Creations:
    """The creations under way, each of which can be ended with an error that says why."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._making: dict[str, Making] = {}
        self._errors: dict[str, WarrenError] = {}

    @asynccontextmanager
    async def under_way(self, sandbox_id: str, making: Making) -> AsyncIterator[None]:
        """A creation during the block. If it is ended, the block is cancelled and this raises the error instead.

        Who calls this has the sandbox's turn: there is one creation of it at a time.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 — a coroutine runs in a task
        self._tasks[sandbox_id] = task
        self._making[sandbox_id] = making
        try:
            yield
        except asyncio.CancelledError:
            error = self._errors.get(sandbox_id)
            if error is not None and not task.uncancel():  # by `end` and by nobody else
                raise error from None
            raise
        finally:
            del self._tasks[sandbox_id], self._making[sandbox_id]
            self._errors.pop(sandbox_id, None)

    def owner_of(self, sandbox_id: str) -> str | None:
        """For whom it is being created; None if it is not."""
        making = self._making.get(sandbox_id)
        return None if making is None else making.owner

    def of(self, owner: str | None = None) -> dict[str, Shape]:
        """What is being created for `owner`, or for everybody. It may not be in the ledger yet."""
        return {name: making.shape for name, making in self._making.items() if owner in (None, making.owner)}

    def end(self, error: WarrenError, sandbox_id: str | None = None) -> None:
        """End the creation of `sandbox_id`, or all of them. Succeeds if there is none."""
        wanted = self._tasks if sandbox_id is None else {sandbox_id} & self._tasks.keys()
        for name in wanted:
            if name not in self._errors:
                self._errors[name] = error
                self._tasks[name].cancel()

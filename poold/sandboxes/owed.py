"""What undoing came to and could not be written down, on a full disk for example. The ledger is owed it until it can.

Only in memory: who starts after us finds out by itself what is true (`poold.reconcile`).
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from contract.errors import NotFound, WarrenError, WrongState
from contract.models import Caller
from contract.states import Event
from poold.sandboxes.means import Means

log = logging.getLogger("poold.sandboxes")


class Owed:
    """At most one move of each sandbox. Whoever has the sandbox's turn pays before doing anything else with it."""

    def __init__(self, means: Means, again: Callable[[str], None]) -> None:
        self._means = means
        self._again = again
        self._moves: dict[str, Callable[[], Awaitable[None]]] = {}

    async def move(self, sandbox_id: str, event: Event, caller: Caller, **changes: Any) -> None:
        """Write down what undoing came to. If that cannot be now it is owed, and `again` is asked to have it paid."""
        self._moves[sandbox_id] = partial(self._move, sandbox_id, event, caller, **changes)
        try:
            await self.pay(sandbox_id)
        except WarrenError as error:
            log.error("what was undone is not written down yet", extra={"sandbox": sandbox_id, "why": str(error)})
            self._again(sandbox_id)

    async def pay(self, sandbox_id: str) -> None:
        """Write down what is owed of the sandbox, if anything is. If this raises or is cancelled, it is owed still."""
        move = self._moves.get(sandbox_id)
        if move is not None:
            await move()
            self.forget(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is over, and that is written down."""
        self._moves.pop(sandbox_id, None)

    async def _move(self, sandbox_id: str, event: Event, caller: Caller, **changes: Any) -> None:
        # There is no row, or it is written down already, or it was stopped meanwhile.
        with contextlib.suppress(NotFound, WrongState):
            await self._means.move(sandbox_id, event, caller, **changes)

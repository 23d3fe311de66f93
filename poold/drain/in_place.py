"""Emptying a host without moving anything: what runs is paused on its disk, or destroyed."""

from collections.abc import AsyncIterator

from contract.errors import WarrenError
from contract.models import Caller
from poold.sandboxes import Sandboxes

WHY = "the host was drained"


async def in_place(host: Sandboxes, mode: str, caller: Caller) -> AsyncIterator[tuple[str, WarrenError | None]]:
    """Take nothing new, and `pause` or `destroy` what runs: each id when it is done, with what went wrong."""
    await host.close()
    end = host.pause if mode == "pause" else host.destroy
    for live in host.machines():
        try:
            await end(live.sandbox.id, caller, WHY)
        except WarrenError as error:
            yield live.sandbox.id, error
        else:
            yield live.sandbox.id, None

"""The ends of machines: what cannot be ended now is not forgotten, but tried again until it is gone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from contract.errors import WarrenError
from poold.pool.places import Place, Places

log = logging.getLogger("poold.pool")

RETRY_S = 5.0

End = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Ending:
    """A machine that is to end, how, and the place that it has until then, if it has one."""

    machine_id: str
    end: End
    place: Place | None


class Ends:
    """Ends machines and gives their places back. A process that the kernel holds keeps its place until it is gone."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._left: dict[str, Ending] = {}  # that failed, by machine

    async def end(self, machine_id: str, end: End, place: Place | None = None) -> None:
        """End a machine. If that raises, it is tried again by itself; whoever comes meanwhile may try it, too."""
        former = self._left.get(machine_id)
        if place is None and former is not None:
            place = former.place
        try:
            await end(machine_id)
            if place is not None:
                await self._places.give_back(place)
        except BaseException:
            self._left[machine_id] = Ending(machine_id, end, place)
            raise
        self._left.pop(machine_id, None)

    async def settle(self, machine_id: str) -> None:
        """Nothing is left of an earlier end of this machine, or this raises why something is."""
        if (left := self._left.get(machine_id)) is not None:
            await self.end(machine_id, left.end)

    async def keep_trying(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            for machine_id in list(self._left):
                try:
                    await self.settle(machine_id)
                except WarrenError as error:
                    log.error("a machine cannot be ended", extra={"machine": machine_id, "why": str(error)})

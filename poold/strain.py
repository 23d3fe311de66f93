"""The watch over the host: every second it reads how much room there is, and refuses claims before it is gone."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from poold.errors import HostFault, HostPressure
from poold.lifetimes import beside
from poold.metrics import Metrics
from poold.pressure import Pressure, Thresholds, judge, read

log = logging.getLogger("poold.strain")

EVERY_S = 1.0


class Watch:
    """What the host is short of, as of the last second."""

    def __init__(self, state_dir: Path, metrics: Metrics, thresholds: Thresholds) -> None:
        self._state_dir = state_dir
        self._metrics = metrics
        self._thresholds = thresholds
        self.pressure: Pressure | None = None

    def gate(self) -> None:
        """Raise `HostPressure` if nothing more should be started on this host now."""
        if self.pressure is not None:
            raise HostPressure(self.pressure.message, what=self.pressure.what)

    @contextlib.asynccontextmanager
    async def running(self, strain: Callable[[bool], None]) -> AsyncIterator[None]:
        """Watch during the block, from its beginning on. `strain` is told whenever it begins or ends."""
        await self._look(strain)
        async with beside(self._forever(strain)):
            yield

    async def _forever(self, strain: Callable[[bool], None]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self._look(strain)

    async def _look(self, strain: Callable[[bool], None]) -> None:
        try:
            readings = await asyncio.to_thread(read, self._state_dir)
        except HostFault as error:
            log.error("the host cannot be watched", extra={"why": str(error)})
            return
        was, self.pressure = self.pressure, judge(readings, self._thresholds, was=self.pressure)
        if (was is None) is not (self.pressure is None):
            told = "host pressure ended" if self.pressure is None else self.pressure.message
            log.warning(told)
            strain(self.pressure is not None)
        for kind in {*(was.kinds if was else ()), *(self.pressure.kinds if self.pressure else ())}:
            self._metrics.host_pressure.set(float(self.pressure is not None and kind in self.pressure.kinds), what=kind)

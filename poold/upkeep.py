"""What a daemon does now and then by itself."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from contract.errors import WarrenError
from poold.config import Config
from poold.ledger import Ledger, retention
from poold.lifetimes import beside

log = logging.getLogger("poold")

UPKEEP_S = 3600.0
BETWEEN_SWEEPS_S = 0.1  # others want to write, too


@contextlib.asynccontextmanager
async def upkeep(ledger: Ledger, config: Config, now_ms: Callable[[], int]) -> AsyncIterator[None]:
    """Remove from the ledger what is too old, now and then."""
    keep = retention.Keep(ended_days=config.keep_sandboxes_days, audit_days=config.keep_audit_days)

    async def forever() -> None:
        while True:
            sweep = partial(retention.sweep, keep=keep, now_ms=now_ms())
            wait_s = BETWEEN_SWEEPS_S
            try:
                if (await ledger.write(sweep, durable=False)).done:
                    wait_s = UPKEEP_S
            except WarrenError as error:
                log.error("the ledger could not be swept", extra={"why": str(error)})
                wait_s = UPKEEP_S
            await asyncio.sleep(wait_s)

    async with beside(forever()):
        yield

"""A guest's events, written into its sandbox's timeline: each once, in order, also across restarts of either side."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from contract.errors import WarrenError
from poold.ledger import Ledger, events, sandboxes
from poold.link import Guest, GuestEvent, read_events

log = logging.getLogger("poold.timeline")

BEGIN_AFTER_S = 0.3  # of a claim: a first request of the caller comes before ours
AGAIN_AFTER_S = 1.0
KEPT_BYTES = 4096  # of an event's data; the guest keeps the rest for as long as it does
# A guest may not fill the host's ledger: so many events at once, and so many a second after that.
BURST = 2000
PER_SECOND = 50.0


class Allowance:
    """How many events a guest may still tell."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def wait_s(self, count: int) -> float:
        """Take `count` events from the allowance, and return how long to wait before asking for more."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND) - count
        self._at = now
        return max(0.0, -self._left / PER_SECOND)


async def listen(guest: Guest, ledger: Ledger, sandbox_id: str, now_ms: Callable[[], int]) -> None:
    """Write the guest's events down until cancelled. What it says that makes no sense costs its own timeline only."""
    await asyncio.sleep(BEGIN_AFTER_S)
    allowance = Allowance(asyncio.get_running_loop().time)
    while True:
        try:
            await _listen_once(guest, ledger, sandbox_id, now_ms, allowance)
        except WarrenError as error:
            log.info("listening to a guest was cut off", extra={"sandbox": sandbox_id, "why": str(error)})
        await asyncio.sleep(AGAIN_AFTER_S)


async def _listen_once(
    guest: Guest, ledger: Ledger, sandbox_id: str, now_ms: Callable[[], int], allowance: Allowance
) -> None:
    last = await ledger.read(lambda db: events.last_guest_seq(db, sandbox_id))
    async with (
        guest.exchange("GET", f"/events?after={last}") as answer,
        contextlib.aclosing(read_events(answer.chunks())) as batches,
    ):
        async for batch in batches:
            write = partial(_append, sandbox_id=sandbox_id, batch=batch, at_ms=now_ms())
            await ledger.write(write, durable=False)
            await asyncio.sleep(allowance.wait_s(len(batch)))


def _append(db: Any, sandbox_id: str, batch: list[GuestEvent], at_ms: int) -> None:
    for event in batch:
        sandboxes.tell(db, sandbox_id, event.kind, _bounded(event.data), at_ms=at_ms, guest_seq=event.number)


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    """`data`, or what is most useful of it: its numbers, unless even those are too many."""
    if len(orjson.dumps(data)) <= KEPT_BYTES:
        return data
    kept = {name: value for name, value in data.items() if isinstance(value, int | float)} | {"truncated": True}
    return kept if len(orjson.dumps(kept)) <= KEPT_BYTES else {"truncated": True}

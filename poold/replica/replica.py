"""The replica as the daemon has it: brought up to date on request, and how it is doing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from poold.replica import control
from poold.replica.errors import ReplicaError
from poold.replica.litestream import Litestream

log = logging.getLogger("poold.replica")

SYNC_S = 30.0  # we wait for one call; what it began goes on, and the next call waits for that
LONGEST_SYNC_S = 24 * 3600  # Litestream may take for one: a first snapshot is as large as the ledger
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # between two tries
STUCK_S = 60.0  # a Litestream that says no for so long is started anew: it may have lost a file of its own
STATUS_S = 2.0

Observe = Callable[[bool, float], None]


class Replica:
    """One ledger's. `observe(is_ok, took_s)` is told of every call."""

    def __init__(self, litestream: Litestream, observe: Observe, now_ms: Callable[[], int]) -> None:
        self._litestream = litestream
        self._observe = observe
        self._now_ms = now_ms
        self._txid = 0  # the last of Litestream's own transactions that we saw in the replica
        self._refused_since: float | None = None  # Litestream answers, and says no
        self.synced_ms: int | None = None
        self.why = "it was not asked yet"  # the last call failed; empty if it did not

    @property
    def is_up(self) -> bool:
        return not self.why

    @property
    def restarts(self) -> int:
        return self._litestream.restarts

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Replica"]:
        async with self._litestream.running():
            yield self

    async def cover(self) -> None:
        """Return when all that is committed now is in the replica. While the store is away, this waits for it."""
        self._litestream.begin()
        pause_s = FIRST_PAUSE_S
        while not await self._tried():
            if self._refused_since is not None and time.monotonic() - self._refused_since > STUCK_S:
                log.error("litestream is started anew: it does not get on", extra={"why": self.why})
                self._litestream.restart()
                self._refused_since = None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def view(self) -> dict[str, Any]:
        """For the operator."""
        litestream = self._litestream
        version = None
        with contextlib.suppress(ReplicaError, TimeoutError):
            async with asyncio.timeout(STATUS_S):
                version = (await control.call(litestream.places.socket, "GET", "/info")).get("version")
        return {
            "where": str(litestream.target),
            "up": self.is_up,
            "why": self.why or None,
            "synced_ms": self.synced_ms,
            "txid": self._txid,
            "litestream": {"version": version, "pid": litestream.pid, "restarts": litestream.restarts},
        }

    async def _tried(self) -> bool:
        """Whether a call has covered what was committed before it."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(SYNC_S):
                await self._sync()
        except TimeoutError:  # of a store that is away or slow: it is at it
            self._refused_since = None
            return self._failed(f"no answer within {SYNC_S:.0f} s", began)
        except ReplicaError as error:
            self._refused_since = self._refused_since or began
            return self._failed(error.hint or "it failed", began)
        if not self.is_up:
            log.info("the replica is up to date", extra={"where": str(self._litestream.target)})
        self.why, self.synced_ms, self._refused_since = "", self._now_ms(), None
        self._observe(True, time.monotonic() - began)
        return True

    def _failed(self, why: str, began: float) -> bool:
        if self.is_up:
            log.warning("the replica is not up to date", extra={"why": why})
        self.why = why
        self._observe(False, time.monotonic() - began)
        return False

    async def _sync(self) -> None:
        """Litestream's word is not enough: it also says how far the ledger is, and how far the replica."""
        asked = {"path": str(self._litestream.places.ledger), "wait": True, "timeout": LONGEST_SYNC_S}
        told = await control.call(self._litestream.places.socket, "POST", "/sync", asked)
        local, replicated = told.get("txid"), told.get("replicated_txid")
        if not isinstance(local, int) or not isinstance(replicated, int) or not 0 < local <= replicated:
            hint = f"Litestream has {local!r} of the ledger and {replicated!r} in the replica"
            raise ReplicaError("syncing", "the replica", hint=hint)
        if local < self._txid:  # it began to count anew: what the replica has is further only in number
            self._litestream.restart()
            hint = f"Litestream went back from transaction {self._txid} to {local}"
            raise ReplicaError("syncing", "the replica", hint=hint)
        self._txid = local

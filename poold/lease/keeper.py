"""Holding this host's lease: renewed in time, or everything stops.

Whether the host holds it is a question of the clock, not of what somebody has noticed: `check` looks at it whenever
work is taken. What a renewal whose reply was lost has done is seen at the next one, which meets a conflict and looks:
what it finds there was sent at a known time, and counts from then.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from contract.errors import WarrenError
from contract.hosts import Host
from poold.errors import Fenced, HostFault
from poold.files import PRIVATE, put
from poold.lease import wardens
from poold.lease.killing import kill
from poold.lease.starting import Ground, Held
from poold.lease.terms import S, Terms, may_go_on
from poold.lease.written import BadLease, Lease
from poold.lifetimes import finish
from poold.store.errors import Conflict, NoObject

log = logging.getLogger("poold.lease")

LOOK_S = 0.1  # the loop's own clock stands still while the host is suspended: no sleep is longer
RECORD_LIMIT_S = 1.0  # for the host's record; the last one will do
WARDEN_EVERY = 5  # renewals

Record = Callable[[], Awaitable[Host]]
Cover = Callable[[], Awaitable[None]]


@dataclass
class Counted:
    renewals: int = 0
    failures: int = 0


class Keeper:
    """This host's lease, from its start on."""

    def __init__(self, ground: Ground, held: Held, *, start_anew: Callable[[], None] | None = None) -> None:
        """`start_anew`: once the machines of a host that was fenced are killed, it has nothing to put in order. This
        makes another process of ours, and does not return.
        """
        self._ground = ground
        self._held = held
        self._start_anew = start_anew
        self._record: Record | None = None
        self._lost: str | None = None
        self._is_failing = False
        self._is_leaving = False
        self._turn = asyncio.Lock()  # of who writes the lease
        self._sent_beat = held.lease.beat
        self.is_away = False  # what it had is carried on by another host
        self._sent_ns = {held.lease.beat: held.sent_ns}  # when each was sent, of those that may be in the store
        self.counted = Counted()

    @property
    def lease(self) -> Lease:
        return self._held.lease

    @property
    def epoch(self) -> int:
        return self._held.lease.epoch

    @property
    def terms(self) -> Terms:
        return Terms.of(self._held.lease)

    @property
    def left_s(self) -> float:
        """How long the host goes on if nothing is renewed."""
        return max(0, self._held.sent_ns + self.terms.hold_ns - self._ground.now_ns()) / S

    @property
    def is_held(self) -> bool:
        return self._lost is None and may_go_on(self._held.sent_ns, self.terms, self._ground.now_ns())

    def check(self) -> None:
        """Raise `Fenced` if this host must not do anything now. After something was done: if it must not be told."""
        if not self.is_held:
            why = self._lost or "its lease could not be renewed in time"
            raise Fenced(f"this host has stopped: {why}; it comes back by itself", epoch=self.epoch)

    def record_from(self, record: Record) -> None:
        """From now on the lease tells this of the host."""
        self._record = record

    async def also_kill(self, groups: Iterable[str]) -> None:
        """There are control groups with machines in them, too."""
        targets = replace(self._ground.targets, groups=tuple(groups))
        self._ground = replace(self._ground, targets=targets)
        await finish(asyncio.to_thread(self._ground.guard.prepare, targets))

    def view(self) -> dict[str, Any]:
        told = self.lease.view()
        return {**told, "state": self.lease.state, "left_s": round(self.left_s, 3), **vars(self.counted)}

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Renew the lease during the block. If it is lost, all machines are killed and the block ends with `Fenced`.

        After the block the lease is as it was: whoever is started next in its time goes on.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(self._renewing()), tasks.create_task(self._counting())]
                try:
                    yield
                finally:
                    for task in both:
                        task.cancel()
        except BaseException:
            if self._lost is not None:
                await finish(asyncio.to_thread(self._clear))
            raise

    async def leave(self, heir: str = "", cover: Cover | None = None) -> None:
        """This host runs nothing any more, and will not: others need not wait to carry on what it has, `heir` first.

        From the first moment on nothing is acknowledged; what was is in the replica when `cover` returns, before
        anybody may read it. During `holding`, which goes on then, or after it. Raises what the store raises: then the
        lease is left or lapses in its time, and this process holds nothing in either case.
        """
        async with self._turn:  # no renewal is under way
            self._is_leaving = True
            self._lost = "it has left its cluster"
            await finish(asyncio.to_thread(self._clear))
            if cover is not None:
                await cover()
            with contextlib.suppress(_Lost):  # somebody has it already, or a reply was lost
                while not await self._has_left(heir):
                    await self._look()  # the last renewal may have been cut off

    async def _has_left(self, heir: str) -> bool:
        try:
            await self._ground.store.replace(self._ground.key, self.lease.left(heir).encode(), self._held.tag)
        except Conflict:
            return False
        return True

    def _clear(self) -> None:
        """Nothing runs, and nobody starts anything: the warden may go. If that cannot be written, it kills us, too."""
        kill(self._ground.targets)
        with contextlib.suppress(OSError):
            self._ground.guard.write(self._held.until().over())

    async def _counting(self) -> None:
        """Beside the renewals: one that hangs must not keep us from seeing what time it is."""
        while self.is_held:  # noqa: ASYNC110 — for a time, not for a change
            await asyncio.sleep(min(LOOK_S, self.left_s))
        if not self._is_leaving:
            await self._fence()

    async def _renewing(self) -> None:
        rest_s = self.terms.renew_ns / S
        try:
            while True:
                await asyncio.sleep(rest_s / 4 if self._is_failing else rest_s)
                async with self._turn:
                    if not self.is_held:  # what is over stays so, and is not held again behind the back of who counts
                        return
                    if await self._has_warden():
                        await self._renew()
        except _Lost as error:
            self._lost = str(error)  # seen by who counts

    async def _has_warden(self) -> bool:
        """Looks now and then. Without one nothing is renewed: nobody would kill the machines if we could not."""
        try:
            if self.counted.renewals % WARDEN_EVERY == 0:
                await wardens.ensure(self._ground.guard)
        except (HostFault, OSError) as error:
            self._failed(error)
            return False
        return True

    async def _renew(self) -> None:
        """One try. Raises `_Lost` if the lease is another's; what else goes wrong is tried again."""
        self._sent_beat += 1
        lease = replace(self.lease.renewed(await self._told()), beat=self._sent_beat)
        self._sent_ns[lease.beat] = sent_ns = self._ground.now_ns()
        try:
            async with asyncio.timeout(self.terms.hold_ns / S / 3):
                entry = await self._ground.store.replace(self._ground.key, lease.encode(), self._held.tag)
            await self._hold(Held(lease, entry.tag, sent_ns))
        except Conflict:
            await self._look()
        except (WarrenError, OSError, TimeoutError) as error:
            self._failed(error)

    async def _hold(self, held: Held) -> None:
        """The warden knows first: it must not kill what goes on."""
        await finish(asyncio.to_thread(self._ground.guard.write, held.until()))
        self._held = held
        self._sent_ns = {beat: sent_ns for beat, sent_ns in self._sent_ns.items() if beat >= held.lease.beat}
        self.counted.renewals += 1
        if self._is_failing:
            log.info("the lease is renewed again", extra={"epoch": self.epoch})
        self._is_failing = False

    async def _look(self) -> None:
        """The object is not as we knew it. If it is ours it has a tag for the next try. If it has a beat of ours whose
        reply we have missed, that is as good as the reply: what is there was applied after it was sent.
        """
        ground = self._ground
        try:
            async with asyncio.timeout(self.terms.hold_ns / S / 3):
                blob = await ground.store.get(ground.key)
            lease = Lease.decode(blob.data, ground.record.name)
        except NoObject:
            raise _Lost("its lease is gone from the store") from None
        except BadLease as error:
            raise _Lost(str(error)) from None
        except (WarrenError, OSError, TimeoutError) as error:
            self._failed(error)
            return
        is_ours = (lease.holder, lease.epoch, lease.root) == (self.lease.holder, self.epoch, self.lease.root)
        if not is_ours or lease.has_left:
            raise _Lost(f"its lease was taken: it is {lease.state} in epoch {lease.epoch}, this was {self.epoch}")
        if lease.beat > self._sent_beat:
            raise _Lost("another poold renews the lease of this host: its state folder was copied")
        sent_ns = self._sent_ns.get(lease.beat, 0)
        if sent_ns <= self._held.sent_ns:
            self._held = Held(lease, blob.entry.tag, self._held.sent_ns)  # somebody else wrote; it is ours all the same
            self._is_failing = True  # so the next try comes soon
            return
        try:
            await self._hold(Held(lease, blob.entry.tag, sent_ns))
        except OSError as error:
            self._failed(error)

    async def _told(self) -> Host:
        if self._record is not None:
            try:
                async with asyncio.timeout(RECORD_LIMIT_S):
                    return await self._record()
            except (WarrenError, OSError, TimeoutError) as error:
                log.warning("this host's record is not up to date", extra={"why": str(error)})
        return self.lease.record

    def _failed(self, error: BaseException) -> None:
        self.counted.failures += 1
        if not self._is_failing:
            why = str(error) or type(error).__name__
            log.warning("the lease was not renewed", extra={"why": why, "left_s": round(self.left_s, 1)})
        self._is_failing = True

    async def _fence(self) -> None:
        """No more work, then the machines, then the telling. What was just being started is killed after the block."""
        why = self._lost or "its lease could not be renewed in time"
        self._lost = why
        log.error("this host is fenced", extra={"why": why, "epoch": self.epoch})
        killed = await finish(asyncio.to_thread(kill, self._ground.targets))
        with contextlib.suppress(OSError):  # it is for people
            told = {"epoch": self.epoch, "why": why, "machines": killed}
            await asyncio.to_thread(put, self._ground.guard.killed, orjson.dumps(told), PRIVATE)
        if self._start_anew is not None:
            with contextlib.suppress(OSError):  # a machine that was just being started is the warden's; we are not
                await asyncio.to_thread(self._ground.guard.write, replace(self._held.until(), pid=0, started=""))
            self._start_anew()
        raise Fenced(f"this host was fenced: {why}", epoch=self.epoch)


class _Lost(Exception):
    """Somebody else holds the lease, or nobody does."""

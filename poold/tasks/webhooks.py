"""Telling callers what became of their tasks: signed deliveries, tried until somebody takes them.

A delivery comes at least once, with the same `Warren-Delivery` each time. Who knows the secret can verify it:
`Warren-Signature: t=SECONDS,v1=HEX` has the HMAC-SHA256 of `SECONDS.BODY`.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from contract.__about__ import __version__
from contract.errors import BadField, WarrenError
from contract.network import NetRule
from poold.tasks.network import check_reachable
from poold.tasks.posting import Unreached
from poold.tasks.urls import Url, read_url, redacted

log = logging.getLogger(__name__)

FIELD = "webhook.url"
MOST = 32  # deliveries under way
MOST_PER_OWNER = 4
PAGE_PER_OWNER = 2 * MOST_PER_OWNER  # those under way, and those that follow them
DELAYS_S = (5, 30, 120, 600, 3600, 6 * 3600, 16 * 3600)  # after each try but the last; about a day in all
MAX_TRIES = len(DELAYS_S) + 1
SPREAD = 0.1  # of a delay: those that failed together do not all come back together
POLL_S = 2.0
TROUBLE_S = 30.0  # before what could not be written down is tried again
GONE = 410

Post = Callable[[Url, Mapping[str, str], bytes], Awaitable[int]]


@dataclass(frozen=True)
class Delivery:
    """What somebody is to be told. `tries` have been made before."""

    id: str
    owner: str
    url: str
    body: bytes = field(repr=False)
    secret: str | None = field(repr=False)
    tries: int = 0


class Source(Protocol):
    """Where deliveries are kept. Each method returns when what it says is on disk. Raises `WarrenError` alone."""

    async def due(self, now_ms: int) -> Sequence[Delivery]:
        """What is due, oldest first: of each owner at least `PAGE_PER_OWNER`, if there are as many.

        Those under way are still due.
        """
        ...

    async def done(self, delivery_id: str) -> None:
        """Somebody took it."""
        ...

    async def failed(self, delivery_id: str, why: str, next_ms: int | None) -> None:
        """Nobody took it. None: it is given up."""
        ...


class Deliveries:
    """Does what is due: some at a time, and no owner at the cost of another."""

    def __init__(self, source: Source, post: Post, *, clock_ms: Callable[[], int], random: Callable[[], float]) -> None:
        self._source = source
        self._post = post
        self._clock_ms = clock_ms
        self._random = random
        self._under_way: dict[str, str] = {}  # owners by delivery
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Something is due."""
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled. What is under way then comes again."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._bell.clear()
                for each in choose(await self._due(), self._under_way):
                    self._under_way[each.id] = each.owner
                    tasks.create_task(self._deliver(each))
                await self._rest()

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._bell.wait()

    async def _due(self) -> Sequence[Delivery]:
        try:
            return await self._source.due(self._clock_ms())
        except WarrenError as error:
            log.error("webhooks wait: %s", error)
            return ()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            why, is_over = await self._try(delivery)
            await self._write_down(delivery, why, is_over=is_over)
        except WarrenError as error:
            # Whoever took it will be told again; but not again and again.
            log.error("a delivery could not be written down: %s", error, extra={"delivery": delivery.id})
            await asyncio.sleep(TROUBLE_S)
        finally:
            del self._under_way[delivery.id]
            self._bell.set()

    async def _try(self, delivery: Delivery) -> tuple[str | None, bool]:
        """Why it failed, if it did, and whether there is no use in another try."""
        try:
            url = read_url(delivery.url, FIELD)
            status = await self._post(url, headers_of(delivery, self._clock_ms() // 1000), delivery.body)
        except (Unreached, BadField) as error:
            return str(error), False
        return verdict(status), status == GONE

    async def _write_down(self, delivery: Delivery, why: str | None, *, is_over: bool) -> None:
        if why is None:
            await self._source.done(delivery.id)
            return
        tries = delivery.tries + 1
        next_ms = None if is_over else next_try_ms(tries, self._clock_ms(), self._random())
        log.info("a delivery failed", extra={"delivery": delivery.id, "tries": tries, "why": why})
        await self._source.failed(delivery.id, why, next_ms)


def webhook_url(text: str, private_nets: tuple[NetRule, ...] = ()) -> str:
    """The address at which a caller wants to be told. Raises `BadField`, whose value shows no password."""
    url = read_url(text, FIELD)
    if url.credentials is not None:
        raise BadField(FIELD, redacted(text), "must have no user and no password: deliveries are signed")
    check_reachable(url, redacted(text), FIELD, private_nets)
    return str(url)


def signature(secret: str, body: bytes, at_s: int) -> str:
    signed = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={signed}"


def headers_of(delivery: Delivery, at_s: int) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"warren/{__version__}",
        "Warren-Delivery": delivery.id,
    }
    if delivery.secret is not None:
        headers["Warren-Signature"] = signature(delivery.secret, delivery.body, at_s)
    return headers


def verdict(status: int) -> str | None:
    """Why an answer of this status is none that takes a delivery; None: it is one."""
    if 200 <= status < 300:
        return None
    return f"it answered {status}" + (", and redirects are not followed" if 300 <= status < 400 else "")


def next_try_ms(tries: int, now_ms: int, chance: float) -> int | None:
    """When to try again after so many tries; None: no more. `chance` is from 0 to 1."""
    if tries >= MAX_TRIES:
        return None
    delay_ms = DELAYS_S[tries - 1] * 1000
    return now_ms + delay_ms + int(delay_ms * SPREAD * chance)


def choose(due: Sequence[Delivery], under_way: Mapping[str, str]) -> list[Delivery]:
    """What to begin now: who has the fewest under way comes first, then who waits longest."""
    busy = Counter(under_way.values())
    waiting: dict[str, deque[Delivery]] = defaultdict(deque)
    for each in due:
        if each.id not in under_way:
            waiting[each.owner].append(each)
    chosen: list[Delivery] = []
    while waiting and len(under_way) + len(chosen) < MOST:
        owner = min(waiting, key=lambda each: busy[each])
        if busy[owner] >= MOST_PER_OWNER:
            break
        busy[owner] += 1
        chosen.append(waiting[owner].popleft())
        if not waiting[owner]:
            del waiting[owner]
    return chosen

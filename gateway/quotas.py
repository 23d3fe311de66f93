"""What an owner may have: reservations in the owner's book, which is on one host.

The book is on the first host in the ranking of the owner's name that lives. A create reserves there under its new id.
A book that is full is settled (what has ended is released) before anyone is refused; one that is not where the ring
says is moved. See docs/decisions/0010-gateway-and-hosts.md.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from contract.errors import PoolExhausted, WarrenError
from contract.keys import Key, Pools
from contract.models import Shape
from contract.ring import ranked
from contract.states import State
from contract.tickets import LIFE_MS, SKEW_MS, Access
from gateway.errors import HostBroken, HostSaid, HostUnreachable
from gateway.hosts import Answer, Hosts

log = logging.getLogger("gateway.quotas")

TRIES = 5  # a book can be moved by another gateway just when we have moved it
MAX_CHECKED = 100_000
MAX_IDS = 1000  # in one question
RELEASE_S = 2.0
ENDED = frozenset({State.STOPPED, State.ERROR})  # nothing of such a sandbox is left on its host but its row
# After this long nobody can create under a reservation any more: the ticket for it is over, whatever the clocks say.
LATE_MS = LIFE_MS + 2 * SKEW_MS

Row = dict[str, Any]
UNREACHED: dict[str, list[Row]] = {"rows": [], "repeats": []}  # what is known of a book on a host that cannot be asked


@dataclass(frozen=True)
class Repeat:
    """What makes a request the same as an earlier one: hashes of its idempotency key and of its body."""

    key: str
    asked: str


@dataclass(frozen=True)
class Reserved:
    id: str
    repeated: bool  # an earlier request with the same idempotency key has it


class Quotas:
    """Reserves and releases. Safe to call from many tasks; all that it remembers is what it has seen for itself."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._checked: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._settling: dict[str, asyncio.Task[None]] = {}

    async def reserve(self, key: Key, sandbox: str, shape: Shape, repeat: Repeat | None = None) -> Reserved:
        """Take room for one sandbox from what the key's owner may have, or raise `PoolExhausted`."""
        try:
            return await self._reserve(key, sandbox, shape, repeat)
        except PoolExhausted:
            with contextlib.suppress(WarrenError):  # if that is not possible now, the book is as full as it was
                await self._settled(key.owner)
            return await self._reserve(key, sandbox, shape, repeat)

    async def release(self, owner: str, ids: Iterable[str], *, forget: bool = False) -> None:
        """Give back what is not needed any more. If that fails it is found out later, when a book is full.

        With `forget`, an idempotency key does not lead to these ids any more: they never came to be.
        """
        value = {"ids": list(ids), **({"forget": True} if forget else {})}
        with contextlib.suppress(WarrenError):
            await self._ask(self._home(owner), owner, "/release", value, limit_s=RELEASE_S)

    async def _reserve(self, key: Key, sandbox: str, shape: Shape, repeat: Repeat | None) -> Reserved:
        value = {"id": sandbox, "vcpus": shape.vcpus, "memory_mb": shape.memory_mb, "disk_mb": shape.disk_mb}
        if repeat is not None:
            value |= {"key": repeat.key, "asked": repeat.asked}
        for tried in range(TRIES):
            home = self._home(key.owner)
            with _again(tried):
                await self._check(key.owner, home)
                answer = await self._ask(home, key.owner, "", value, pools=key.pools)
                if not _has_no_book(answer):
                    return _reserved(answer)
                await self._move(key.owner, home)
        raise HostUnreachable(f"the reservations of {key.owner} are being moved; try again", sent=False)

    def _home(self, owner: str) -> str:
        """The host that has the owner's book."""
        alive = self._hosts.alive()
        home = next((name for name in ranked(owner, self._hosts.weights()) if name in alive), None)
        if home is None:
            raise HostUnreachable("no host lives that could be asked for a reservation", sent=False)
        return home

    # Moving a book

    async def _check(self, owner: str, home: str) -> None:
        """See for ourselves, once for each time that a host came to life, that no other host has an open book.

        A host that nobody could reach may have kept one while another was opened elsewhere.
        """
        now = (home, self._hosts.generation)
        if self._checked.get(owner) == now:
            return
        others = [name for name in self._hosts.alive() if name != home]
        closed = await asyncio.gather(*(self._close(name, owner) for name in others))
        if any(book["rows"] or book["repeats"] for book in closed):
            await self._move(owner, home)
        self._checked[owner] = now
        self._checked.move_to_end(owner)
        if len(self._checked) > MAX_CHECKED:
            self._checked.popitem(last=False)

    async def _move(self, owner: str, home: str) -> None:
        """Open the owner's book at `home`, with all that is known of it anywhere.

        Every host is asked, also those that we think dead: only one that nobody can reach may keep a book open.
        """
        names = self._hosts.names()
        books = await asyncio.gather(*(self._close_if_reached(name, owner) for name in names))
        living = await asyncio.gather(*(self._living(name, owner) for name in self._hosts.alive()))
        rows = {row["id"]: row for found in (*living, *(book["rows"] for book in books)) for row in found}
        repeats = {row["key"]: row for book in books for row in book["repeats"]}
        value: dict[str, Any] = {"rows": list(rows.values()), "repeats": list(repeats.values())}
        if unreached := [name for name, book in zip(names, books, strict=True) if book is UNREACHED]:
            value["unreached"] = unreached  # they may know of idempotency keys
        (await self._ask(home, owner, "/open", value)).or_raise()
        log.info("a book was opened", extra={"owner": owner, "host": home, "rows": len(rows)})
        moved = [(name, [row["id"] for row in book["rows"]]) for name, book in zip(names, books, strict=True)]
        await asyncio.gather(*(self._clear(name, owner, ids) for name, ids in moved if ids and name != home))

    async def _clear(self, name: str, owner: str, ids: list[str]) -> None:
        """What was moved need not be given out again. If this fails it is, and costs room until a book is settled."""
        with contextlib.suppress(WarrenError):
            await self._released(name, owner, ids)

    async def _released(self, name: str, owner: str, ids: list[str], *, forget: bool = False) -> None:
        for begin in range(0, len(ids), MAX_IDS):
            value = {"ids": ids[begin : begin + MAX_IDS], **({"forget": True} if forget else {})}
            (await self._ask(name, owner, "/release", value)).or_raise()

    async def _close_if_reached(self, name: str, owner: str) -> dict[str, list[Row]]:
        try:
            return await self._close(name, owner)
        except HostUnreachable:
            if name in self._hosts.alive():
                raise
            return UNREACHED

    async def _close(self, name: str, owner: str) -> dict[str, list[Row]]:
        answer = await self._ask(name, owner, "/close", {}, even_dead=True)
        if _has_no_book(answer):
            return {"rows": [], "repeats": []}
        value = answer.or_raise()
        return {part: list(value.get(part) or []) for part in ("rows", "repeats")}

    async def _living(self, name: str, owner: str) -> list[Row]:
        """The owner's sandboxes on that host, as reservations."""
        answer = await self._hosts.ask(name, "GET", f"/v1/owners/{owner}/sandboxes", Access.HOST, owner)
        return list(answer.or_raise()["rows"])

    # Settling a book

    async def _settled(self, owner: str) -> None:
        """Settle the owner's book; whoever asks for it meanwhile waits for the same."""
        task = self._settling.get(owner)
        if task is None:
            task = self._settling[owner] = asyncio.create_task(self._settle(owner))
            task.add_done_callback(lambda _: self._settling.pop(owner, None))
        await asyncio.shield(task)

    async def _settle(self, owner: str) -> None:
        home = self._home(owner)
        target = f"/v1/owners/{owner}/reservations"
        book = (await self._hosts.ask(home, "GET", target, Access.HOST, owner)).or_raise()
        rows = book["rows"]
        names = self._hosts.names()
        ids = [row["id"] for row in rows]
        said = await asyncio.gather(*(self._states(name, ids) for name in names))
        over = over_ids(rows, said, now_ms=book["at_ms"])
        never = [each for each in over if not any(states and states.get(each) for states in said)]
        await self._released(home, owner, [each for each in over if each not in never])
        # No key may lead to an id that nobody reserves any more: what was created under it would not be counted.
        await self._released(home, owner, never, forget=True)
        if over:
            log.info("a book was settled", extra={"owner": owner, "released": len(over), "kept": len(rows) - len(over)})

    async def _states(self, name: str, ids: list[str]) -> dict[str, str | None] | None:
        """What the host says of these ids; None if it cannot be asked."""
        states: dict[str, str | None] = {}
        try:
            for begin in range(0, len(ids), MAX_IDS):
                value = {"ids": ids[begin : begin + MAX_IDS]}
                answer = await self._hosts.ask(name, "POST", "/v1/sandboxes/states", Access.HOST, value=value)
                states |= answer.or_raise()["states"]
        except WarrenError:
            return None
        return states

    async def _ask(
        self,
        host: str,
        owner: str,
        what: str,
        value: Any,
        *,
        pools: Pools | None = None,
        limit_s: float = 5.0,
        even_dead: bool = False,
    ) -> Answer:
        target = f"/v1/owners/{owner}/reservations{what}"
        return await self._hosts.ask(
            host,
            "POST",
            target,
            Access.HOST,
            owner,
            pools=pools,
            value=value,
            limit_s=limit_s,
            even_dead=even_dead,
        )


def over_ids(rows: Iterable[Row], said: Iterable[dict[str, str | None] | None], *, now_ms: int) -> list[str]:
    """The reservations that nobody needs any more. Pure.

    Ended: a host says so, and no host says that it lives. Never begun: every host says that it never had it, and it is
    too late for it to begin (`now_ms` is by the clock of the host that has the book). If a host cannot be asked, what
    only it could know of is kept.
    """
    answers = list(said)
    all_asked = None not in answers
    over = []
    for row in rows:
        states = [states.get(row["id"]) for states in answers if states is not None]
        known = [state for state in states if state is not None]
        is_late = now_ms - row["created_ms"] > LATE_MS
        if (known and all(state in ENDED for state in known)) or (not known and all_asked and is_late):
            over.append(row["id"])
    return over


@contextlib.contextmanager
def _again(tried: int) -> Iterator[None]:
    """A host that was not reached is asked again, until it is dead and the next has the book."""
    try:
        yield
    except HostUnreachable:
        if tried == TRIES - 1:
            raise


def _has_no_book(answer: Answer) -> bool:
    error = answer.value.get("error") if isinstance(answer.value, dict) else None
    return answer.status == 404 and isinstance(error, dict) and error.get("code") == "no_book"


def _reserved(answer: Answer) -> Reserved:
    value = answer.value
    if answer.status == 429:
        said = HostSaid(answer.status, value)
        details = {name: item for name, item in said.details.items() if name != "retry_after_s"}
        raise PoolExhausted(said.message, **details)
    answer.or_raise()
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise HostBroken("a host answered a reservation with something else")
    return Reserved(value["id"], bool(value.get("repeated")))

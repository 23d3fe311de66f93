"""Making a sandbox: place it, reserve for it, have a host create it; and the undoing of each.

An id is created once, because its host knows it: so whoever does not hear a host's answer may ask again. What is not
heard of in the end is destroyed later (`undo`), and its reservation is found out when the owner's book is full.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from contract import ring
from contract.errors import NotFound, WarrenError
from contract.ids import new_id
from contract.keys import Key
from contract.models import CreateSandbox, Shape
from contract.states import State
from contract.tickets import Access
from gateway.background import Background
from gateway.errors import HostSaid, HostUnreachable
from gateway.hosts import Answer, Hosts
from gateway.placement import limits, no_room
from gateway.quotas import Quotas, Repeat

log = logging.getLogger("gateway.creation")

CREATE_S = 180.0  # a shape that a host has not had yet is booted first
MAX_HOSTS = 4  # that are tried for one sandbox
LOOK_S = 0.2
UNDO_TRIES = 6
UNDO_S = 1.0  # before the second try; then twice as long each time
REPLAYED = b"idempotent-replayed"  # of a reply that a host has kept
UNDER_WAY = (State.PENDING, State.STARTING)
# What a host says when it has done nothing, and another may.
ELSEWHERE = frozenset({"no_capacity", "draining", "host_pressure", "ledger_full", "not_ready"})


@dataclass(frozen=True)
class Wish:
    """A client's request for a sandbox."""

    key: Key
    wanted: CreateSandbox
    body: bytes = field(repr=False)
    request_id: str
    repeat: Repeat | None

    def filled(self, shape: Shape | None) -> dict[str, Any]:
        """The body, with the sizes that were reserved in place of what it left open."""
        values: dict[str, Any] = orjson.loads(self.body) if self.body else {}
        return values if shape is None else values | vars(shape)

    def headers(self) -> list[tuple[bytes, bytes]]:
        asked = [(b"x-request-id", self.request_id.encode())]
        if self.repeat is not None:
            asked.append((b"warren-asked", self.repeat.asked.encode()))
        return asked


def repeat_of(owner: str, idempotency_key: str | None, body: bytes) -> Repeat | None:
    """Hashes of both: what a client chose as its key is nobody else's business."""
    if idempotency_key is None:
        return None
    key = hashlib.sha256(f"{owner}\0{idempotency_key}".encode()).hexdigest()
    return Repeat(key, hashlib.sha256(body).hexdigest())


@dataclass(frozen=True)
class Place:
    """An id, the host that it belongs to, and what will be made there (None: as the host thinks)."""

    sandbox: str
    host: str
    shape: Shape | None


@dataclass(frozen=True)
class Made:
    """A sandbox that was created, and the host's reply."""

    id: str
    answer: Answer


def is_replayed(answer: Answer) -> bool:
    """Whether a host says again what it said the first time."""
    return any(name == REPLAYED for name, _ in answer.headers)


def _only_if_kept(where: Place, answer: Answer | None) -> None:
    """Raises a refusal of a repeat, unless the host has it from the first time: only that says that nothing was made.

    The reservation stays: a later repeat finds out what became of it, or whoever settles the book.
    """
    if answer is None:
        raise HostUnreachable(f"{where.host}, the host of this idempotency key's sandbox, cannot be reached")
    if not is_replayed(answer):
        answer.or_raise()


class Creation:
    def __init__(
        self, hosts: Hosts, quotas: Quotas, background: Background, *, entropy: Callable[[int], bytes]
    ) -> None:
        self._hosts = hosts
        self._quotas = quotas
        self._background = background
        self._entropy = entropy

    def wish(self, key: Key, body: bytes, request_id: str, idempotency_key: str | None) -> Wish:
        """Check a request as far as that is possible without a host."""
        wanted = CreateSandbox.parse(body, limits(self._hosts.records()))
        return Wish(key, wanted, body, request_id, repeat_of(key.owner, idempotency_key, body))

    async def create(self, wish: Wish) -> Made:
        """Create it somewhere. Raises with nothing left of it, or `HostUnreachable` if that is not known.

        A repeat that is refused leaves what the first has made, and its reservation, as they were.
        """
        tried: set[str] = set()
        refused: HostSaid | None = None
        while len(tried) < MAX_HOSTS:
            where, shape = self._placed(wish, tried, refused)
            reserved = await self._quotas.reserve(wish.key, where.sandbox, shape, wish.repeat)
            if reserved.repeated:
                where = await self._place_of(wish, reserved.id)
            else:
                self._hosts.place(where.sandbox, where.host, shape)
            answer = await self._created_or_undone(wish, where)
            if answer is not None and answer.status < 400:
                return Made(where.sandbox, answer)
            if reserved.repeated:
                _only_if_kept(where, answer)
            refused = await self._given_back(wish, where, answer)
            tried.add(where.host)
        raise refused or no_room(wish.wanted, self._hosts.records())

    async def _given_back(self, wish: Wish, where: Place, answer: Answer | None) -> HostSaid | None:
        """Nothing will be created under this id. Raises the host's refusal unless another host may take it.

        The host has kept its refusal: whoever repeats the request there hears the same.
        """
        self._hosts.forget(where.sandbox)
        await self._quotas.release(wish.key.owner, [where.sandbox], forget=True)
        refused = None if answer is None else HostSaid(answer.status, answer.value)
        if refused is not None and refused.code not in ELSEWHERE:
            raise refused
        return refused

    def _placed(self, wish: Wish, tried: set[str], refused: HostSaid | None) -> tuple[Place, Shape]:
        """A new id whose host may take it.

        What may be a repeat is placed also where there is no room: if it is one, it needs none.
        """
        offers = self._hosts.offers(wish.wanted, without=tried)
        weights = self._hosts.weights()
        rooms = {name: offer.room for name, offer in offers.items()}
        sandbox = ring.place(self._new_id, weights, rooms)
        if sandbox is None and wish.repeat is not None and refused is None:
            sandbox = ring.place(self._new_id, weights, dict.fromkeys(rooms, ring.Room(1, 1)))
        host = None if sandbox is None else ring.owner(sandbox, weights)
        if sandbox is None or host is None:
            raise refused or no_room(wish.wanted, self._hosts.records())
        return Place(sandbox, host, offers[host].shape), offers[host].shape

    def _new_id(self) -> str:
        return new_id("sb", self._entropy)

    async def _place_of(self, wish: Wish, sandbox: str) -> Place:
        """The same request came before. Its host says again what it said, or does it now if it never heard of it."""
        try:
            host = await self._hosts.find(sandbox)
        except NotFound:
            host = ring.owner(sandbox, self._hosts.weights()) or ""
        offer = self._hosts.offers(wish.wanted).get(host)
        return Place(sandbox, host, None if offer is None else offer.shape)

    async def _created_or_undone(self, wish: Wish, where: Place) -> Answer | None:
        """As `_created`. If we cannot know what became of it, it is destroyed when its host can be reached again;
        unless the client can ask for it again."""
        try:
            return await self._created(wish, where)
        except BaseException:
            if wish.repeat is None:
                self._background.start(self.undo(wish.key.owner, where.sandbox))
            raise

    async def _created(self, wish: Wish, where: Place) -> Answer | None:
        """What the host says; None if it has not heard of it. Asks again where an answer was lost."""
        try:
            return await self._ask(wish, where)
        except HostUnreachable as error:
            if not error.sent:
                return None
            log.warning("an answer to a create was lost", extra={"host": where.host, "sandbox": where.sandbox})
        known = await self._learned(wish, where)
        return known or await self._ask(wish, where)

    async def _ask(self, wish: Wish, where: Place) -> Answer:
        answer = await self._hosts.ask(
            where.host,
            "POST",
            "/v1/sandboxes",
            Access.WRITE,
            wish.key.owner,
            where.sandbox,
            network=wish.key.network,
            value=wish.filled(where.shape),
            headers=wish.headers(),
            limit_s=CREATE_S,
        )
        if HostSaid(answer.status, answer.value).code == "exists":
            return await self._learned(wish, where) or answer
        return answer

    async def _learned(self, wish: Wish, where: Place) -> Answer | None:
        """What became of a create whose answer we do not have; None if the host has never heard of it."""
        for _ in range(int(CREATE_S / LOOK_S)):
            answer = await self._look(wish, where)
            if answer.status == 404:
                return None
            state = State(answer.or_raise()["state"])
            if state in (State.ERROR, State.STOPPED):
                error = {"code": "create_failed", "message": f"the sandbox is {state}: {answer.value.get('reason')}"}
                return Answer(500, {"error": error}, [])
            if state not in UNDER_WAY:
                return Answer(201, answer.value, answer.headers)
            await asyncio.sleep(LOOK_S)
        raise HostUnreachable(f"host {where.host} is still creating {where.sandbox}")

    async def _look(self, wish: Wish, where: Place) -> Answer:
        target = f"/v1/sandboxes/{where.sandbox}"
        return await self._hosts.ask(where.host, "GET", target, Access.READ, wish.key.owner, where.sandbox)

    async def undo(self, owner: str, sandbox: str) -> None:
        """Destroy a sandbox that nobody heard of. Tries for a while; after that its timeout will."""
        for tried in range(UNDO_TRIES):
            try:
                host = await self._hosts.find(sandbox)
                target = f"/v1/sandboxes/{sandbox}"
                answer = await self._hosts.ask(host, "DELETE", target, Access.WRITE, owner, sandbox, limit_s=60.0)
                if answer.status in (200, 204, 404):
                    await self._quotas.release(owner, [sandbox])
                    return
            except NotFound:
                return
            except WarrenError as error:
                log.info("a sandbox could not be undone yet", extra={"sandbox": sandbox, "why": error.message})
            await asyncio.sleep(UNDO_S * 2**tried)
        log.error("a sandbox that nobody knows of is left", extra={"sandbox": sandbox, "owner": owner})

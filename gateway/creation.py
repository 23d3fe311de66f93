"""Making a sandbox or a task: place it, reserve for it, have a host create it; and the undoing of each.

A task is placed and reserved for by the sandbox that it will work in. Where there is no room now it waits on its host.

An id is created once, because its host knows it: so whoever does not hear a host's answer may ask again. What is not
heard of in the end is destroyed later (`undo`), and its reservation is found out when the owner's book is full.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from contract import ring
from contract.errors import CapacityError, NotFound, WarrenError
from contract.ids import new_id, task_of
from contract.keys import Key
from contract.models import CreateSandbox, Shape
from contract.states import State
from contract.tasks import CreateTask
from contract.tickets import Access
from gateway.background import Background
from gateway.errors import HostSaid, HostUnreachable
from gateway.hosts import Answer, Hosts
from gateway.placement import default_image, limits, no_room
from gateway.quotas import Quotas, Repeat

log = logging.getLogger("gateway.creation")

CREATE_S = 180.0  # a shape that a host has not had yet is booted first
PULL_S = 3600.0  # what a workspace begins with may be large, and the store slow
MAX_HOSTS = 4  # that are tried for one sandbox
LOOK_S = 0.2
UNDO_TRIES = 6
UNDO_S = 1.0  # before the second try; then twice as long each time
REPLAYED = b"idempotent-replayed"  # of a reply that a host has kept
UNDER_WAY = (State.PENDING, State.STARTING)
TOO_OLD = "no_such_route"  # what a host of a former version says, which knows nothing of what is asked for
# What a host says when it has done nothing, and another may.
ELSEWHERE = frozenset({"no_capacity", "draining", "host_pressure", "ledger_full", "not_ready", TOO_OLD})
AGENT_IMAGE = "agent"  # has the programs of agents in it
HOST_IMAGE = "host"  # a computer as it is: what is on it is all that its tasks have
OWN_PROGRAM = "mock"  # the agent that every image has

Told = Callable[[dict[str, Any]], tuple[int, Any] | None]


def _came_of_sandbox(found: dict[str, Any]) -> tuple[int, Any] | None:
    """What a create must have been answered with, by what was made; None while that is not over."""
    state = State(found["state"])
    if state in (State.ERROR, State.STOPPED):
        message = f"the sandbox is {state}: {found.get('reason')}"
        return 500, {"error": {"code": "create_failed", "message": message}}
    return None if state in UNDER_WAY else (201, found)


@dataclass(frozen=True)
class Kind:
    """What is made on hosts."""

    name: str
    path: str
    id_of: Callable[[str], str]  # by the id of its sandbox, which it has or is
    came_of: Told
    end: tuple[str, str]  # how one is ended: the method, and what comes behind its path
    ended: frozenset[int]  # what is said of one that has ended, or that there never was
    waits: bool  # where there is no room for it


SANDBOX = Kind(
    "sandbox",
    "/v1/sandboxes",
    id_of=str,
    came_of=_came_of_sandbox,
    end=("DELETE", "?discard=1"),  # nobody has used it
    ended=frozenset({200, 204, 404}),
    waits=False,
)
TASK = Kind(
    "task",
    "/v1/tasks",
    id_of=task_of,
    came_of=lambda found: (202, found),
    end=("POST", "/stop"),
    ended=frozenset({200, 202, 404, 409}),
    waits=True,
)


@dataclass(frozen=True)
class Wish:
    """A client's request for a sandbox, or for a task with the sandbox that it needs."""

    key: Key
    wanted: CreateSandbox
    body: bytes = field(repr=False)
    request_id: str
    repeat: Repeat | None
    kind: Kind = SANDBOX
    retry_of: str | None = None  # the task that is tried again
    only: str | None = None  # the host where that is

    @property
    def may_wait(self) -> bool:
        """Whether it may be placed where there is no room. What may be a repeat may: if it is one, it needs none."""
        return self.kind.waits or self.repeat is not None

    @property
    def limit_s(self) -> float:
        """How long a host may take."""
        return PULL_S if self.wanted.workspace or self.wanted.template else CREATE_S

    def only_on(self, host: str) -> "Wish":
        return replace(self, only=host)

    def filled(self, shape: Shape | None) -> dict[str, Any]:
        """The body, with the sizes that were reserved in place of what it left open."""
        values: dict[str, Any] = orjson.loads(self.body) if self.body else {}
        return values if shape is None else values | vars(shape)

    def headers(self) -> list[tuple[bytes, bytes]]:
        asked = [(b"x-request-id", self.request_id.encode())]
        if self.repeat is not None:
            asked.append((b"warren-asked", self.repeat.asked.encode()))
        return asked


def repeat_of(owner: str, idempotency_key: str | None, body: bytes, about: str = "") -> Repeat | None:
    """Hashes of both: what a client chose as its key is nobody else's business.

    `about`: what the body alone does not say of the request.
    """
    if idempotency_key is None:
        return None
    key = hashlib.sha256(f"{owner}\0{idempotency_key}".encode()).hexdigest()
    return Repeat(key, hashlib.sha256(about.encode() + body).hexdigest())


@dataclass(frozen=True)
class Place:
    """An id, the host that it belongs to, and what will be made there (None: as the host thinks)."""

    sandbox: str
    host: str
    shape: Shape | None


@dataclass(frozen=True)
class Made:
    """What was created, and the host's reply."""

    id: str
    answer: Answer
    kind: Kind = SANDBOX


def is_replayed(answer: Answer) -> bool:
    """Whether a host says again what it said the first time."""
    return any(name == REPLAYED for name, _ in answer.headers)


def _only_if_kept(where: Place, answer: Answer | None) -> None:
    """Raises a refusal of a repeat, unless the host has it from the first time: only that says that nothing was made.

    The reservation stays: a later repeat finds out what became of it, or whoever settles the book.
    """
    if answer is None:
        raise HostUnreachable(f"{where.host}, the host of what this idempotency key made, cannot be reached")
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
        """A sandbox. Checks the request as far as that is possible without a host."""
        wanted = CreateSandbox.parse(body, limits(self._hosts.records()))
        return Wish(key, wanted, body, request_id, repeat_of(key.owner, idempotency_key, body))

    def task_wish(self, key: Key, body: bytes, request_id: str, repeat: Repeat | None) -> Wish:
        """A task, likewise."""
        wanted = CreateTask.parse(body, limits(self._hosts.records()))
        image = wanted.image or self._usual_image(wanted.agent)
        sandbox = wanted.sandbox(wanted.network, image)
        return Wish(key, sandbox, body, request_id, repeat, TASK, wanted.retry_of)

    def _usual_image(self, agent: str) -> str | None:
        """What a task is made of that names no image; None: what the hosts make of that."""
        is_any = agent == OWN_PROGRAM or default_image(self._hosts.records()) == HOST_IMAGE
        return None if is_any else AGENT_IMAGE

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
                self._hosts.place(wish.kind.id_of(where.sandbox), where.host, shape)
            answer = await self._created_or_undone(wish, where)
            if answer is not None and answer.status < 400:
                return Made(wish.kind.id_of(where.sandbox), answer, wish.kind)
            if reserved.repeated:
                _only_if_kept(where, answer)
            refused = await self._given_back(wish, where, answer)
            tried.add(where.host)
        raise self._nowhere(wish, refused)

    async def _given_back(self, wish: Wish, where: Place, answer: Answer | None) -> HostSaid | None:
        """Nothing will be created under this id. Raises the host's refusal unless another host may take it.

        The host has kept its refusal: whoever repeats the request there hears the same.
        """
        self._hosts.forget(wish.kind.id_of(where.sandbox))
        await self._quotas.release(wish.key.owner, [where.sandbox], forget=True)
        refused = None if answer is None else HostSaid(answer.status, answer.value)
        if refused is not None and refused.code not in ELSEWHERE:
            raise refused
        return refused

    def _placed(self, wish: Wish, tried: set[str], refused: HostSaid | None) -> tuple[Place, Shape]:
        """A new id of a sandbox whose host may take it."""
        offers = self._hosts.offers(wish.wanted, without=tried)
        if wish.only is not None:
            offers = {name: offer for name, offer in offers.items() if name == wish.only}
        weights = self._hosts.weights()
        sandbox = ring.place(self._new_id, weights, {name: offer.room for name, offer in offers.items()})
        if sandbox is None and wish.may_wait and (refused is None or wish.kind.waits):
            waiting = [name for name, offer in offers.items() if not (offer.is_draining and wish.kind.waits)]
            sandbox = ring.place(self._new_id, weights, dict.fromkeys(waiting, ring.Room(1, 1)))
        host = None if sandbox is None else ring.owner(sandbox, weights)
        if sandbox is None or host is None:
            raise self._nowhere(wish, refused)
        return Place(sandbox, host, offers[host].shape), offers[host].shape

    def _nowhere(self, wish: Wish, refused: HostSaid | None) -> Exception:
        """Why nobody takes it."""
        why = no_room(wish.wanted, self._hosts.records())
        if wish.only is None or not isinstance(why, CapacityError):
            return refused or why
        return CapacityError(
            f"host {wish.only}, which alone has the secrets of {wish.retry_of}, takes no task now"
            f"{'' if refused is None else f' ({refused.message})'}: come back later, or create a task with its secrets"
        )

    def _new_id(self) -> str:
        return new_id("sb", self._entropy)

    async def _place_of(self, wish: Wish, sandbox: str) -> Place:
        """The same request came before. Its host says again what it said, or does it now if it never heard of it."""
        try:
            host = await self._hosts.find(wish.kind.id_of(sandbox))
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
                made = wish.kind.id_of(where.sandbox)
                self._background.start(self.undo(wish.kind, wish.key.owner, made))
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
            wish.kind.path,
            Access.WRITE,
            wish.key.owner,
            wish.kind.id_of(where.sandbox),
            network=wish.key.network,
            value=wish.filled(where.shape),
            headers=wish.headers(),
            limit_s=wish.limit_s,
        )
        if HostSaid(answer.status, answer.value).code == "exists":
            return await self._learned(wish, where) or answer
        return answer

    async def _learned(self, wish: Wish, where: Place) -> Answer | None:
        """What became of a create whose answer we do not have; None if the host has never heard of it."""
        for _ in range(int(wish.limit_s / LOOK_S)):
            answer = await self._look(wish, where)
            if answer.status == 404:
                return None
            came_of = wish.kind.came_of(answer.or_raise())
            if came_of is not None:
                return Answer(*came_of, answer.headers)
            await asyncio.sleep(LOOK_S)
        raise HostUnreachable(f"host {where.host} is still creating {where.sandbox}")

    async def _look(self, wish: Wish, where: Place) -> Answer:
        made = wish.kind.id_of(where.sandbox)
        return await self._hosts.ask(where.host, "GET", f"{wish.kind.path}/{made}", Access.READ, wish.key.owner, made)

    async def undo(self, kind: Kind, owner: str, made: str) -> None:
        """End what nobody heard of. Tries for a while; after that its own limits will."""
        method, behind = kind.end
        for tried in range(UNDO_TRIES):
            try:
                host = await self._hosts.find(made)
                target = f"{kind.path}/{made}{behind}"
                answer = await self._hosts.ask(host, method, target, Access.WRITE, owner, made, limit_s=60.0)
                if answer.status in kind.ended:
                    if kind is SANDBOX:  # the machine of a task goes later: whoever settles the book sees that
                        await self._quotas.release(owner, [made])
                    return
            except NotFound:
                return
            except WarrenError as error:
                log.info("what nobody heard of could not be ended yet", extra={kind.name: made, "why": error.message})
            await asyncio.sleep(UNDO_S * 2**tried)
        log.error("what nobody heard of is left", extra={kind.name: made, "owner": owner})

"""Routes that say who may go through them. There is no other kind: a route without a rule cannot be written down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from contract.errors import NotFound, NotMine
from contract.ids import sandbox_id, task_id
from contract.keys import Forbidden
from contract.tickets import Access, BadTicket, Ticket
from poold.api.services import Services

Endpoint = Callable[..., Any]
PERSONAL: Final = frozenset({Access.READ, Access.WRITE, Access.ATTACH})  # of no use without an owner


class Anyone(Enum):
    """The rule of a route that needs no ticket."""

    ANYONE = auto()


ANYONE: Final = Anyone.ANYONE
READ: Final = frozenset({Access.READ, Access.ADMIN})
WRITE: Final = frozenset({Access.WRITE, Access.ADMIN})
TERMINAL: Final = frozenset({Access.WRITE, Access.ATTACH, Access.ADMIN})
ATTACH: Final = frozenset({Access.ATTACH})
PORT: Final = frozenset({Access.PORT})
HOST: Final = frozenset({Access.HOST})
ADMIN: Final = frozenset({Access.ADMIN})


class Names(Enum):
    """The sandbox or the task that a ticket has to name."""

    NONE = auto()
    THE_ASKED_ONE = auto()
    A_NEW_ONE = auto()


@dataclass(frozen=True)
class Rule:
    """Which tickets a route takes."""

    access: frozenset[Access] | Anyone
    names: Names

    def check(self, ticket: Ticket, asked: Mapping[str, Any]) -> None:
        """Raise what is wrong with `ticket` for a request with these parameters in its path."""
        if self.access is ANYONE:
            return
        if ticket.access not in self.access:
            wanted = ", ".join(sorted(self.access))
            raise Forbidden(f"this needs a ticket for {wanted}, got one for {ticket.access}", access=ticket.access)
        self._check_sandbox(ticket, asked)
        if "owner" in asked and asked["owner"] != ticket.owner:
            raise BadTicket("the ticket is for another owner")
        if not ticket.owner and ticket.access in PERSONAL:
            raise BadTicket("the ticket names no owner")

    def _check_sandbox(self, ticket: Ticket, asked: Mapping[str, Any]) -> None:
        match self.names:
            case Names.THE_ASKED_ONE if ticket.sandbox != (asked.get("sandbox_id") or asked.get("task_id")):
                raise BadTicket(f"the ticket is for another {'sandbox' if 'sandbox_id' in asked else 'task'}")
            case Names.A_NEW_ONE if ticket.sandbox is None:
                raise BadTicket("the ticket does not name the sandbox or the task to create")
            case Names.NONE if ticket.sandbox is not None:
                raise BadTicket("the ticket is for a sandbox or a task, and this is about none")


class Door(Route):
    """A route for one method, and its rule."""

    def __init__(
        self, method: str, path: str, endpoint: Endpoint, access: frozenset[Access] | Anyone, *, makes_one: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.rule = Rule(access, Names.A_NEW_ONE if makes_one else _names(path))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):  # else it is refused for its method
            await _admit(self.rule, scope)
        await super().handle(scope, receive, send)


class SocketDoor(WebSocketRoute):
    """A route for a WebSocket, and its rule. Who may not go through is refused before the upgrade, with a status."""

    def __init__(self, path: str, endpoint: Endpoint, access: frozenset[Access] | Anyone) -> None:
        super().__init__(path, endpoint)
        self.rule = Rule(access, _names(path))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _admit(self.rule, scope)
        await super().handle(scope, receive, send)


async def _admit(rule: Rule, scope: Scope) -> None:
    """Let a request in, or raise what says why not."""
    if rule.access is ANYONE:
        return
    ticket: Ticket | None = scope["state"]["ticket"]  # nobody is let in where no ticket was looked for
    if ticket is None:
        return  # the operator, who may do everything
    found: Services = scope["app"].state.services
    if found.membership.is_away and rule.names is Names.THE_ASKED_ONE:
        raise NotMine("this host was emptied, and another one has it")
    found.membership.check()
    try:
        rule.check(ticket, scope["path_params"])
        if rule.names is Names.THE_ASKED_ONE:
            await _must_own(ticket, scope, found)
        if ticket.access is Access.ATTACH:
            found.tickets.use(ticket)
    except (BadTicket, Forbidden) as error:
        found.refusals.note(scope, error, ticket)
        raise


async def _must_own(ticket: Ticket, scope: Scope, found: Services) -> None:
    """Another's sandbox or task does not exist, and the operator can see who asked for it. Who may see a port that is
    public is for the port's route to say.
    """
    what, asked, owner = await _asked(scope["path_params"], found)
    is_anonymous = ticket.access is Access.PORT and not ticket.owner
    if owner != ticket.owner and ticket.access is not Access.ADMIN and not is_anonymous:
        error = NotFound(f"no {what} {asked!r}", **{what: asked})
        found.refusals.note(scope, error, ticket, why=f"the {what} is another owner's")
        raise error


async def _asked(params: Mapping[str, Any], found: Services) -> tuple[str, str, str]:
    """What a request is about, its id, and whose it is."""
    if "task_id" in params:
        return "task", params["task_id"], await found.tasks.owner_of(task_id(params["task_id"]))
    return "sandbox", params["sandbox_id"], await found.sandboxes.owner_of(sandbox_id(params["sandbox_id"]))


def _names(path: str) -> Names:
    return Names.THE_ASKED_ONE if "{sandbox_id}" in path or "{task_id}" in path else Names.NONE

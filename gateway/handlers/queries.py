"""Reading a request's query, and whose things it asks for."""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from contract.asked import EVERYBODY
from contract.keys import Scope
from contract.query import Query
from contract.tickets import Access
from gateway.auth import need
from gateway.services import Call

T = TypeVar("T")


def read_query(request: Request, read: Callable[[Query], T]) -> T:
    """What `read` finds; a parameter that it did not ask for is refused."""
    query = Query.parse(request.scope["query_string"])
    found = read(query)
    query.end()
    return found


def whose(call: Call, owner: str | None) -> tuple[Access, str | None]:
    """With which access to ask hosts, and for which owner: none for the caller's own, or for everybody's."""
    if owner is None or owner == call.who.owner:
        return Access.READ, None
    need(call.who, Scope.ADMIN)
    return Access.ADMIN, None if owner == EVERYBODY else owner

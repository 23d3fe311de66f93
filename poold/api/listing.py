"""The query of a request, read by the contract's own functions: what gateways describe is what hosts read."""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import HTTPConnection, Request

from contract.errors import BadField
from contract.models import Sandbox
from contract.query import Query

T = TypeVar("T")


def read_query(request: HTTPConnection, read: Callable[[Query], T]) -> T:
    """What `read` finds; a parameter that it did not ask for is refused."""
    query = Query.parse(request.scope["query_string"])
    found = read(query)
    query.end()
    return found


def cursor(sandbox: Sandbox) -> str:
    """What stands in `before` to go on behind `sandbox`."""
    return f"{sandbox.created_ms}.{sandbox.id}"


def number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query."""
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise BadField(name, text, f"must be a whole number from {low} to {high}")
    return int(text)

"""The query of a list of sandboxes: filters, and a cursor that is good on any host."""

import re
from dataclasses import dataclass

from starlette.requests import Request

from contract.errors import BadField
from contract.ids import SANDBOX
from contract.models import MAX_METADATA_CHARS, Sandbox
from contract.states import State

MAX_PAGE = 1000
DEFAULT_PAGE = 100
MAX_METADATA_ASKED = 16
METADATA = "metadata."
CURSOR = re.compile(rf"([0-9]{{1,16}})\.({SANDBOX.pattern})")


@dataclass(frozen=True)
class Asked:
    """What a list has to have: `?state=a,b&image=&metadata.KEY=VALUE&before=CREATED_MS.ID&limit=`."""

    states: list[State]
    image: str | None
    metadata: dict[str, str]
    before: tuple[int, str] | None
    limit: int

    @classmethod
    def read(cls, request: Request) -> "Asked":
        query = request.query_params
        image = query.get("image")
        if image is not None and len(image) > 64:
            raise BadField("image", image, "must have at most 64 characters")
        return cls(
            states=_states(query.get("state")),
            image=image,
            metadata=_metadata(request),
            before=_before(query.get("before")),
            limit=number(request, "limit", DEFAULT_PAGE, 1, MAX_PAGE),
        )


def cursor(sandbox: Sandbox) -> str:
    """What stands in `before` to go on behind `sandbox`."""
    return f"{sandbox.created_ms}.{sandbox.id}"


def number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query."""
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise BadField(name, text, f"must be a whole number from {low} to {high}")
    return int(text)


def _before(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    found = CURSOR.fullmatch(text)
    if found is None:
        raise BadField("before", text, "must be the `next` of a page: CREATED_MS.ID")
    return int(found[1]), found[2]


def _metadata(request: Request) -> dict[str, str]:
    """What `metadata.KEY=VALUE` asks for; several of them must all be so."""
    asked: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name.startswith(METADATA):
            key = name.removeprefix(METADATA)
            if key in asked:
                raise BadField(name, value, "must not be asked for twice")
            if max(len(key), len(value)) > MAX_METADATA_CHARS:
                raise BadField(name, value, f"must have at most {MAX_METADATA_CHARS} characters")
            asked[key] = value
    if len(asked) > MAX_METADATA_ASKED:
        raise BadField("metadata", len(asked), f"must be asked for at most {MAX_METADATA_ASKED} times")
    return asked


def _states(text: str | None) -> list[State]:
    """The states asked for; all but `stopped` when none are."""
    if text is None:
        return [state for state in State if state is not State.STOPPED]
    names = text.split(",")
    for name in names:
        if name not in list(State):
            raise BadField("state", name, f"must be one of {', '.join(State)}")
    return [State(name) for name in names]

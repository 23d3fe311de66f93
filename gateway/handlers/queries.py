"""Reading a request's query, with errors that name the parameter and the value."""

import re

from starlette.requests import Request

from contract.errors import BadField
from contract.ids import SANDBOX
from contract.models import MAX_METADATA, MAX_METADATA_CHARS
from contract.states import State

CURSOR = re.compile(rf"([0-9]{{1,16}})\.({SANDBOX.pattern})")
METADATA = "metadata."


class Query:
    """The parameters of one request, each read once; `end` refuses what nobody asked for."""

    def __init__(self, request: Request) -> None:
        self._left: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name in self._left:
                raise BadField(name, value, "must be given once")
            self._left[name] = value

    def text(self, name: str, *, max_chars: int) -> str | None:
        value = self._left.pop(name, None)
        if value is not None and (len(value) > max_chars or "\0" in value or not value.isprintable()):
            raise BadField(name, value, f"must have at most {max_chars} printable characters")
        return value

    def number(self, name: str, *, default: int, low: int, high: int) -> int:
        text = self._left.pop(name, str(default))
        if not re.fullmatch(r"[0-9]{1,16}", text) or not low <= int(text) <= high:
            raise BadField(name, text, f"must be a whole number from {low} to {high}")
        return int(text)

    def states(self, name: str) -> str | None:
        text = self._left.pop(name, None)
        for state in () if text is None else text.split(","):
            if state not in list(State):
                raise BadField(name, state, f"must be one of {', '.join(State)}")
        return text

    def cursor(self, name: str) -> str | None:
        text = self._left.pop(name, None)
        if text is not None and not CURSOR.fullmatch(text):
            raise BadField(name, text, "must be the `next` of an earlier reply")
        return text

    def metadata(self) -> dict[str, str]:
        """`metadata.KEY=VALUE`, with their prefix."""
        found = {name: self._left.pop(name) for name in list(self._left) if name.startswith(METADATA)}
        if len(found) > MAX_METADATA:
            raise BadField("metadata", len(found), f"must be at most {MAX_METADATA} of them")
        for name, value in found.items():
            if max(len(name) - len(METADATA), len(value)) > MAX_METADATA_CHARS or "\0" in name + value:
                raise BadField(name[:80], value, f"must have at most {MAX_METADATA_CHARS} characters")
        return found

    def end(self) -> None:
        for name, value in self._left.items():
            raise BadField(name, value, "is not a parameter of this request")

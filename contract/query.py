"""Reading a request's query parameter by parameter, with errors that name the parameter and the value.

    query = Query.parse(scope["query_string"])
    limit = query.integer("limit", low=1, high=1000, default=100)
    query.end()

As with `Fields`, `end` refuses what nobody asked for. What is given twice is refused, too: proxies and programs
do not agree which of the two counts.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from contract.errors import BadField
from contract.fields import REQUIRED, Fields, checked_text

MAX_QUERY_BYTES = 32_768
MAX_PARAMETERS = 256
DIGITS = 18  # more are beyond every limit that we have


class Query:
    """The parameters of one query, each read once."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._left: dict[str, str] = {}
        for name, value in pairs:
            if name in self._left:
                raise BadField(name, value, "must be given once")
            self._left[name] = value

    @classmethod
    def parse(cls, raw: bytes) -> "Query":
        """What is not UTF-8 is refused: with replaced bytes a path would name another file."""
        if len(raw) > MAX_QUERY_BYTES:
            raise BadField("query", raw[:100], f"must have at most {MAX_QUERY_BYTES} bytes")
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
            )
        except UnicodeDecodeError:
            raise BadField("query", raw, "must be UTF-8, percent-encoded") from None
        except ValueError:
            raise BadField("query", raw, f"must have at most {MAX_PARAMETERS} parameters") from None
        return cls(pairs)

    def text(
        self,
        name: str,
        *,
        max_chars: int,
        default: Any = REQUIRED,
        pattern: str | None = None,
        choices: Sequence[str] = (),
    ) -> str:
        """`pattern` is what the whole text must be; `choices` are all that it may be."""
        value = self._left.pop(name, None)
        return Fields({name: value}).text(name, max_chars=max_chars, default=default, pattern=pattern, choices=choices)

    def integer(self, name: str, *, low: int, high: int, default: Any = REQUIRED) -> int:
        text = self._left.pop(name, None)
        if text is None and default is not REQUIRED:
            return default  # type: ignore[no-any-return]
        text = text or ""
        if not re.fullmatch(r"-?[0-9]+", text) or len(text) > DIGITS or not low <= int(text) <= high:
            raise BadField(name, text, f"must be a whole number from {low} to {high}")
        return int(text)

    def words(self, name: str, *, choices: Sequence[str]) -> list[str]:
        """Words with commas between them; none when the parameter is absent."""
        text = self._left.pop(name, None)
        words = [] if text is None else text.split(",")
        return Fields({name: words}).text_list(
            name, max_chars=MAX_QUERY_BYTES, max_count=MAX_PARAMETERS, choices=choices
        )

    def labels(self, prefix: str, *, max_chars: int, max_count: int) -> dict[str, str]:
        """The parameters `prefix.NAME`, by NAME."""
        found = {name: self._left.pop(name) for name in list(self._left) if name.startswith(f"{prefix}.")}
        if len(found) > max_count:
            raise BadField(prefix, len(found), f"must be at most {max_count} parameters")
        for name, value in found.items():
            key = name.removeprefix(f"{prefix}.")
            if not checked_text(name, key, max_chars):
                raise BadField(name, value, "must have a name after the point")
            checked_text(name, value, max_chars)
        return {name.removeprefix(f"{prefix}."): value for name, value in found.items()}

    def end(self) -> None:
        """Every parameter has been read, or this raises."""
        for name, value in self._left.items():
            raise BadField(name, value, "is not a parameter of this request")

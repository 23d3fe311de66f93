"""Reading a request's JSON field by field, with errors that name the field and the value.

    fields = Fields.parse(body)
    image = fields.text("image", max_chars=64)
    vcpus = fields.integer("vcpus", default=1, low=1, high=32)
    fields.end()

`end` refuses what nobody asked for: a misspelt field must not be silently ignored.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import orjson

from contract.errors import BadField, CallerError, shown

T = TypeVar("T")
REQUIRED: Any = object()
# What `str.strip` takes away. JSON Schema's \s is another set: it has U+FEFF, and neither U+001C nor U+0085.
SPACES = r"\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_BLANK = rf"[^\u0000]*[^\u0000{SPACES}][^\u0000]*"


class Fields:
    """The fields of one JSON object, each read once."""

    def __init__(self, values: dict[str, Any], within: str = "") -> None:
        self._left = dict(values)
        self._within = within  # the names of the objects around this one

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        """The object in `body`. No body at all is an empty object."""
        if not body:
            return cls({})
        try:
            values = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise CallerError(f"the body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise CallerError(f"the body must be a JSON object, got {shown(values)}")
        return cls(values)

    def has(self, name: str) -> bool:
        return self._left.get(name) is not None

    def raw(self, name: str, default: Any = REQUIRED) -> Any:
        """The field's value, unchecked; null counts as absent."""
        value = self._left.pop(name, None)
        if value is not None:
            return value
        if default is REQUIRED:
            raise BadField(self._within + name, None, "is required")
        return default

    def integer(self, name: str, *, low: int, high: int, step: int = 1, default: Any = REQUIRED) -> int:
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        # JSON has one kind of number: 2.0 is 2.
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not low <= whole <= high:
            raise BadField(self._within + name, value, f"must be a whole number from {low} to {high}")
        if whole % step:
            raise BadField(self._within + name, value, f"must be a multiple of {step}")
        return whole

    def number(self, name: str, *, low: float, high: float, default: Any = REQUIRED) -> float:
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadField(self._within + name, value, f"must be a number from {low:g} to {high:g}")
        return float(value)

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
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        text = checked_text(self._within + name, value, max_chars)
        if pattern is not None and not re.fullmatch(pattern, text):
            raise BadField(self._within + name, value, f"must match {pattern}")
        return _one_of(self._within + name, text, choices)

    def flag(self, name: str, *, default: Any = REQUIRED) -> bool:
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, bool):
            raise BadField(self._within + name, value, "must be true or false")
        return value

    def texts(self, name: str, *, max_chars: int, max_count: int, names: str | None = None) -> dict[str, str]:
        """An object whose values are all strings; empty when absent. `names` is what the whole of each name must be."""
        value = self.raw(name, {})
        if not isinstance(value, dict) or len(value) > max_count:
            raise BadField(self._within + name, value, f"must be an object with at most {max_count} entries")
        for key, item in value.items():
            checked_text(f"{self._within}{name}.{key}", key, max_chars)
            checked_text(f"{self._within}{name}.{key}", item, max_chars)
            if names is not None and not re.fullmatch(names, key):
                raise BadField(self._within + name, key, f"names must match {names}")
        return value

    def text_list(
        self, name: str, *, max_chars: int, max_count: int, choices: Sequence[str] = (), pattern: str | None = None
    ) -> list[str]:
        value = self.raw(name, [])
        if not isinstance(value, list) or len(value) > max_count:
            raise BadField(self._within + name, value, f"must be a list of at most {max_count} strings")
        named = {f"{name}[{i}]": item for i, item in enumerate(value)}
        items = Fields(named, self._within)
        return [items.text(which, max_chars=max_chars, pattern=pattern, choices=choices) for which in named]

    def integer_list(self, name: str, *, low: int, high: int, max_count: int) -> list[int]:
        value = self.raw(name, [])
        if not isinstance(value, list) or len(value) > max_count:
            raise BadField(self._within + name, value, f"must be a list of at most {max_count} whole numbers")
        named = {f"{name}[{i}]": item for i, item in enumerate(value)}
        items = Fields(named, self._within)
        return [items.integer(which, low=low, high=high) for which in named]

    def line_or_list(self, name: str, *, max_chars: int, max_count: int) -> str | list[str]:
        """A line of text, or a list of words of which the first is not empty."""
        value = self.raw(name)
        if isinstance(value, str):
            if not value.strip():
                raise BadField(self._within + name, value, "must not be empty")
            return checked_text(self._within + name, value, max_chars)
        words = Fields({name: value}, self._within).text_list(name, max_chars=max_chars, max_count=max_count)
        if not words or not words[0]:
            raise BadField(self._within + name, value, "must be a command line or a list that starts with a program")
        return words

    def flat(self, name: str, *, max_count: int, max_bytes: int) -> dict[str, Any]:
        """An object of texts, numbers and the like, with no object or list in it; empty when absent."""
        value = self.raw(name, {})
        is_flat = isinstance(value, dict) and not any(isinstance(item, dict | list) for item in value.values())
        if not is_flat or len(value) > max_count or len(orjson.dumps(value)) > max_bytes:
            problem = f"must be an object of at most {max_count} texts and numbers, and {max_bytes} bytes"
            raise BadField(self._within + name, value, problem)
        return dict(value)

    def inner(self, name: str) -> "Fields":
        """The fields of an object in this one; none when it is absent."""
        value = self.raw(name, {})
        if not isinstance(value, dict):
            raise BadField(self._within + name, value, "must be an object")
        return Fields(value, f"{self._within}{name}.")

    def inner_list(self, name: str, *, max_count: int) -> "list[Fields]":
        """The fields of each object in a list; none when it is absent."""
        value = self.raw(name, [])
        if not isinstance(value, list) or len(value) > max_count or not all(isinstance(item, dict) for item in value):
            raise BadField(self._within + name, value, f"must be a list of at most {max_count} objects")
        return [Fields(item, f"{self._within}{name}[{i}].") for i, item in enumerate(value)]

    def end(self) -> None:
        """Every field has been read, or this raises."""
        for name, value in self._left.items():
            raise BadField(self._within + name, value, "is not a field of this request")


def _one_of(name: str, text: str, choices: Sequence[str]) -> str:
    if choices and text not in choices:
        raise BadField(name, text, f"must be one of {', '.join(choices)}")
    return text


def checked_text(name: str, value: object, max_chars: int) -> str:
    """`value`, if it is a text of at most so many characters, without a NUL."""
    if not isinstance(value, str):
        raise BadField(name, value, "must be a string")
    if len(value) > max_chars:
        raise BadField(name, value, f"must have at most {max_chars} characters, has {len(value)}")
    if "\0" in value:
        raise BadField(name, value, "must not contain a NUL")
    return value

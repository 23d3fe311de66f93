"""Reading a request's JSON field by field, with errors that name the field and the value.

    fields = Fields.parse(body)
    image = fields.text("image", max_chars=64)
    vcpus = fields.integer("vcpus", default=1, low=1, high=32)
    fields.end()

`end` refuses what nobody asked for: a misspelt field must not be silently ignored.
"""

from typing import Any, TypeVar

import orjson

from contract.errors import BadField, CallerError, shown

T = TypeVar("T")
REQUIRED: Any = object()


class Fields:
    """The fields of one JSON object, each read once."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._left = dict(values)

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        """The object in `body`. No body at all is an empty object."""
        if not body.strip():
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
            raise BadField(name, None, "is required")
        return default

    def integer(self, name: str, *, low: int, high: int, default: Any = REQUIRED) -> int:
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadField(name, value, f"must be a whole number from {low} to {high}")
        return value

    def text(self, name: str, *, max_chars: int, default: Any = REQUIRED) -> str:
        value = self.raw(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        return _checked_text(name, value, max_chars)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise BadField(name, value, "must be true or false")
        return value

    def texts(self, name: str, *, max_chars: int, max_count: int) -> dict[str, str]:
        """An object whose values are all strings; empty when absent."""
        value = self.raw(name, {})
        if not isinstance(value, dict) or len(value) > max_count:
            raise BadField(name, value, f"must be an object with at most {max_count} entries")
        for key, item in value.items():
            _checked_text(f"{name}.{key}", key, max_chars)
            _checked_text(f"{name}.{key}", item, max_chars)
        return value

    def text_list(self, name: str, *, max_chars: int, max_count: int) -> list[str]:
        value = self.raw(name, [])
        if not isinstance(value, list) or len(value) > max_count:
            raise BadField(name, value, f"must be a list of at most {max_count} strings")
        return [_checked_text(f"{name}[{i}]", item, max_chars) for i, item in enumerate(value)]

    def end(self) -> None:
        """Every field has been read, or this raises."""
        for name, value in self._left.items():
            raise BadField(name, value, "is not a field of this request")


def _checked_text(name: str, value: object, max_chars: int) -> str:
    if not isinstance(value, str):
        raise BadField(name, value, "must be a string")
    if len(value) > max_chars:
        raise BadField(name, value, f"must have at most {max_chars} characters, has {len(value)}")
    if "\0" in value:
        raise BadField(name, value, "must not contain a NUL")
    return value

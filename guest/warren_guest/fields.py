"""Checks of what a request asks for. Every refusal names the field and the value."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from warren_guest.errors import RefusedError

_SHOWN = 60


def bad_field(name: str, message: str) -> RefusedError:
    return RefusedError("bad_field", f"{name}: {message}", field=name)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def parse_object(body: bytes) -> "Fields":
    """Read a JSON object. An empty body is an empty object."""
    if not body:
        return Fields({})
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RefusedError("bad_request", f"the body is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise RefusedError("bad_request", f"the body is not a JSON object but {_shown(value)}")
    return Fields(value)


class Fields:
    """The fields of one JSON object. Unknown ones are skipped: the caller may be newer than this guest."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def _name(self, name: str) -> str:
        return self._prefix + name

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        return self._values.get(name)

    def text(self, name: str, *, limit: int = 65_536) -> str | None:
        """A text without NUL that is valid Unicode, or None if absent."""
        value = self._values.get(name)
        return None if value is None else _text(self._name(name), value, limit)

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise bad_field(self._name(name), "is required and must not be empty")
        return value

    def number(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise bad_field(self._name(name), f"{_shown(value)} is not a whole number from {low} to {high}")
        return value

    def required_number(self, name: str, low: int, high: int) -> int:
        value = self.number(name, low, high)
        if value is None:
            raise bad_field(self._name(name), "is required")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise bad_field(self._name(name), f"{_shown(value)} is not true or false")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise bad_field(self._name(name), f"{_shown(value)} is not a list")
        return [_text(f"{self._name(name)}[{i}]", item, 1 << 20) for i, item in enumerate(value)]

    def environment(self, name: str) -> dict[str, str] | None:
        """Variables by name. Refusals never show a value: it may be a secret."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise bad_field(self._name(name), "is not an object")
        for key, item in value.items():
            _text(self._name(name), key, 1 << 16)
            if not key or "=" in key:
                raise bad_field(self._name(name), f"{_shown(key)} is not the name of a variable")
            if not isinstance(item, str) or "\0" in item or not _is_unicode(item):
                raise bad_field(f"{self._name(name)}.{key}", "the value is not a text without NUL")
        return value

    def nested(self, name: str) -> "Fields | None":
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise bad_field(self._name(name), f"{_shown(value)} is not an object")
        return Fields(value, f"{self._name(name)}.")

    def content(self, name: str) -> str:
        """Any text that is valid Unicode, NUL included."""
        value = self._values.get(name)
        if not isinstance(value, str) or not _is_unicode(value):
            raise bad_field(self._name(name), "is not a text")
        return value

    def decoded(self, name: str) -> bytes | None:
        """The bytes of a base64 text."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error) as exc:
            raise bad_field(self._name(name), "is not base64") from exc

    def matching(self, name: str, pattern: re.Pattern[str], meaning: str) -> str | None:
        value = self.text(name)
        if value is not None and pattern.fullmatch(value) is None:
            raise bad_field(self._name(name), f"{_shown(value)} is not {meaning}")
        return value


def _text(name: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise bad_field(name, f"{_shown(value)} is not a text")
    if "\0" in value or not _is_unicode(value):
        raise bad_field(name, f"{_shown(value)} has a NUL or half a surrogate pair")
    if len(value) > limit:
        raise bad_field(name, f"has {len(value)} characters; the limit is {limit}")
    return value


def _is_unicode(value: str) -> bool:
    """JSON can spell lone surrogates; no path, argument or variable can hold them."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def query_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise bad_field(name, f"{_shown(text)} is not a whole number from {low} to {high}")
    return int(text)


def query_flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "0")
    if text not in ("0", "1"):
        raise bad_field(name, f"{_shown(text)} is not 0 or 1")
    return text == "1"

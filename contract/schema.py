"""JSON Schema of what is asked and answered, made from the code that reads and writes it.

    schema_of(CreateSandbox.read, limits)     a request's body
    parameters_of(ListAsked.read)             the parameters of its query
    shape_of(Rules)                           a dataclass as it stands in a reply

`schema_of` calls the function that reads a request with fields that write down what is asked of them. So there is
no second description of a request that could say something else than the code.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from contract.fields import NOT_BLANK, REQUIRED, Fields
from contract.query import Query

Schema = dict[str, Any]

JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NO_NUL = r"^[^\u0000]*$"
# What a reader is given for a text that it requires: the first of these that has the form asked for.
SAMPLES = ("a", "1", "sb-aaaaaaaaaaaaaaaa", "tk-aaaaaaaaaaaaaaaa", "0" * 64, "/a", "0.0.0.0/0", "http://a")


def schema_of(read: Callable[..., object], *more: Any) -> Schema:
    """What `read` takes: it is called once, with `more` behind the fields. Whoever reads a body ends its fields."""
    fields = _Recorder()
    read(fields, *more)
    fields.end()
    return fields.schema


def parameters_of(read: Callable[..., object], *more: Any) -> list[Schema]:
    """The query parameters that `read` takes, as OpenAPI writes them."""
    query = _QueryRecorder()
    read(query, *more)
    return query.parameters


def shape_of(kind: Any) -> Schema:
    """The JSON of a value of this type, as `asdict` and orjson write it."""
    if get_args(kind):
        return _shape_of_generic(get_origin(kind), get_args(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return closed({each.name: shape_of(hints[each.name]) for each in dataclass_fields(kind)})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [item.value for item in kind]}
    return {} if kind is Any else {"type": JSON_TYPES[kind]}


def closed(properties: dict[str, Schema], *, optional: Sequence[str] = ()) -> Schema:
    """An object with these fields and no other; all are there but the `optional` ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def or_null(schema: Schema) -> Schema:
    if "$ref" in schema or "anyOf" in schema:
        return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    if "type" not in schema:
        return schema
    more = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **more}


def text_schema(max_chars: int, pattern: str | None = None, choices: Sequence[str] = ()) -> Schema:
    if choices:
        return {"type": "string", "enum": [str(choice) for choice in choices]}
    return {"type": "string", "maxLength": max_chars, "pattern": NO_NUL if pattern is None else whole(pattern)}


def integer_schema(low: int, high: int, step: int = 1) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, **({} if step == 1 else {"multipleOf": step})}


def whole(pattern: str) -> str:
    """The pattern of a text that matches `pattern` from its beginning to its end."""
    return f"^(?:{pattern})$"


class _Recorder(Fields):
    """Fields that write down what is asked of them, and answer with what a request may say."""

    def __init__(self) -> None:
        super().__init__({})
        self.schema: Schema = {"type": "object", "properties": {}}
        self._looked_for: set[str] = set()

    def _note(self, name: str, schema: Schema, default: Any = REQUIRED) -> None:
        if default is REQUIRED and name not in self._looked_for:
            self.schema.setdefault("required", []).append(name)
        else:
            schema = or_null(schema)
            if default not in (None, "", REQUIRED):
                schema["default"] = default
        self.schema["properties"][name] = schema

    def has(self, name: str) -> bool:
        """Whoever looks before reading is shown the way where the field is there."""
        self._looked_for.add(name)
        return True

    def raw(self, name: str, default: Any = REQUIRED) -> Any:
        self._note(name, {}, default)
        return None if default is REQUIRED else default

    def integer(self, name: str, *, low: int, high: int, step: int = 1, default: Any = REQUIRED) -> int:
        self._note(name, integer_schema(low, high, step), default)
        return low + (-low) % step if default is REQUIRED else default

    def number(self, name: str, *, low: float, high: float, default: Any = REQUIRED) -> float:
        self._note(name, {"type": "number", "minimum": low, "maximum": high}, default)
        return low if default is REQUIRED else default

    def text(
        self,
        name: str,
        *,
        max_chars: int,
        default: Any = REQUIRED,
        pattern: str | None = None,
        choices: Sequence[str] = (),
    ) -> str:
        self._note(name, text_schema(max_chars, pattern, choices), default)
        return sample(pattern, choices) if default is REQUIRED else default

    def flag(self, name: str, *, default: Any = REQUIRED) -> bool:
        self._note(name, {"type": "boolean"}, default)
        return False if default is REQUIRED else default

    def texts(self, name: str, *, max_chars: int, max_count: int, names: str | None = None) -> dict[str, str]:
        value = text_schema(max_chars)
        key = {key: limit for key, limit in text_schema(max_chars, names).items() if key != "type"}
        schema = {"type": "object", "propertyNames": key, "additionalProperties": value, "maxProperties": max_count}
        self._note(name, schema, None)
        return {}

    def text_list(
        self, name: str, *, max_chars: int, max_count: int, choices: Sequence[str] = (), pattern: str | None = None
    ) -> list[str]:
        items = text_schema(max_chars, pattern, choices)
        self._note(name, {"type": "array", "items": items, "maxItems": max_count}, None)
        return []

    def integer_list(self, name: str, *, low: int, high: int, max_count: int) -> list[int]:
        self._note(name, {"type": "array", "items": integer_schema(low, high), "maxItems": max_count}, None)
        return []

    def line_or_list(self, name: str, *, max_chars: int, max_count: int) -> str | list[str]:
        word = text_schema(max_chars)
        words = {
            "type": "array",
            "prefixItems": [{**word, "minLength": 1}],
            "items": word,
            "minItems": 1,
            "maxItems": max_count,
        }
        self._note(name, {"anyOf": [{"type": "string", "maxLength": max_chars, "pattern": whole(NOT_BLANK)}, words]})
        return "a"

    def flat(self, name: str, *, max_count: int, max_bytes: int) -> dict[str, Any]:
        values = {"type": ["string", "number", "boolean", "null"]}  # how many bytes they are a schema cannot say
        self._note(name, {"type": "object", "additionalProperties": values, "maxProperties": max_count}, None)
        return {}

    def inner(self, name: str) -> "_Recorder":
        within = _Recorder()
        within.schema["type"] = ["object", "null"]
        self.schema["properties"][name] = within.schema
        return within

    def inner_list(self, name: str, *, max_count: int) -> "list[Fields]":
        within = _Recorder()
        self._note(name, {"type": "array", "items": within.schema, "maxItems": max_count}, None)
        return [within]

    def end(self) -> None:
        self.schema["additionalProperties"] = False


class _QueryRecorder(Query):
    """A query that writes down what is asked of it, and answers with what a request may say."""

    def __init__(self) -> None:
        super().__init__(())
        self.parameters: list[Schema] = []

    def _note(self, name: str, schema: Schema, default: Any, **more: Any) -> None:
        if default is not REQUIRED and default is not None:
            schema["default"] = default
        required = {"required": True} if default is REQUIRED else {}
        self.parameters.append({"name": name, "in": "query", **required, **more, "schema": schema})

    def text(
        self,
        name: str,
        *,
        max_chars: int,
        default: Any = REQUIRED,
        pattern: str | None = None,
        choices: Sequence[str] = (),
    ) -> str:
        self._note(name, text_schema(max_chars, pattern, choices), default)
        return sample(pattern, choices) if default is REQUIRED else default

    def integer(self, name: str, *, low: int, high: int, default: Any = REQUIRED) -> int:
        self._note(name, integer_schema(low, high), default)
        return low if default is REQUIRED else default

    def words(self, name: str, *, choices: Sequence[str]) -> list[str]:
        items = {"type": "string", "enum": [str(choice) for choice in choices]}
        # Of an empty list nothing would be left in the query but the name.
        schema = {"type": "array", "items": items, "minItems": 1}
        self._note(name, schema, None, style="form", explode=False)
        return []

    def labels(self, prefix: str, *, max_chars: int, max_count: int) -> dict[str, str]:
        names = {"pattern": whole(re.escape(prefix) + r"\.[^\u0000]+"), "maxLength": max_chars + len(prefix) + 1}
        values = text_schema(max_chars)
        schema = {"type": "object", "propertyNames": names, "additionalProperties": values, "maxProperties": max_count}
        # Exploded, each property is a parameter of its own: metadata.team=red
        self._note(prefix, schema, None, style="form", explode=True)
        return {}

    def end(self) -> None:
        pass


def sample(pattern: str | None, choices: Sequence[str] = ()) -> str:
    """A text that a reader takes which asks for this pattern or these choices."""
    if choices:
        return choices[0]
    for text in SAMPLES:
        if pattern is None or re.fullmatch(pattern, text):
            return text
    raise ValueError(f"no sample matches {pattern}: add one to SAMPLES")


def _shape_of_generic(origin: Any, kinds: tuple[Any, ...]) -> Schema:
    if origin in (list, tuple):
        return {"type": "array", "items": shape_of(kinds[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": shape_of(kinds[1])}
    schemas = [shape_of(kind) for kind in kinds if kind is not NoneType]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return or_null(schema) if NoneType in kinds else schema

"""The schema of a request says of every value what the code that reads it says: allowed, or not."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

import jsonschema_rs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import asked, schema
from contract.errors import BadField, CallerError
from contract.fields import REQUIRED, SPACES, Fields
from contract.keys import Key, KeyAsked, rotation_grace
from contract.models import CreateSandbox, Exec, RulesAsked, ShapeLimits
from contract.network import Network
from contract.query import Query
from contract.schema import Schema, parameters_of, schema_of, shape_of
from contract.tasks import CreateTask, Input

T = TypeVar("T")
LIMITS = ShapeLimits(vcpus=4, memory_mb=4096, disk_mb=8192)
BODIES: dict[str, Callable[[Fields], object]] = {
    "create": partial(CreateSandbox.read, limits=LIMITS),
    "exec": Exec.read,
    "key": KeyAsked.read,
    "rules": RulesAsked.read,
    "timeout": asked.timeout_sec,
    "rotation": rotation_grace,
    "port": asked.is_public,
    "link": asked.link_life_s,
    "nothing": asked.nothing,
    "network": Network.read,
    "task": partial(CreateTask.read, limits=LIMITS),
    "input": Input.read,
}
RARE = {"task": {"prompt": "do it", "agent": "mock"}}
QUERIES: dict[str, Callable[[Query], object]] = {
    "list": asked.ListAsked.read,
    "tasks": asked.TasksAsked.read,
    "usage": asked.whose,
    "events": asked.EventsAsked.read,
    "egress": asked.EgressAsked.read,
    "download": asked.FileAsked.read,
    "upload": asked.FileAsked.read_upload,
    "lines": asked.log_lines,
    "encoding": asked.output_encoding,
}
# Blank, or almost: where Python and the pattern could disagree.
ODD_TEXTS = (
    "",
    " ",
    "a",
    "A_1",
    "a\n",
    "\n",
    "a\0b",
    "\x1c",
    "\x85",
    "\ufeff",
    "\u2003\t",
    "ü",
    "𝒳",
    "..",
    "a/../b",
    "../a",
)
ODD_TEXTS += ("a..b", "..\n", "sb-aaaaaaaaaaaaaaaa", "7.sb-aaaaaaaaaaaaaaaa", "0644", "0888", "root", "x@y.z", "-", "1")

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([1.5, 2.0, 1e300, -0.0]) | st.sampled_from(ODD_TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ODD_TEXTS), inner, max_size=3),
    max_leaves=6,
)


def near(of: Schema) -> st.SearchStrategy[Any]:
    """Values at and just over every limit that a schema has, and others of its type and of none."""
    return junk | st.one_of([_near(kind, of) for kind in _kinds(of)] or [junk])


def _kinds(of: Schema) -> list[str]:
    if "anyOf" in of:
        return ["anyOf"]
    kind = of.get("type", [])
    return [kind] if isinstance(kind, str) else kind


def _near(kind: str, of: Schema) -> st.SearchStrategy[Any]:
    match kind:
        case "anyOf":
            return st.one_of([near(inner) for inner in of["anyOf"]])
        case "integer":
            low, high, step = of["minimum"], of["maximum"], of.get("multipleOf", 1)
            near_it = [low, high, low - 1, high + 1, low + 1, low + step, -step, 0]
            return st.sampled_from(near_it) | st.sampled_from(near_it).map(float)
        case "string":
            most = of.get("maxLength", 8)
            edges = [*of.get("enum", []), "x" * most, "x" * (most + 1), "\0" + "x" * (most - 1)]
            return st.sampled_from([edge for edge in edges if edge is not None]) | st.sampled_from(ODD_TEXTS)
        case "array":
            return _lists(of)
        case "object":
            return _objects(of)
        case _:
            return st.booleans() if kind == "boolean" else st.none()


def _lists(of: Schema) -> st.SearchStrategy[Any]:
    items = near(of.get("items", {}))
    good = of.get("items", {}).get("minimum", "word")
    many = st.sampled_from([[good] * of["maxItems"], [good] * (of["maxItems"] + 1)])
    return st.lists(items, max_size=3) | many


def _objects(of: Schema) -> st.SearchStrategy[Any]:
    if isinstance(values := of.get("additionalProperties"), dict):
        most = of["maxProperties"]
        many = st.sampled_from([{f"a{i}": "" for i in range(count)} for count in (most, most + 1)])
        return many | st.dictionaries(st.sampled_from([*ODD_TEXTS, "x" * 1025]), near(values), max_size=3)
    properties = {name: near(inner) for name, inner in of["properties"].items()}
    required = {name: properties.pop(name) for name in of.get("required", []) if name in properties}
    known = st.fixed_dictionaries(required, optional=properties)
    return known | st.builds(lambda values, more: {**more, **values}, known, st.dictionaries(st.text(max_size=3), junk))


def is_read(read: Callable[[Fields], object], body: bytes) -> bool:
    try:
        fields = Fields.parse(body)
        read(fields)
        fields.end()
    except CallerError:
        return False
    return True


@pytest.mark.parametrize("name", BODIES)
def test_the_schema_of_a_body_allows_exactly_what_is_read(name: str) -> None:
    read = BODIES[name]
    said = schema_of(read)
    validator = jsonschema_rs.validator_for({"$schema": schema.DIALECT, **said})
    seen = {True: 0, False: 0}

    @settings(max_examples=400, deadline=None)
    @given(near(said))
    def compare(value: object) -> None:
        if value is None:  # `null` as a whole body is no object for either
            return
        allowed = validator.is_valid(value)
        assert is_read(read, json.dumps(value).encode()) == allowed
        seen[allowed] += 1

    compare()
    if name in RARE:  # chance may not come to one that has all that is required
        assert validator.is_valid(RARE[name])
        assert is_read(read, json.dumps(RARE[name]).encode())
    else:
        assert seen[True] > 0
    assert seen[False] > 0


def is_taken(read: Callable[[Query], object], raw: bytes) -> bool:
    try:
        taken(read, raw)
    except CallerError:
        return False
    return True


def taken(read: Callable[[Query], T], raw: bytes) -> T:
    query = Query.parse(raw)
    found = read(query)
    query.end()
    return found


def serialised(parameters: list[Schema], values: dict[str, Any]) -> bytes:
    """A query as OpenAPI says it is written."""
    pairs: list[tuple[str, str]] = []
    for parameter in parameters:
        value = values.get(parameter["name"])
        match value:
            case None:
                pass
            case dict():
                pairs += value.items()
            case list():
                pairs.append((parameter["name"], ",".join(value)))
            case _:
                pairs.append((parameter["name"], str(value)))
    return urlencode(pairs).encode()


def parameter_values(parameter: Schema) -> st.SearchStrategy[Any]:
    """Values that a query can hold, allowed or not."""
    of = parameter["schema"]
    match of["type"]:
        case "integer":
            return _near("integer", of).map(int)
        case "array":
            return st.lists(st.sampled_from([*of["items"]["enum"], "other", ""]), max_size=3).filter(
                lambda words: words != []
            )
        case "object":
            names = st.sampled_from([f"{parameter['name']}.{name}" for name in ("a", "a.b", "ü", "", "\0", "x" * 1025)])
            return st.dictionaries(names, st.sampled_from(["", "b", "\0", "x" * 1025]), max_size=3)
        case _:
            return _near("string", of)


@pytest.mark.parametrize("name", QUERIES)
def test_the_schema_of_a_query_allows_exactly_what_is_read(name: str) -> None:
    read = QUERIES[name]
    parameters = parameters_of(read)
    validators = {each["name"]: jsonschema_rs.validator_for(each["schema"]) for each in parameters}
    required = {each["name"] for each in parameters if each.get("required")}
    seen = {True: 0, False: 0}

    @settings(max_examples=300, deadline=None)
    @given(st.fixed_dictionaries({}, optional={each["name"]: parameter_values(each) for each in parameters}))
    def compare(values: dict[str, Any]) -> None:
        allowed = required <= set(values) and all(validators[name].is_valid(value) for name, value in values.items())
        assert is_taken(read, serialised(parameters, values)) == allowed
        seen[allowed] += 1

    compare()
    assert min(seen.values()) > 0


def _public(of: type) -> Iterator[str]:
    for name, member in vars(of).items():
        if not name.startswith("_") and inspect.isfunction(member):
            yield name


@pytest.mark.parametrize(("real", "recorder"), [(Fields, schema._Recorder), (Query, schema._QueryRecorder)])
def test_whatever_can_be_read_can_be_recorded(real: type, recorder: type) -> None:
    """A way of reading that nobody records would be a field that the schema forbids."""
    assert [name for name in _public(real) if name not in vars(recorder)] == []


def test_a_required_field_is_not_null_and_an_optional_one_may_be() -> None:
    said = schema_of(asked.timeout_sec)
    assert said == {
        "type": "object",
        "properties": {"timeout_sec": {"type": "integer", "minimum": 1, "maximum": 30 * 24 * 3600}},
        "required": ["timeout_sec"],
        "additionalProperties": False,
    }
    assert schema_of(RulesAsked.read)["properties"]["auto_resume"] == {"type": ["boolean", "null"]}


def test_blank_is_the_same_for_python_and_for_the_pattern() -> None:
    blank = re.compile(f"[{SPACES}]")
    points = [chr(point) for point in range(0x11_0000) if not 0xD800 <= point <= 0xDFFF]
    assert [char for char in points if bool(blank.fullmatch(char)) != char.isspace()] == []


def test_what_a_reader_looks_for_before_it_reads_it_is_optional() -> None:
    said = schema_of(lambda fields: fields.has("a") and fields.text("a", max_chars=1, choices=("x",)))
    assert said == {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"], "enum": ["x", None]}},
        "additionalProperties": False,
    }


def test_a_pattern_without_a_sample_is_told_to_whoever_wrote_it() -> None:
    with pytest.raises(ValueError, match="SAMPLES"):
        schema_of(lambda fields: fields.text("x", max_chars=9, pattern="[!]{9}"))


def test_a_record_that_is_told_has_the_shape_of_its_type() -> None:
    asked_for = KeyAsked.parse(b'{"owner": "red", "scopes": ["admin"]}')
    told = orjson.loads(asked_for.key("0" * 64, created_ms=1).encode())
    validator = jsonschema_rs.validator_for(shape_of(Key))
    validator.validate(told)
    for name in told:
        assert not validator.is_valid({other: value for other, value in told.items() if other != name})
    assert not validator.is_valid({**told, "secret": "x"})
    assert not validator.is_valid({**told, "scopes": ["all"]})


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"limit=5&limit=6", "limit: must be given once"),
        (b"limit=", "must be a whole number"),
        (b"limit=%F0%9F", "UTF-8"),
        (b"limit=\xff", "UTF-8"),
        (b"limit=\xc2\xb2", "UTF-8"),
        (b"limit=%C2%B2", "must be a whole number"),
        (b"limt=5", "limt: is not a parameter"),
        (b"&".join(b"a%d=" % i for i in range(300)), "at most 256 parameters"),
        (b"a=" + b"x" * 40_000, "at most 32768 bytes"),
        (b"metadata.=x", "must have a name"),
        (b"state=", "state[0]: must be one of"),
    ],
)
def test_a_query_that_is_wrong_is_refused_with_what_is_wrong_in_it(raw: bytes, problem: str) -> None:
    with pytest.raises(BadField, match=re.escape(problem)):
        taken(asked.ListAsked.read, raw)


def test_a_query_without_a_required_parameter_is_refused() -> None:
    with pytest.raises(BadField, match="path: is required"):
        asked.FileAsked.read(Query.parse(b"user=root"))
    with pytest.raises(BadField, match="count"):
        Query.parse(b"").integer("count", low=1, high=2, default=REQUIRED)


def test_a_page_is_asked_for_with_states_labels_and_a_cursor() -> None:
    page = taken(
        asked.ListAsked.read,
        b"state=running,paused&metadata.team=red&metadata.a.b=&before=12.sb-aaaaaaaaaaaaaaaa&limit=3",
    )
    assert page == asked.ListAsked(
        states=("running", "paused"),  # type: ignore[arg-type]
        image=None,
        metadata={"team": "red", "a.b": ""},
        before=(12, "sb-aaaaaaaaaaaaaaaa"),
        limit=3,
    )
    assert taken(asked.ListAsked.read, page.encode().encode()) == page
    assert "stopped" not in asked.ListAsked.read(Query.parse(b"")).states

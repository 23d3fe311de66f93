"""The API's document says what the code reads, and the page says what the document says."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from contract.models import USUAL_SHAPES, USUAL_TIMEOUT_S, ShapeLimits
from contract.query import Query
from gateway import routes
from gateway.docs import page
from gateway.openapi import document
from gateway.operations import OPERATIONS, Operation

URL = "https://warren.example"
LIMITS = ShapeLimits(vcpus=4, memory_mb=4096, disk_mb=8192)
SAID = document(OPERATIONS, LIMITS, version="1.2.3")
PAGE = page(SAID, url=URL)
VOID = {"meta", "br", "link"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in SAID["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


def named(operation: Operation) -> str:
    return operation.name


def test_the_document_is_json_and_tells_its_version() -> None:
    told = orjson.loads(orjson.dumps(SAID))
    assert (told["openapi"], told["info"]["version"]) == ("3.1.0", "1.2.3")


def test_every_operation_is_in_the_document_once() -> None:
    said = [operation["operationId"] for _, _, operation in operations()]
    said += [operation["operationId"] for operation in SAID["x-websockets"].values()]
    assert sorted(said) == sorted(operation.name for operation in OPERATIONS)
    assert len(said) == len(set(said))


def test_what_the_app_serves_is_what_the_table_says() -> None:
    served = [each.name for each in (*routes.OPERATIONS, *routes.PASSED)]
    assert sorted(served) == sorted(operation.name for operation in OPERATIONS)
    for each in (*routes.OPERATIONS, *routes.PASSED):
        said = next(operation for operation in OPERATIONS if operation.name == each.name)
        assert (each.method, each.path) == (said.method, said.path)
    for passed in routes.PASSED:
        said = next(operation for operation in OPERATIONS if operation.name == passed.name)
        assert said.scope is passed.scope  # the app asks for it before it passes anything on


def test_the_written_list_of_operations_is_that_of_the_table() -> None:
    written = (Path(__file__).parents[3] / "docs" / "API.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+) (\S+)` \| (.+) \|$", written, re.MULTILINE)
    assert rows == [(each.name, each.method, each.path, each.what) for each in OPERATIONS]


def test_what_is_usual_is_in_the_document() -> None:
    body = SAID["paths"]["/v1/sandboxes"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert f"{USUAL_TIMEOUT_S} seconds" in body["timeout_sec"]["description"]
    for shape in USUAL_SHAPES:
        for name in ("vcpus", "memory_mb", "disk_mb"):
            assert f"{getattr(shape, name)} for {shape.image}" in body[name]["description"]


def test_the_largest_machine_is_in_the_document() -> None:
    body = SAID["paths"]["/v1/sandboxes"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["memory_mb"]["maximum"] == LIMITS.memory_mb


def test_every_schema_is_one() -> None:
    schemas = [each["schema"] for each in walk(SAID) if isinstance(each.get("schema"), dict)]
    schemas += SAID["components"]["schemas"].values()
    assert len(schemas) > 50
    for schema in schemas:
        jsonschema_rs.meta.validate({"$schema": SAID["jsonSchemaDialect"], **schema})


def test_every_reference_leads_somewhere() -> None:
    names = {f"#/components/schemas/{name}" for name in SAID["components"]["schemas"]}
    assert {each["$ref"] for each in walk(SAID) if "$ref" in each} <= names
    said = {operation["operationId"] for _, _, operation in operations()}
    links = [link for each in walk(SAID) for link in each.get("links", {}).values()]
    assert links
    assert {link["operationId"] for link in links} <= said


def test_every_parameter_of_a_path_is_told() -> None:
    for path, _, operation in operations():
        told = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert told == set(re.findall(r"{(\w+)}", path)), path


def test_every_status_has_a_shape_and_every_error_its_codes() -> None:
    for path, method, operation in operations():
        for status, reply in operation["responses"].items():
            assert reply["content"], (path, method, status)
            if int(status) >= 400:
                assert reply["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
                assert reply["x-codes"], (path, method, status)


def test_who_needs_a_key_is_told_that_it_can_be_wrong() -> None:
    for _, _, operation in operations():
        assert bool(operation["security"]) == ("x-scope" in operation)
        assert "401" in operation["responses"] or not operation["security"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_every_example_is_a_good_request(operation: Operation) -> None:
    if isinstance(operation.example, dict):
        assert operation.body is not None
        said = SAID["paths"][operation.path][operation.method.lower()]
        schema = said["requestBody"]["content"]["application/json"]["schema"]
        jsonschema_rs.validate(schema, operation.example)
    if operation.query is not None:
        query = Query.parse((operation.example if isinstance(operation.example, str) else "").encode())
        operation.query(query)
        query.end()


class Reader(HTMLParser):
    """A page as a browser sees it: what is open must be closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    seen = read(PAGE)
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))
    anchors = {f"#{name}" for name in seen.ids}
    assert set(seen.addresses) - anchors == {"/openapi.json"}
    assert seen.tags.isdisjoint({"script", "link", "img", "iframe", "form", "object", "embed"})
    assert not re.search(r"url\(|@import|\son\w+=|javascript:", PAGE)


def test_the_page_tells_every_operation_with_an_anchor_and_an_example() -> None:
    seen = read(PAGE)
    for operation in OPERATIONS:
        assert operation.name in seen.ids
        assert operation.what in seen.text
        assert operation.path in seen.text
    assert seen.text.count(f"'{URL}/") == len([operation for operation in OPERATIONS if operation.method != "WS"])
    assert f"{URL.replace('http', 'ws')}/v1/sandboxes/" in seen.text


def test_the_page_has_every_field_of_a_body_with_its_limits() -> None:
    text = read(PAGE).text
    for words in ("memory_mb", "in steps of 64", "pools.vcpus", "pause · destroy", "metadata.NAME", "Idempotency-Key"):
        assert words in text
    for words in ("network.allow[].host", "allow_addresses[].cidr", "limits.up_mb", "deny · registries · list · open"):
        assert words in text


def test_what_is_in_the_document_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    said = orjson.loads(orjson.dumps(SAID))
    said["info"]["title"] = said["info"]["description"] = said["info"]["version"] = evil
    for operation in said["paths"]["/v1/sandboxes"].values():
        operation["summary"] = operation["description"] = evil
        for reply in operation["responses"].values():
            reply["description"] = evil
    assert "<script" not in page(said, url=f"https://x/{evil}")

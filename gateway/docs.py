"""The API as one page, made on the server from the OpenAPI document: no script, and nothing from elsewhere."""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.operations.operation import JSON, STREAM

Said = dict[str, Any]

# Nothing may be loaded or run: the page's own style is all that it needs.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
OR_NULL = " or null"
EXAMPLE_ID = "sb-2zkqmnb5wc7hxv3a"
EXAMPLE_TASK = "tk-2zkqmnb5wc7hxv3a"
EXAMPLES = {
    "sandbox_id": EXAMPLE_ID,
    "task_id": EXAMPLE_TASK,
    "job_id": EXAMPLE_TASK,
    "name": "step-3.txt",
    "key_id": "KEY_ID",
    "port": "8000",
    "workspace": "my-repl",
    "version": "2",
}

STYLE = Path(__file__).with_name("docs.css")


def page(document: Said, *, url: str) -> str:
    """The whole page. `url` is the address of this gateway, for the examples."""
    operations = list(_operations(document))
    groups = [tag["name"] for tag in document["tags"]]
    sections = "".join(_section(group, operations, url) for group in groups)
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{STYLE.read_text()}</style></head>"
        f'<body><div class="page">{_contents(groups, operations)}<main>'
        f'<h1 id="top">{escape(info["title"])} API <span class="soft">{escape(info["version"])}</span></h1>'
        f"{_prose(info['description'])}"
        '<p class="soft">For programs: <a href="/openapi.json">/openapi.json</a>, OpenAPI 3.1.</p>'
        f"{sections}{_shapes(document)}</main></div></body></html>"
    )


def _operations(document: Said) -> Iterator[tuple[str, str, Said]]:
    """Method, path and description of each, WebSockets too."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation
    for path, operation in document["x-websockets"].items():
        yield "WS", path, operation


def _of(group: str, operations: list[tuple[str, str, Said]]) -> list[tuple[str, str, Said]]:
    return [each for each in operations if group in each[2]["tags"]]


def _contents(groups: list[str], operations: list[tuple[str, str, Said]]) -> str:
    parts = []
    for group in groups:
        links = "".join(
            f'<li><a href="#{operation["operationId"]}">{escape(operation["summary"])}</a></li>'
            for _, _, operation in _of(group, operations)
        )
        parts.append(f"<section><h2>{escape(group)}</h2><ul>{links}</ul></section>")
    shapes = '<section><h2>Replies</h2><ul><li><a href="#shapes">What is in them</a></li></ul></section>'
    return f'<nav aria-label="Contents"><a href="#top"><strong>Warren API</strong></a>{"".join(parts)}{shapes}</nav>'


def _section(group: str, operations: list[tuple[str, str, Said]], url: str) -> str:
    articles = "".join(_article(*each, url) for each in _of(group, operations))
    return f'<section><h2 id="{_anchor(group)}">{escape(group)}</h2>{articles}</section>'


def _article(method: str, path: str, operation: Said, url: str) -> str:
    name, scope = operation["operationId"], operation.get("x-scope")
    needs = f"a key with the scope <code>{escape(scope)}</code>" if scope else "no key"
    return (
        f'<article id="{name}"><h3><a href="#{name}">{escape(operation["summary"])}</a></h3>'
        f'<p class="line"><code><span class="{method}">{method}</span> {escape(path)}</code> '
        f'<span class="soft">needs {needs}</span></p>'
        f"{_prose(operation.get('description', ''))}{_asked(operation)}{_example(method, path, operation, url)}"
        f"{_replies(operation)}</article>"
    )


def _asked(operation: Said) -> str:
    rows = [_parameter(each) for each in operation.get("parameters", []) if each["in"] != "path"]
    schema = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
    fields = list(_asked_fields(schema))
    query = f"<h4>Parameters and headers</h4>{_table(rows)}" if rows else ""
    body = f"<h4>Fields of the body</h4>{_table(fields)}" if fields else ""
    return query + body


def _parameter(parameter: Said) -> tuple[str, str]:
    schema = parameter["schema"]
    name = f"{parameter['name']}.NAME" if parameter.get("explode") else parameter["name"]
    kind = "header" if parameter["in"] == "header" else _kind(schema)
    return _row(name, parameter["description"], kind, schema, is_required=parameter.get("required", False))


def _asked_fields(schema: Said, within: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a body. All but the required ones may be null: that is said once, above."""
    for name, inner in schema.get("properties", {}).items():
        is_required = name in schema.get("required", ())
        kind = _kind(inner).removesuffix(OR_NULL)
        yield _row(within + name, inner.get("description", ""), kind, inner, is_required=is_required)
        yield from _asked_fields(inner, f"{within}{name}.")
        yield from _asked_fields(inner.get("items", {}), f"{within}{name}[].")


def _row(name: str, means: str, kind: str, schema: Said, *, is_required: bool) -> tuple[str, str]:
    default = f"default <code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""
    limits = " · ".join(part for part in (kind, "required" if is_required else "", default) if part)
    said = f'{_marked(means)}<br><span class="soft">{limits}</span>' if means else f'<span class="soft">{limits}</span>'
    return f"<code>{escape(name)}</code>", said


def _fields(schema: Said, within: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a reply."""
    for name, inner in schema.get("properties", {}).items():
        means = inner.get("description", "")
        yield f"<code>{escape(within + name)}</code>", _kind(inner) + (f" · {_marked(means)}" if means else "")
        yield from _fields(inner, f"{within}{name}.")
        yield from _fields(inner.get("items", {}), f"{within}{name}[].")


def _kind(schema: Said) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#shape-{name}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(inner) for inner in schema["anyOf"])
    kinds = schema.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "enum" in schema:
        choices = " · ".join(f"<code>{escape(str(item))}</code>" for item in schema["enum"] if item is not None)
        return choices + (OR_NULL if None in schema["enum"] else "")
    return " or ".join(_plain_kind(kind, schema) for kind in kinds)


def _plain_kind(kind: str, schema: Said) -> str:
    match kind:
        case "array":
            most = f", at most {schema['maxItems']:,}" if "maxItems" in schema else ""
            return f"list of {_kind(schema.get('items', {}))}{most}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            most = f", at most {schema['maxProperties']:,}" if "maxProperties" in schema else ""
            return f"names with {_kind(schema['additionalProperties'])} each{most}"
        case "integer" | "number":
            return ("whole number" if kind == "integer" else "number") + _range(schema)
        case "string":
            return "text" + (f" up to {schema['maxLength']:,} characters" if "maxLength" in schema else "")
        case "boolean":
            return "true or false"
        case _:
            return kind


def _range(schema: Said) -> str:
    if "maximum" not in schema:
        return ""
    step = f" in steps of {schema['multipleOf']}" if "multipleOf" in schema else ""
    return f" from {schema['minimum']:,} to {schema['maximum']:,}{step}"


def _example(method: str, path: str, operation: Said, url: str) -> str:
    """A line for curl, or for a program that speaks WebSocket."""
    asked = operation.get("x-example")
    where = re.sub(r"{(\w+)}", lambda name: EXAMPLES[name[1]], path) + (f"?{asked}" if isinstance(asked, str) else "")
    address = url + where
    if method == "WS":
        return f"<h4>Example</h4><pre>{escape(re.sub('^http', 'ws', address))}</pre>"
    parts = ["curl -s" if method == "GET" else f"curl -s -X {method}", f"'{address}'"]
    if operation["security"]:
        parts.append('-H "Authorization: Bearer $WARREN_API_KEY"')
    if isinstance(asked, dict):
        parts.append(f"-d '{json.dumps(asked)}'")
    elif "requestBody" in operation and JSON not in operation["requestBody"]["content"]:
        parts.append("--data-binary @hello.txt")
    command = " \\\n  ".join(parts)
    return f"<h4>Example</h4><pre>{escape(command)}</pre>"


def _replies(operation: Said) -> str:
    good = [_good(status, reply) for status, reply in operation["responses"].items() if "x-codes" not in reply]
    bad = [
        (f"<code>{status}</code>", " · ".join(f"<code>{escape(code)}</code>" for code in reply["x-codes"]))
        for status, reply in operation["responses"].items()
        if "x-codes" in reply
    ]
    return f"<h4>Replies</h4>{_table(good)}<details><summary>Errors</summary>{_table(bad)}</details>"


def _good(status: str, reply: Said) -> tuple[str, str]:
    said = [_marked(reply["description"])]
    for media, content in reply.get("content", {}).items():
        shown = _kind(content["schema"]) if media == JSON else f"<code>{escape(media)}</code>"
        fields = list(_fields(content["schema"])) if media == JSON else []
        said.append(shown if not fields else "; ".join(f"{name} {what}" for name, what in fields))
    if STREAM in reply.get("content", {}):
        said[-1] += " if asked for by <code>Accept</code>"
    headers = reply.get("headers", {}).items()
    said += [f"<code>{escape(name)}</code> {escape(header['description'])}" for name, header in headers]
    return f"<code>{status}</code>", "<br>".join(said)


def _shapes(document: Said) -> str:
    shapes = "".join(
        f'<article id="shape-{name}"><h3>{escape(name)}</h3>{_table(list(_fields(schema)))}</article>'
        for name, schema in document["components"]["schemas"].items()
    )
    return f'<section><h2 id="shapes">What is in replies</h2>{shapes}</section>'


def _table(rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{name}</td><td>{what}</td></tr>" for name, what in rows)
    return f'<div class="wide"><table>{body}</table></div>'


def _prose(text: str) -> str:
    return "".join(f"<p>{_marked(each)}</p>" for each in text.split("\n\n") if each)


def _marked(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _anchor(group: str) -> str:
    return quote(group.lower().replace(" ", "-"))

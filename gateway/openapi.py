"""The API as an OpenAPI 3.1 document: made from the table of operations, and from the functions that read requests."""

import re
from collections.abc import Iterable
from typing import Any

from contract.models import ShapeLimits
from contract.schema import DIALECT, Schema, parameters_of, schema_of, whole
from contract.workspaces import MAX_VERSION, NAME
from gateway.operations import Operation, task_views, views
from gateway.operations.codes import Codes
from gateway.operations.operation import JSON, OCTETS, Header, Reply

ABOUT = """Coding agents at work, and sandboxes for them: each is a microVM of its own, on machines that you own.

Send your key with every request, as `Authorization: Bearer wrn_…` or `X-API-Key: wrn_…`. JSON in and out, at most \
1 MiB a request, 8 MiB for a task; files and streams are not limited. Sizes are in MB and in steps of 64. Times end in \
`_ms` (since 1970) or `_sec`. A field that is not known is refused, and a field that is null counts as absent.

An error is `{"error": {"code", "message", …}}`: programs may rely on the code, the message is for people. Every reply \
has `X-Request-Id`; replies to a request with a key have `RateLimit-Limit`, `RateLimit-Remaining` and \
`RateLimit-Reset`. Statuses 429 and 503 say in `Retry-After` when to come back."""

PARAMETERS: dict[str, Schema] = {
    "sandbox_id": views.SANDBOX_ID,
    "task_id": task_views.TASK_ID,
    "job_id": task_views.TASK_ID,
    "name": {"type": "string", "pattern": whole(task_views.ARTIFACT)},
    "key_id": {"type": "string", "pattern": whole("[0-9a-f]{64}")},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "workspace": {"type": "string", "pattern": whole(NAME)},
    "version": {"type": "integer", "minimum": 1, "maximum": MAX_VERSION},
}


def document(operations: Iterable[Operation], limits: ShapeLimits, *, version: str) -> dict[str, Any]:
    """What `/openapi.json` answers, where machines can be so large. WebSockets, for which OpenAPI has no words, are in
    `x-websockets`."""
    paths: dict[str, dict[str, Any]] = {}
    sockets: dict[str, Any] = {}
    groups: dict[str, None] = {}
    for operation in operations:
        groups[operation.group] = None
        if operation.method == "WS":
            sockets[operation.path] = _operation(operation, limits)
        else:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, limits)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {"title": "Warren", "version": version, "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in groups],
        "paths": paths,
        "x-websockets": sockets,
        "components": {"schemas": views.SCHEMAS, "securitySchemes": _security_schemes()},
    }


def _security_schemes() -> dict[str, Any]:
    return {
        "bearer": {"type": "http", "scheme": "bearer", "description": "a key"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "a key"},
    }


def _operation(operation: Operation, limits: ShapeLimits) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.group],
        "summary": operation.what,
        "description": operation.about,
        "parameters": _parameters(operation),
        "requestBody": _request_body(operation, limits),
        "responses": _responses(operation),
        "security": [{"bearer": []}, {"header": []}] if operation.scope else [],
        "x-scope": operation.scope,
        "x-example": operation.example,
    }
    return {name: value for name, value in said.items() if value not in ("", None) and (value or name == "security")}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": PARAMETERS[name]}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    in_headers = [
        {"name": name, "in": "header", "schema": _header(header), "description": header.what}
        for name, header in operation.headers.items()
    ]
    in_query = [] if operation.query is None else parameters_of(operation.query)
    for each in in_query:
        each["description"] = operation.means[each["name"]]
    return in_path + in_query + in_headers


def _header(header: Header) -> Schema:
    return {"type": "string"} if header.pattern is None else {"type": "string", "pattern": whole(header.pattern)}


def _request_body(operation: Operation, limits: ShapeLimits) -> dict[str, Any] | None:
    if operation.upload:
        return {"required": True, "description": operation.upload, "content": {OCTETS: {"schema": views.BYTES}}}
    if operation.body is None:
        return None
    schema = schema_of(operation.body, *([limits] if operation.has_limits else []))
    for name, field in schema["properties"].items():
        field["description"] = operation.means[name]
    # No body at all is an object without fields.
    return {"required": bool(schema.get("required")), "content": {JSON: {"schema": schema}}}


def _responses(operation: Operation) -> dict[str, Any]:
    good = {str(status): _reply(reply) for status, reply in operation.replies.items()}
    return good | _errors(operation.codes)


def _reply(reply: Reply) -> dict[str, Any]:
    said: dict[str, Any] = {"description": reply.what}
    if reply.content:
        said["content"] = {media: {"schema": schema} for media, schema in reply.content.items()}
    if reply.headers:
        said["headers"] = {
            name: {"description": what, "schema": {"type": "string"}} for name, what in reply.headers.items()
        }
    if reply.links:
        given = {reply.linked: f"$response.body#{reply.pointer}"}  # for those who go on from there
        said["links"] = {name: {"operationId": name, "parameters": given} for name in reply.links}
    return said


def _errors(codes: Codes) -> dict[str, Any]:
    """Each status with its codes. Those of guests are not all known: a guest may be newer than we are."""
    return {
        str(status): {
            "description": ", ".join(dict.fromkeys(names)),
            "content": {JSON: {"schema": views.ref("Error")}},
            "x-codes": list(dict.fromkeys(names)),
        }
        for status, names in codes.items()
    }

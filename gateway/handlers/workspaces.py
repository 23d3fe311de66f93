"""Workspaces and templates are in the store, which hosts share: whichever host lives is asked."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract import asked
from contract.errors import BadField
from contract.fields import Fields
from contract.ring import ranked
from contract.tickets import Access
from contract.workspaces import MAX_VERSION, workspace_name
from gateway.creation import TOO_OLD
from gateway.errors import HostSaid, HostUnreachable
from gateway.handlers.queries import read_query
from gateway.hosts import Answer
from gateway.proxy import forward
from gateway.replies import json_reply, read_body
from gateway.services import Call, call_of

ASK_S = 60.0  # a store may be slow, and a page has many objects
ARCHIVE_S = 600.0
MAX_BYTES = 32 << 20


async def listed(request: Request) -> Response:
    read_query(request, asked.WorkspacesAsked.read)
    return await _told(request, "GET", Access.READ)


async def get(request: Request) -> Response:
    return await _told(request, "GET", Access.READ)


async def delete(request: Request) -> Response:
    return await _told(request, "DELETE", Access.WRITE)


async def versions(request: Request) -> Response:
    read_query(request, asked.VersionsAsked.read)
    return await _told(request, "GET", Access.READ)


async def diff(request: Request) -> Response:
    read_query(request, asked.DiffAsked.read)
    return await _told(request, "GET", Access.READ)


async def restore(request: Request) -> Response:
    fields = Fields.parse(await read_body(request))
    version = asked.restored_version(fields)
    fields.end()
    return await _told(request, "POST", Access.WRITE, {"version": version})


async def archive(request: Request) -> Response:
    workspace_name(request.path_params["workspace"])
    version_number(request.path_params["version"])
    return _Archive(call_of(request))


def version_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 13 or not 1 <= int(text) <= MAX_VERSION:
        raise BadField("version", text, f"must be a whole number from 1 to {MAX_VERSION}")
    return int(text)


async def _told(request: Request, method: str, access: Access, value: Any = None) -> Response:
    """What a host says, under the same path as here."""
    if "workspace" in request.path_params:
        workspace_name(request.path_params["workspace"])
    query = request.scope["query_string"].decode("latin-1")
    target = request.scope["path"] + (f"?{query}" if query else "")
    answer = await _ask(call_of(request), method, target, access, value)
    return json_reply(answer.or_raise(), answer.status)


async def _ask(call: Call, method: str, target: str, access: Access, value: Any) -> Answer:
    """One host after the other, as long as it is certain that nothing was done."""
    hosts, error = call.services.hosts, HostUnreachable("no host lives", sent=False)
    headers = [(b"x-request-id", call.request_id.encode())]
    for name in _order(call):
        try:
            answer = await hosts.ask(
                name,
                method,
                target,
                access,
                call.who.owner,
                value=value,
                headers=headers,
                limit_s=ASK_S,
                max_bytes=MAX_BYTES,
            )
        except HostUnreachable as problem:
            error = problem
            if problem.sent and method == "POST":  # a restore that was done twice is two versions
                raise
            continue
        if answer.status != 404 or HostSaid(answer.status, answer.value).code != TOO_OLD:
            return answer
    raise error


def _order(call: Call) -> list[str]:
    """Hosts that live; an owner's questions go to the same one as long as it does."""
    hosts = call.services.hosts
    alive = hosts.alive()
    return [name for name in ranked(call.who.owner, hosts.weights()) if name in alive]


class _Archive(Response):
    """Passes what a host says as it comes, however much it is."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        hosts, call = self._call.services.hosts, self._call
        for name in _order(call):
            ticket = call.services.tickets.get(name, call.who.owner, Access.READ)
            try:
                await forward(
                    scope,
                    receive,
                    send,
                    hosts.upstream(name),
                    scope["path"],
                    ticket,
                    call.request_id,
                    answer_s=ARCHIVE_S,
                )
            except HostUnreachable:
                hosts.failed(name)
                continue
            return
        raise HostUnreachable("no host lives", sent=False)

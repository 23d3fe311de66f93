"""Workspaces and templates. They are in the store, so whoever shares that may be asked; owners see their own."""

import contextlib
from dataclasses import asdict
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from contract import asked
from contract.errors import BadField
from contract.fields import Fields
from contract.workspaces import MAX_VERSION, NAME, no_version, workspace_name
from poold.api.audited import StreamedReply
from poold.api.listing import read_query
from poold.api.replies import json_reply, read_body
from poold.api.sandboxes import no_fields
from poold.api.services import asked_id, caller_of, services
from poold.archives.archive import packed
from poold.ledger import audit
from poold.workspaces import Place, Shelf, content, of_owner, templates, views


async def listed(request: Request) -> Response:
    wanted = read_query(request, asked.WorkspacesAsked.read)
    return json_reply(await views.workspaces(_shelf(request), caller_of(request).owner, wanted))


async def get(request: Request) -> Response:
    return json_reply(await views.workspace(_shelf(request), _place(request)))


async def delete(request: Request) -> Response:
    place, found = _place(request), services(request)
    await _audit(request, "workspace.delete", workspace=place.name)
    count = await found.sandboxes.workspaces.delete(caller_of(request).owner, place.name)
    return json_reply({"name": place.name, "versions": count})


async def versions(request: Request) -> Response:
    wanted = read_query(request, asked.VersionsAsked.read)
    return json_reply(await views.versions(_shelf(request), _place(request), wanted))


async def diff(request: Request) -> Response:
    wanted = read_query(request, asked.DiffAsked.read)
    return json_reply(await views.diff(_shelf(request), _place(request), wanted))


async def restore(request: Request) -> Response:
    place, fields = _place(request), Fields.parse(await read_body(request))
    version = asked.restored_version(fields)
    fields.end()
    await _audit(request, "workspace.restore", workspace=place.name, version=version)
    return json_reply((await _shelf(request).restore(place, version)).version_view(), 201)


async def archive(request: Request) -> Response:
    """What is found to be wrong before the first byte is told as an error; later the reply breaks off."""
    shelf, place = _shelf(request), _place(request)
    whole = await shelf.manifest(place, _version(request, place))
    listing = await shelf.listing(place, whole)
    for each in whole.packs:
        await shelf.must_exist(place, each)
    async with contextlib.AsyncExitStack() as stack:
        files = await stack.enter_async_context(contextlib.aclosing(content.files(shelf, place, whole, listing)))
        chunks = await stack.enter_async_context(contextlib.aclosing(packed(files)))
        rest = stack.pop_all()
    return StreamedReply(chunks, rest, headers={"X-Content-Type-Options": "nosniff"}, media_type="application/zstd")


async def save(request: Request) -> Response:
    await no_fields(request)
    saved = await services(request).sandboxes.save_workspace(asked_id(request), caller_of(request))
    return json_reply(asdict(saved))


async def list_templates(request: Request) -> Response:
    return json_reply({"templates": await templates.listed(_shelf(request))})


async def add_template(request: Request) -> Response:
    """For the operator: the body is a tar stream, with all files below `workspace/`."""
    name = request.path_params["template"]
    Fields({"template": name}).text("template", max_chars=64, pattern=NAME)
    await _audit(request, "template.add", template=name)
    return json_reply(vars(await templates.add(_shelf(request), name, request.stream())), 201)


async def remove_template(request: Request) -> Response:
    name = request.path_params["template"]
    await _audit(request, "template.remove", template=name)
    await templates.remove(_shelf(request), workspace_name(name))
    return json_reply({"name": name})


def _shelf(request: Request) -> Shelf:
    return services(request).sandboxes.workspaces.shelf


def _place(request: Request) -> Place:
    return of_owner(caller_of(request).owner, workspace_name(request.path_params["workspace"]))


def _version(request: Request, place: Place) -> int:
    text = request.path_params["version"]
    if not text.isascii() or not text.isdigit() or len(text) > 13:
        raise BadField("version", text, f"must be a whole number from 1 to {MAX_VERSION}")
    if not 1 <= int(text) <= MAX_VERSION:
        raise no_version(place.name, int(text))
    return int(text)


async def _audit(request: Request, action: str, **detail: str | int) -> None:
    """Before it is done: if it cannot be written down, it is not."""
    caller, found = caller_of(request), services(request)
    entry = audit.Entry(
        found.sandboxes.now_ms(), action, owner=caller.owner, request=caller.request, detail=dict(detail)
    )
    await found.ledger.write(partial(audit.add, entry=entry))

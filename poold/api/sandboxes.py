"""Sandboxes as resources: create, list, get, destroy."""

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from contract.errors import BadField
from contract.ids import sandbox_id
from contract.models import CreateSandbox
from contract.states import State
from poold.api.replies import json_reply, read_body
from poold.link import Guest
from poold.sandboxes import Sandboxes

MAX_PAGE = 1000
DEFAULT_PAGE = 100


def host_of(request: HTTPConnection) -> Sandboxes:
    host: Sandboxes = request.app.state.sandboxes
    return host


def asked_id(request: HTTPConnection) -> str:
    return sandbox_id(request.path_params["sandbox_id"])


async def guest_of(request: HTTPConnection) -> Guest:
    """The guest of the sandbox in the path, or the error that says why there is none."""
    return await host_of(request).guest(asked_id(request))


async def healthz(request: Request) -> Response:
    return json_reply({"ok": True, "pool": request.app.state.pool.shares()})


async def create(request: Request) -> Response:
    wanted = CreateSandbox.parse(await read_body(request), request.app.state.limits)
    sandbox = await host_of(request).create(wanted)
    return json_reply(sandbox.view(), 201, {"Location": f"/v1/sandboxes/{sandbox.id}"})


async def listed(request: Request) -> Response:
    """Newest first; `next` is the `after` of the next page, or null on the last."""
    limit = _page_size(request.query_params.get("limit", str(DEFAULT_PAGE)))
    after = request.query_params.get("after")
    found = await host_of(request).listed(
        states=_states(request.query_params.get("state")),
        after=None if after is None else sandbox_id(after),
        limit=limit + 1,
    )
    page = found[:limit]
    following = page[-1].id if len(found) > limit else None
    return json_reply({"sandboxes": [sandbox.view() for sandbox in page], "next": following})


async def get(request: Request) -> Response:
    return json_reply((await host_of(request).get(asked_id(request))).view())


async def destroy(request: Request) -> Response:
    return json_reply((await host_of(request).destroy(asked_id(request))).view())


async def health(request: Request) -> Response:
    """What the guest says of itself."""
    return json_reply(await (await guest_of(request)).call("GET", "/health"))


def _page_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_PAGE:
        raise BadField("limit", text, f"must be a whole number from 1 to {MAX_PAGE}")
    return int(text)


def _states(text: str | None) -> list[State]:
    """The states asked for; all but `stopped` when none are."""
    if text is None:
        return [state for state in State if state is not State.STOPPED]
    names = text.split(",")
    for name in names:
        if name not in list(State):
            raise BadField("state", name, f"must be one of {', '.join(State)}")
    return [State(name) for name in names]

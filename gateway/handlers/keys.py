"""Keys, for admins: make, list, revoke, rotate. A secret is in one reply and nowhere else."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from contract.fields import Fields
from contract.keys import Key, KeyAsked, key_id, new_secret, rotation_grace
from gateway.replies import json_reply, read_body
from gateway.services import Call, call_of


async def create(request: Request) -> Response:
    call = call_of(request)
    asked = KeyAsked.parse(await read_body(request))
    secret = new_secret(call.services.entropy)
    key = asked.key(key_id(secret), created_ms=call.services.now_ms())
    await _write(call, key)
    return json_reply({**key.view(), "secret": secret}, 201, {"Location": f"/v1/keys/{key.id}"})


async def listed(request: Request) -> Response:
    """All of them, oldest first."""
    keys = (await call_of(request).services.registry.read()).keys
    rows = sorted(keys.values(), key=lambda key: (key.created_ms, key.id))
    return json_reply({"keys": [key.view() for key in rows]})


async def get(request: Request) -> Response:
    return json_reply((await _found(request)).view())


async def revoke(request: Request) -> Response:
    """From now on it opens nothing: here at once, at other gateways within seconds. Revoking again changes nothing."""
    key = await _changed(request, Key.revoked)
    return json_reply(key.view())


async def rotate(request: Request) -> Response:
    """A new secret with the same rights; the old one is over after the grace, at once if that is 0."""
    call, old = call_of(request), await _found(request)
    fields = Fields.parse(await read_body(request))
    grace_s = rotation_grace(fields)
    fields.end()
    now_ms = call.services.now_ms()
    secret = new_secret(call.services.entropy)
    key = old.successor(key_id(secret), now_ms)
    await _write(call, key)
    await _changed(request, lambda old: old.ending(now_ms + grace_s * 1000) if grace_s else old.revoked())
    return json_reply({**key.view(), "secret": secret}, 201, {"Location": f"/v1/keys/{key.id}"})


async def _write(call: Call, key: Key) -> None:
    """A client that leaves meanwhile has its key written all the same: half of a rotation would be worse."""
    await asyncio.shield(call.services.background.start(call.services.registry.add_key(key)))
    call.services.auth.change(key)


async def _changed(request: Request, how: Callable[[Key], Key]) -> Key:
    call, asked = call_of(request), request.path_params["key_id"]
    key = await asyncio.shield(call.services.background.start(call.services.registry.change_key(asked, how)))
    call.services.auth.change(key)
    return key


async def _found(request: Request) -> Key:
    """From the registry, not from our memory of it: another gateway may have changed it a moment ago."""
    return await call_of(request).services.registry.key(request.path_params["key_id"])

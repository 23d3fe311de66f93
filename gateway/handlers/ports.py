"""Links to previews."""

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import link_life_s
from contract.errors import BadField
from contract.fields import Fields
from contract.ids import sandbox_id
from gateway.handlers.sandboxes import looked_at
from gateway.passes import FIELD, preview_address, preview_label
from gateway.replies import json_reply, read_body
from gateway.services import call_of


async def link(request: Request) -> Response:
    """An address that lets whoever opens it see one port of the owner's sandbox, for a while."""
    call = call_of(request)
    call.sandbox = sandbox_id(request.path_params["sandbox_id"])
    port = port_number(request.path_params["port"])
    fields = Fields.parse(await read_body(request))
    life_s = link_life_s(fields)
    fields.end()
    (await looked_at(call, call.sandbox)).or_raise()  # there is one, and it is the caller's
    services, url = call.services, request.url
    address = preview_address(
        call.sandbox, port, scheme=url.scheme, host=request.headers["host"], domain=services.config.domain
    )
    given = services.passes.sign(call.who.owner, preview_label(call.sandbox, port), life_s)
    told = {"url": f"{address}?{FIELD}={given}", "expires_ms": services.now_ms() + life_s * 1000}
    return json_reply(told, headers={"Cache-Control": "no-store"})


def port_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise BadField("port", text, "must be a whole number from 1 to 65535")
    return int(text)

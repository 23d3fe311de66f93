"""The browser of a sandbox: what a caller asks of it is passed to the guest, and written down like a command."""

import base64
import binascii
import contextlib
import logging

import orjson
from starlette.requests import Request
from starlette.responses import Response

from contract import browser
from contract.errors import NotFound, WarrenError
from contract.fields import Fields
from poold.api.audited import using
from poold.api.replies import read_body
from poold.api.services import asked_id, services
from poold.link import FAR_AWAY

log = logging.getLogger("poold.api")

MAX_REPLY_BYTES = 12 << 20  # a picture of 8 MiB in base64, and a page's text
START_S = 240.0  # of a browser on a busy machine, and a picture of what it shows
ANSWER_S = browser.MAX_LIMIT_MS / 1000 + START_S


async def act(request: Request) -> Response:
    action = request.path_params["action"]
    if action not in browser.ACTIONS:
        raise NotFound(f"a browser does {', '.join(browser.ACTIONS)}, not {action[:32]!r}")
    body = await read_body(request) or b"{}"
    browser.check(action, body)
    url = Fields.parse(body).raw("url", "")
    headers = {"Content-Type": "application/json"}
    async with using(request, f"browser.{action}", url=url if isinstance(url, str) else "") as use:
        target = f"/browser/{action}"
        exchange = use.guest.exchange("POST", target, headers=headers, body=body, limit_s=ANSWER_S, refusals=FAR_AWAY)
        async with exchange as answer:
            reply = await answer.read(MAX_REPLY_BYTES)
        use.bytes = len(reply)
    await _keep_picture(request, reply)
    return Response(reply, media_type="application/json")


async def _keep_picture(request: Request, reply: bytes) -> None:
    """In the sandbox of a task, a picture is one of its artifacts. A reply that has none is no fault."""
    try:
        told = orjson.loads(reply)
        picture = told.get("screenshot") if isinstance(told, dict) else None
        png = base64.b64decode(picture, validate=True) if isinstance(picture, str) else b""
    except (orjson.JSONDecodeError, binascii.Error, ValueError):
        return
    if png:
        with contextlib.suppress(WarrenError):  # the store is full: the caller has the picture
            await services(request).tasks.keep_screenshot(asked_id(request), png)

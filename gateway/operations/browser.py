"""Operations on the browser in a sandbox: one page, seen and used through its sandbox."""

from collections.abc import Mapping
from typing import Any

from contract.browser import ACTIONS
from contract.keys import Scope
from contract.schema import Schema, or_null
from gateway.operations import views
from gateway.operations.codes import BODY, GUEST, Codes, together
from gateway.operations.operation import Operation, json_reply
from gateway.operations.sandboxes import ONE

# A guest tells these. It may be older or newer than we are, so more may be in them.
PAGE: Schema = {
    "type": "object",
    "properties": {
        "title": or_null(views.TEXT),
        "url": or_null(views.TEXT),
        "text": {**or_null(views.TEXT), "description": "what can be read on it, at most 64 KiB"},
        "console": {"type": "array", "description": "errors that it told"},
        "status": or_null(views.NUMBER),
        "screenshot": {**or_null(views.TEXT), "description": "a PNG in base64"},
    },
}
VALUE: Schema = {**PAGE, "properties": {**PAGE["properties"], "value": {"description": "what the script came to"}}}
BROWSER_CODES: Codes = {
    400: ("browser_missing",),
    404: ("no_element",),
    409: ("no_page",),
    501: ("guest_too_old",),
    502: ("page_failed",),
    504: ("browser_timeout",),
}


def _operation(  # noqa: PLR0917 — a row of the table
    name: str,
    what: str,
    reply: tuple[str, Schema],
    means: Mapping[str, str],
    example: Any,
    about: str = "",
) -> Operation:
    return Operation(
        f"browser_{name}",
        "POST",
        f"{ONE}/browser/{name}",
        "Browser",
        what,
        {200: json_reply(*reply)},
        Scope.SANDBOXES,
        about=about,
        body=ACTIONS[name],
        means={**means, **LIMIT},
        errors=together(BODY, GUEST, BROWSER_CODES),
        example=example,
    )


LIMIT = {"limit_ms": "for how long it is waited; then 504 `browser_timeout`"}
SEEN = ("the page, as it is then", PAGE)
SELECTOR = {"selector": "a CSS selector; the first element that it finds"}

BROWSER = (
    _operation(
        "open",
        "Open a page in the browser of a sandbox",
        SEEN,
        {
            "url": "http or https, as the sandbox sees it: what it may reach counts for its browser as well",
            "width": "of the window, in pixels",
            "height": "of the window, in pixels",
            "full_page": "whether the screenshot shows what is below the window, too",
        },
        {"url": "http://127.0.0.1:8000/"},
        about="The image must have a browser in it, as `agent` has. There is one page in a sandbox; in that of a task "
        "its screenshots are kept as artifacts.",
    ),
    _operation("click", "Click on something on the page", SEEN, SELECTOR, {"selector": "a.next"}),
    _operation(
        "type",
        "Type into a field of the page",
        SEEN,
        {**SELECTOR, "text": "what is typed", "submit": "press Enter afterwards"},
        {"selector": "input[name=q]", "text": "warren", "submit": True},
    ),
    _operation(
        "evaluate",
        "Evaluate a script on the page",
        ("what it came to, and the page", VALUE),
        {"script": "JavaScript; its value is told as JSON"},
        {"script": "document.title"},
    ),
    _operation("close", "Close the browser", ("it is closed; also if it was", views.ANYTHING), {}, None),
)

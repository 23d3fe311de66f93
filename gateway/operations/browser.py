"""Operations on the browser in a sandbox: one page, seen and used through its sandbox."""

from collections.abc import Callable, Mapping
from typing import Any

from contract import asked
from contract.fields import NOT_BLANK, Fields
from contract.keys import Scope
from contract.schema import Schema, or_null
from contract.tasks import URL
from gateway.operations import views
from gateway.operations.codes import BODY, GUEST, Codes, together
from gateway.operations.operation import Operation, json_reply
from gateway.operations.sandboxes import ONE

MAX_ADDRESS_CHARS = 8192
MAX_SELECTOR_CHARS = 4096
MAX_SCRIPT_CHARS = 131_072
MIN_SIDE, MAX_WIDTH, MAX_HEIGHT = 200, 3840, 2160
USUAL_WIDTH, USUAL_HEIGHT = 1280, 800
MIN_LIMIT_MS, MAX_LIMIT_MS, USUAL_LIMIT_MS = 100, 300_000, 60_000
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


def page_asked(fields: Fields) -> None:
    fields.text("url", max_chars=MAX_ADDRESS_CHARS, pattern=URL)
    fields.integer("width", low=MIN_SIDE, high=MAX_WIDTH, default=USUAL_WIDTH)
    fields.integer("height", low=MIN_SIDE, high=MAX_HEIGHT, default=USUAL_HEIGHT)
    fields.flag("full_page", default=False)
    _limit(fields)


def click_asked(fields: Fields) -> None:
    fields.text("selector", max_chars=MAX_SELECTOR_CHARS, pattern=NOT_BLANK)
    _limit(fields)


def typing_asked(fields: Fields) -> None:
    click_asked(fields)
    fields.text("text", max_chars=MAX_SCRIPT_CHARS)
    fields.flag("submit", default=False)


def script_asked(fields: Fields) -> None:
    fields.text("script", max_chars=MAX_SCRIPT_CHARS, pattern=NOT_BLANK)
    _limit(fields)


def _limit(fields: Fields) -> None:
    fields.integer("limit_ms", low=MIN_LIMIT_MS, high=MAX_LIMIT_MS, default=USUAL_LIMIT_MS)


def _operation(  # noqa: PLR0917 — a row of the table
    name: str,
    what: str,
    reply: tuple[str, Schema],
    body: Callable[..., object],
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
        body=body,
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
        page_asked,
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
    _operation("click", "Click on something on the page", SEEN, click_asked, SELECTOR, {"selector": "a.next"}),
    _operation(
        "type",
        "Type into a field of the page",
        SEEN,
        typing_asked,
        {**SELECTOR, "text": "what is typed", "submit": "press Enter afterwards"},
        {"selector": "input[name=q]", "text": "warren", "submit": True},
    ),
    _operation(
        "evaluate",
        "Evaluate a script on the page",
        ("what it came to, and the page", VALUE),
        script_asked,
        {"script": "JavaScript; its value is told as JSON"},
        {"script": "document.title"},
    ),
    _operation("close", "Close the browser", ("it is closed; also if it was", views.ANYTHING), asked.nothing, {}, None),
)

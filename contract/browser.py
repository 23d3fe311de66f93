"""What may be asked of the browser in a sandbox. A gateway describes it and a host reads it, with the same functions.

The guest checks it again, as it checks everything; but a guest skips what it does not know, and callers shall be told.
"""

from collections.abc import Callable, Mapping

from contract.asked import nothing
from contract.fields import NOT_BLANK, Fields
from contract.tasks import URL

MAX_ADDRESS_CHARS = 8192
MAX_SELECTOR_CHARS = 4096
MAX_TYPED_CHARS = 65_536
MIN_SIDE, MAX_WIDTH, MAX_HEIGHT = 200, 3840, 2160
USUAL_WIDTH, USUAL_HEIGHT = 1280, 800
MIN_LIMIT_MS, MAX_LIMIT_MS, USUAL_LIMIT_MS = 100, 120_000, 60_000


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
    fields.text("text", max_chars=MAX_TYPED_CHARS)
    fields.flag("submit", default=False)


def script_asked(fields: Fields) -> None:
    fields.text("script", max_chars=MAX_TYPED_CHARS, pattern=NOT_BLANK)
    _limit(fields)


def _limit(fields: Fields) -> None:
    fields.integer("limit_ms", low=MIN_LIMIT_MS, high=MAX_LIMIT_MS, default=USUAL_LIMIT_MS)


ACTIONS: Mapping[str, Callable[[Fields], None]] = {
    "open": page_asked,
    "click": click_asked,
    "type": typing_asked,
    "evaluate": script_asked,
    "close": nothing,
}


def check(action: str, body: bytes) -> None:
    """Raises unless this may be asked for."""
    fields = Fields.parse(body)
    ACTIONS[action](fields)
    fields.end()

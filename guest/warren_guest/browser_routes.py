"""The routes of the browser: from a request to what the page shows."""

from urllib.parse import urlsplit

from warren_guest.browser.page import URL_CHARS, Page, View
from warren_guest.browser.pipe import Json
from warren_guest.fields import Fields, bad_field
from warren_guest.guest import Guest
from warren_guest.requests import read_object
from warren_guest.server import Answer, Request
from warren_guest.wire import to_json

_LIMIT_MS = 60_000
_SELECTOR_CHARS = 4096


async def open_page(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    url = _url(fields)
    view = View(
        width=fields.number("width", 200, 3840) or 1280,
        height=fields.number("height", 200, 2160) or 800,
        full_page=bool(fields.flag("full_page")),
    )
    return Answer(to_json(await guest.browser.open(url, view, _limit_s(fields))))


async def click(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    selector = _selector(fields)

    async def act(page: Page) -> Json:
        await page.click(selector)
        return {}

    return Answer(to_json(await guest.browser.act(act, _limit_s(fields))))


async def type_text(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    selector, submit = _selector(fields), bool(fields.flag("submit"))
    text = fields.text("text")
    if text is None:
        raise bad_field("text", "is required")

    async def act(page: Page) -> Json:
        await page.type(selector, text, submit=submit)
        return {}

    return Answer(to_json(await guest.browser.act(act, _limit_s(fields))))


async def evaluate(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    script, limit_s = fields.required_text("script"), _limit_s(fields)

    async def act(page: Page) -> Json:
        return {"value": await page.evaluate(script, limit_s)}

    return Answer(to_json(await guest.browser.act(act, limit_s)))


async def close(guest: Guest, _request: Request) -> Answer:
    await guest.browser.close()
    return Answer()


def _limit_s(fields: Fields) -> float:
    return (fields.number("limit_ms", 100, 300_000) or _LIMIT_MS) / 1000


def _selector(fields: Fields) -> str:
    selector = fields.required_text("selector")
    if len(selector) > _SELECTOR_CHARS:
        raise bad_field("selector", f"has {len(selector)} characters; the limit is {_SELECTOR_CHARS}")
    return selector


def _url(fields: Fields) -> str:
    """An address of the web: a browser also shows files of the machine, and pages of its own that crash it."""
    url = fields.required_text("url")
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_web = False
    if not is_web or len(url) > URL_CHARS or any(char.isspace() or not char.isprintable() for char in url):
        raise bad_field("url", f"{ascii(url)[:200]} is not an http or https address of at most {URL_CHARS} characters")
    return url

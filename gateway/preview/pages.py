"""What a browser shows when a preview cannot be shown: one short page, with nothing from elsewhere."""

from collections.abc import Iterable
from html import escape
from string import Template

from contract.errors import WarrenError

WAITING = frozenset({"port_closed", "host_unreachable", "no_capacity"})  # what may be over in a moment
HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
TITLES = {
    401: "This preview is private",
    404: "There is no such preview",
    409: "The sandbox is not running",
    421: "This preview is somewhere else",
    501: "The sandbox is too old for previews",
    502: "Nothing answers here yet",
    503: "The sandbox cannot be reached now",
}
PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
$refresh<title>$title</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 34rem; margin: 18vh auto 0; padding: 0 1.25rem; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
small { opacity: .65; }
</style></head>
<body><h1>$title</h1><p>$message</p>$more<p><small>$status $code · request $request</small></p></body></html>
""")
REFRESH = '<meta http-equiv="refresh" content="3">\n'
AGAIN = "<p>This page looks again every three seconds.</p>"


def wants_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether it is a person who asks."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in headers)


def page(error: WarrenError, request_id: str) -> bytes:
    is_waiting = error.code in WAITING
    return PAGE.substitute(
        title=escape(TITLES.get(error.status, "This preview cannot be shown")),
        message=escape(error.message),
        refresh=REFRESH if is_waiting else "",
        more=AGAIN if is_waiting else "",
        status=error.status,
        code=escape(error.code),
        request=escape(request_id),
    ).encode()

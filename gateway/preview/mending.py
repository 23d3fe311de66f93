"""What changes in the headers of a preview, so that a service need not know that it is seen through one. No I/O.

To the service: it is asked as `localhost:PORT`, so that servers which look at the host name let everybody in; our keys
and passes are gone. To the browser: redirects and cookies lead back here, and nothing reaches beyond this preview.
"""

import re
from collections.abc import Callable, Iterable

from contract.keys import SECRET
from gateway.headers import Pairs
from gateway.preview.where import Where

COOKIE = "warren-preview"
BEARER = b"bearer "
KEY_HEADERS = (b"authorization", b"x-api-key")
# Not pages of the gateway's origin: a page in the path form has no origin at all, so it cannot act as one of ours.
SANDBOX = (
    b"sandbox allow-downloads allow-forms allow-modals allow-orientation-lock allow-pointer-lock allow-popups"
    b" allow-popups-to-escape-sandbox allow-presentation allow-scripts"
)
# What a service says for the whole host name, or for all names beside it.
REACHING = frozenset(
    {
        b"alt-svc", b"clear-site-data", b"strict-transport-security", b"nel", b"report-to", b"reporting-endpoints",
        b"public-key-pins", b"service-worker-allowed", b"origin-agent-cluster", b"accept-ch", b"critical-ch",
    }
)  # fmt: skip
DOMAIN = re.compile(r";\s*domain\s*=[^;]*", re.IGNORECASE)
PATH = re.compile(r";\s*path\s*=([^;]*)", re.IGNORECASE)
ABSOLUTE = re.compile(r"(?:https?:)?//([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """The headers that have a key of ours in them. What else is there under these names is for the service."""
    return [pair for pair in headers if pair[0] in KEY_HEADERS and _is_key(*pair)]


def _is_key(name: bytes, value: bytes) -> bool:
    if name == b"authorization":
        if value[: len(BEARER)].lower() != BEARER:
            return False
        value = value[len(BEARER) :]
    return SECRET.fullmatch(value.strip().decode("latin-1")) is not None


def passes_in(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """All passes that a browser sends, each once: a page of another preview may have set some."""
    return list(dict.fromkeys(value.strip() for name, value in _cookies(headers) if name == COOKIE))


def to_service(headers: Iterable[tuple[bytes, bytes]], where: Where) -> Pairs:
    """A client's headers as the service gets them."""
    headers = list(headers)
    kept: Pairs = []
    for name, value in headers:
        if name == b"cookie" or (name in KEY_HEADERS and _is_key(name, value)):
            continue
        kept.append((name, _as_its_own(value, where) if name in (b"origin", b"referer") else value))
    if cookies := _cookies_for(headers, where):
        kept.append((b"cookie", cookies))
    return kept


def _as_its_own(value: bytes, where: Where) -> bytes:
    """An address of this preview as the service knows it; any other as it is, so that the service can refuse it."""
    text = value.decode("latin-1")
    begin = where.origin + where.prefix
    if text == where.origin:
        return where.own_origin.encode()
    if text.startswith(begin + "/"):
        return (where.own_origin + text.removeprefix(begin)).encode("latin-1")
    return value


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    lines = [value.decode("latin-1") for name, value in headers if name == b"cookie"]
    pairs = [item.partition("=") for line in lines for item in line.split(";") if item.strip()]
    return [(name.strip(), value) for name, _, value in pairs]


def _cookies_for(headers: Iterable[tuple[bytes, bytes]], where: Where) -> bytes:
    """The service's own cookies. By path, all previews share a host name: there each has names of its own."""
    begin = _jar(where)
    own = [(name.removeprefix(begin), value) for name, value in _cookies(headers) if name.startswith(begin)]
    return "; ".join(f"{name}={value}" for name, value in own if name != COOKIE).encode("latin-1")


def _jar(where: Where) -> str:
    return f"wp.{where.label}." if where.prefix else ""


def to_browser(headers: Pairs, where: Where, *, is_public: bool, from_nowhere: bool) -> Pairs:
    """A service's headers as the client gets them. `from_nowhere`: the page that asks has no origin."""
    told: Pairs = []
    for name, value in headers:
        if name in REACHING:
            continue
        if name in MENDED:
            mended = MENDED[name](value.decode("latin-1"), where)
            if mended is not None:
                told.append((name, mended.encode("latin-1")))
        else:
            told.append((name, value))
    if where.prefix:
        told.append((b"content-security-policy", SANDBOX))
        if is_public and from_nowhere and not any(name == b"access-control-allow-origin" for name, _ in told):
            told.append((b"access-control-allow-origin", b"null"))
    return told


def _location(value: str, where: Where) -> str:
    """Where a redirect leads, if that is in this preview."""
    absolute = ABSOLUTE.fullmatch(value)
    if absolute is not None:
        names = {f"{name}:{where.port}" for name in ("localhost", "127.0.0.1", "[::1]")}
        if where.port == 80:
            names |= {"localhost", "127.0.0.1", "[::1]"}
        if absolute[1].lower() not in names and f"//{absolute[1].lower()}" not in where.origin:
            return value
        value = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    if not value.startswith("/") or value.startswith("//"):
        return value
    if where.prefix and (value == where.prefix or value.startswith(f"{where.prefix}/")):
        return value  # it knows X-Forwarded-Prefix
    return where.prefix + value


def _set_cookie(value: str, where: Where) -> str | None:
    """A cookie for this preview only; None for one that would take the place of ours."""
    name, equals, rest = value.partition("=")
    if not equals or name.strip() == COOKIE:
        return None
    rest = DOMAIN.sub("", rest)
    if where.prefix:
        rest = PATH.sub(lambda found: f"; Path={_cookie_path(found[1], where)}", rest)
    return f"{_jar(where)}{name.strip()}={rest}"


def _cookie_path(path: str, where: Where) -> str:
    path = path.strip().strip('"')
    if path == where.prefix or path.startswith(f"{where.prefix}/"):
        return path
    return where.prefix + (path if path.startswith("/") else "/")


MENDED: dict[bytes, Callable[[str, Where], str | None]] = {b"location": _location, b"set-cookie": _set_cookie}

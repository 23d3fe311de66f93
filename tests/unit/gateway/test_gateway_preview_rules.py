"""Which preview a request is for, and what changes in its headers: pure functions."""

from typing import Any

import pytest

from contract.errors import WarrenError
from gateway.preview.mending import keys_in, passes_in, to_browser, to_service
from gateway.preview.origins import is_from_elsewhere
from gateway.preview.where import Where, where

ID = "sb-abcdefghijklmn23"
KEY = "wrn_" + "0" * 40
BY_HOST = Where(ID, 3000, "/", "", f"https://3000-{ID}.box.dev")
BY_PATH = Where(ID, 3000, "/", f"/p/{ID}/3000", "https://box.dev")


def asked(host: str | list[str], path: str = "/", query: str = "", scheme: str = "https") -> dict[str, Any]:
    hosts = [host] if isinstance(host, str) else host
    headers = [(b"host", each.encode("latin-1")) for each in hosts]
    return {"headers": headers, "raw_path": path.encode(), "query_string": query.encode(), "scheme": scheme}


def found(*args: Any, domain: str | None = "box.dev", **more: Any) -> Where:
    told = where(asked(*args, **more), domain)
    assert told is not None
    return told


def told(*headers: tuple[str, str], at: Where = BY_HOST, **more: bool) -> list[tuple[str, str]]:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    mended = to_browser(pairs, at, **{"is_public": False, "from_nowhere": False, **more})
    return [(name.decode(), value.decode()) for name, value in mended]


def sent(*headers: tuple[str, str], at: Where = BY_HOST) -> list[tuple[str, str]]:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    return [(name.decode(), value.decode()) for name, value in to_service(pairs, at)]


@pytest.mark.parametrize("host", [f"3000-{ID}.box.dev", f"3000-{ID}.BOX.dev:8443", f"3000-{ID.upper()}.box.dev"])
def test_a_host_name_says_which_port_of_which_sandbox(host: str) -> None:
    it = found(host, "/a%20b/c", "x=1&y")
    assert (it.sandbox, it.port, it.target, it.prefix) == (ID, 3000, "/a%20b/c?x=1&y", "")
    assert it.origin == f"https://{host.lower()}"


@pytest.mark.parametrize(
    ("path", "target"),
    [("", ""), ("/", "/"), ("/a/b%2Fc", "/a/b%2Fc"), ("//x", "//x"), ("/p/other", "/p/other")],
)
def test_a_path_says_it_too_and_its_prefix_is_gone(path: str, target: str) -> None:
    it = found("box.dev", f"/p/{ID}/3000{path}")
    assert (it.sandbox, it.port, it.target, it.prefix) == (ID, 3000, target, f"/p/{ID}/3000")


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        (f"0-{ID}.box.dev", "/", 400),
        (f"99999-{ID}.box.dev", "/", 400),
        (f"03000-{ID}.box.dev", "/", 400),
        (f"3000-{ID}x.box.dev", "/", 404),
        ("3000-sb-UPPER018UPPER01.box.dev", "/", 404),
        ("www.box.dev", "/", 404),
        (f"a.3000-{ID}.box.dev", "/", 404),
        (f"3000-{ID}.evil.dev", "/", 421),
        (f"3000-{ID}.box.dev.evil.dev", "/", 421),
        ("box.dev", f"/p/{ID}/0/", 400),
        ("box.dev", f"/p/{ID}/70000/", 400),
        ("box.dev", "/p/sb-nonsense/3000/", 404),
        ("box.dev", "/p/", 404),
        ("box.dev", f"/p/{ID}", 404),
        ([f"3000-{ID}.box.dev", "box.dev"], "/", 400),
    ],
)
def test_what_only_looks_like_a_preview_is_refused(host: str | list[str], path: str, status: int) -> None:
    with pytest.raises(WarrenError) as info:
        where(asked(host, path), "box.dev")
    assert info.value.status == status


@pytest.mark.parametrize(("host", "path"), [("box.dev", "/v1/sandboxes"), ("127.0.0.1:8080", "/"), ("", "/px")])
def test_what_is_no_preview_is_left_to_the_gateway(host: str, path: str) -> None:
    assert where(asked(host, path), "box.dev") is None


def test_without_a_domain_there_are_previews_by_path_only() -> None:
    assert found("anything", f"/p/{ID}/80/", domain=None).port == 80


def test_the_pass_is_taken_out_of_the_query_and_the_rest_stays_as_it_was() -> None:
    it = found(f"3000-{ID}.box.dev", "/x", "a=%20&warren-pass=wt1.a.b&b&c=")
    assert (it.given, it.target) == ("wt1.a.b", "/x?a=%20&b&c=")
    assert found(f"3000-{ID}.box.dev", "/", "warren-pass=x").target == "/"


def test_our_keys_and_passes_never_reach_a_service() -> None:
    given = [
        ("authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer  e2b_{'0' * 40}"),
        ("x-api-key", KEY),
        ("cookie", "warren-preview=wt1.secret; theirs=1"),
        ("cookie", "warren-preview=other"),
    ]
    assert sent(*given) == [("cookie", "theirs=1")]
    assert len(keys_in([(name.encode(), value.encode()) for name, value in given])) == 3
    assert passes_in([(b"cookie", b"a=1; warren-preview=x; warren-preview=y")]) == ["x", "y"]


def test_no_number_of_passes_hides_the_one_behind_them() -> None:
    many = "; ".join(f"warren-preview={number}" for number in range(500))
    assert passes_in([(b"cookie", f"{many}; warren-preview=0; warren-preview=last".encode())])[500:] == ["last"]


OWN = (b"origin", BY_HOST.origin.encode())
BESIDE = (b"origin", b"https://3000-sb-bbbbbbbbbbbbbbbb.box.dev")
NOWHERE = (b"origin", b"null")
SAME, SITE = (b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"same-site")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", None])
@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ([], False),
        ([OWN], False),
        ([NOWHERE, SAME], False),
        ([BESIDE], True),
        ([BESIDE, SAME], True),
        ([OWN, BESIDE], True),
        ([NOWHERE], True),
        ([NOWHERE, SITE], True),
        ([NOWHERE, SITE, SAME], True),
        ([(b"origin", OWN[1] + b":8443")], True),
        ([(b"origin", OWN[1].replace(b"https", b"http"))], True),
        ([(b"origin", b"")], True),
    ],
)
def test_a_page_beside_a_preview_may_do_no_more_than_ask_to_read(
    method: str | None, headers: list[tuple[bytes, bytes]], elsewhere: bool
) -> None:
    scope = {"type": "websocket"} if method is None else {"type": "http", "method": method}
    assert is_from_elsewhere(BY_HOST, {**scope, "headers": headers}) == (elsewhere and method != "GET")


def test_a_page_over_https_is_its_own_where_something_else_ends_tls() -> None:
    over_http = Where(ID, 3000, "/", "", f"http://3000-{ID}.box.dev")
    assert not is_from_elsewhere(over_http, {"type": "websocket", "headers": [OWN]})
    assert is_from_elsewhere(over_http, {"type": "websocket", "headers": [BESIDE]})


def test_the_users_own_credentials_do() -> None:
    given = [("authorization", "Bearer eyJ.jwt"), ("x-api-key", "sk-theirs"), ("authorization", "Basic dTpw")]
    assert sent(*given) == given
    assert sent(("cookie", "a=1; b=x=y")) == [("cookie", "a=1; b=x=y")]


def test_by_path_a_service_gets_the_cookies_that_it_set_and_no_others() -> None:
    jar = f"wp.3000-{ID}."
    given = ("cookie", f"session=dashboard; {jar}sid=1; wp.4000-{ID}.sid=2; {jar}warren-preview=x; warren-preview=y")
    assert sent(given, at=BY_PATH) == [("cookie", "sid=1")]


@pytest.mark.parametrize(
    ("at", "value", "seen"),
    [
        (BY_HOST, f"https://3000-{ID}.box.dev", "http://localhost:3000"),
        (BY_HOST, f"https://3000-{ID}.box.dev/a?b", "http://localhost:3000/a?b"),
        (BY_PATH, f"https://box.dev/p/{ID}/3000/a", "http://localhost:3000/a"),
        (BY_HOST, "https://evil.dev", "https://evil.dev"),
        (BY_HOST, f"https://3000-{ID}.box.dev.evil.dev", f"https://3000-{ID}.box.dev.evil.dev"),
        (BY_PATH, "null", "null"),
    ],
)
def test_a_service_knows_its_own_pages_and_sees_foreign_ones_as_they_are(at: Where, value: str, seen: str) -> None:
    assert sent(("origin", value), at=at) == [("origin", seen)]


@pytest.mark.parametrize(
    ("at", "location", "seen"),
    [
        (BY_HOST, "/login", "/login"),
        (BY_HOST, "http://localhost:3000/login?x", "/login?x"),
        (BY_HOST, "https://127.0.0.1:3000", "/"),
        (BY_HOST, "https://elsewhere.dev/", "https://elsewhere.dev/"),
        (BY_HOST, "http://localhost:4000/", "http://localhost:4000/"),
        (BY_PATH, "/login", f"/p/{ID}/3000/login"),
        (BY_PATH, f"/p/{ID}/3000/login", f"/p/{ID}/3000/login"),
        (BY_PATH, "http://localhost:3000/login", f"/p/{ID}/3000/login"),
        (BY_PATH, "https://box.dev/login", f"/p/{ID}/3000/login"),
        (BY_PATH, "login", "login"),
        (BY_PATH, "//elsewhere.dev/x", "//elsewhere.dev/x"),
    ],
)
def test_a_redirect_leads_back_into_the_preview(at: Where, location: str, seen: str) -> None:
    assert dict(told(("location", location), at=at))["location"] == seen


@pytest.mark.parametrize(
    ("at", "cookie", "seen"),
    [
        (BY_HOST, "sid=1; Path=/; HttpOnly", "sid=1; Path=/; HttpOnly"),
        (BY_HOST, "sid=1; Domain=.box.dev; Path=/", "sid=1; Path=/"),
        (BY_HOST, "sid=1;domain = box.dev", "sid=1"),
        (BY_HOST, "warren-preview=evil; Path=/", None),
        (BY_PATH, "sid=1; Path=/; Secure", f"wp.3000-{ID}.sid=1; Path=/p/{ID}/3000/; Secure"),
        (BY_PATH, "sid=1; path=/app", f"wp.3000-{ID}.sid=1; Path=/p/{ID}/3000/app"),
        (BY_PATH, f"sid=1; Path=/p/{ID}/3000/x", f"wp.3000-{ID}.sid=1; Path=/p/{ID}/3000/x"),
        (BY_PATH, "sid=1", f"wp.3000-{ID}.sid=1"),
        (BY_PATH, "warren-preview=evil", None),
    ],
)
def test_a_cookie_stays_in_its_preview(at: Where, cookie: str, seen: str | None) -> None:
    assert dict(told(("set-cookie", cookie), at=at)).get("set-cookie") == seen


def test_what_a_service_says_for_more_than_its_own_pages_is_dropped() -> None:
    given = [("clear-site-data", '"*"'), ("strict-transport-security", "max-age=9; includeSubDomains"), ("nel", "{}")]
    assert told(*given, ("etag", "x")) == [("etag", "x")]


def test_by_path_a_page_has_no_origin_whatever_it_says() -> None:
    policies = [value for name, value in told(("content-security-policy", "sandbox allow-same-origin"), at=BY_PATH)]
    assert len(policies) == 2
    assert policies[1].startswith("sandbox ")
    assert "allow-same-origin" not in policies[1]
    assert told(at=BY_HOST) == []


def test_a_page_without_an_origin_may_read_what_is_public_and_nothing_private() -> None:
    allowed = ("access-control-allow-origin", "null")
    assert allowed in told(at=BY_PATH, is_public=True, from_nowhere=True)
    assert allowed not in told(at=BY_PATH, is_public=False, from_nowhere=True)
    assert allowed not in told(at=BY_PATH, is_public=True, from_nowhere=False)
    assert allowed not in told(at=BY_HOST, is_public=True, from_nowhere=True)

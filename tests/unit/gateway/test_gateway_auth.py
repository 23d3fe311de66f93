"""Keys: which request has which caller, and how each wrong one is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract.keys import Forbidden, Key, NoKey, Scope, key_id
from gateway.auth import Auth, Caller, Throttled, TooFast, WrongKey, need, secret_of
from gateway.rates import WRONG_KEYS

DIGITS = "0123456789abcdef" * 2 + "01234567"
SECRET = f"wrn_{DIGITS}"
WRONG = f"wrn_{'f' * 40}"
KEY = Key(key_id(SECRET), "red", rate=5)
NOW_MS = 1_000_000


def scope(*headers: tuple[str, str], kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers]}


def bearer(secret: str) -> dict[str, Any]:
    return scope(("authorization", f"Bearer {secret}"))


def auth_with(*keys: Key, visitor_rate: int = 0, clock_s: Callable[[], float] = lambda: 100.0) -> Auth:
    auth = Auth(now_ms=lambda: NOW_MS, visitor_rate=visitor_rate, clock_s=clock_s)
    auth.know({key.id: key for key in keys})
    return auth


def asking(auth: Auth, request: dict[str, Any]) -> Caller:
    return auth.caller(secret_of(request["headers"], request["type"] == "websocket"), "192.0.2.1")


@pytest.mark.parametrize(
    "request_scope",
    [
        bearer(SECRET),
        scope(("authorization", f"bearer {SECRET}")),
        scope(("x-api-key", SECRET)),
        scope(("x-api-key", f"e2b_{DIGITS}")),
        scope(("sec-websocket-protocol", f"warren, warren-key.{SECRET}"), kind="websocket"),
    ],
)
def test_a_key_is_found_wherever_clients_may_put_it(request_scope: dict[str, Any]) -> None:
    assert asking(auth_with(KEY), request_scope).owner == "red"


def test_a_key_in_a_subprotocol_is_for_websockets_only() -> None:
    with pytest.raises(NoKey):
        asking(auth_with(KEY), scope(("sec-websocket-protocol", f"warren-key.{SECRET}")))


@pytest.mark.parametrize(
    ("key", "action"),
    [
        (replace(KEY, active=False), "gateway.revoked_key"),
        (replace(KEY, expires_ms=NOW_MS), "gateway.expired_key"),
        (replace(KEY, id="0" * 64), "gateway.bad_key"),
    ],
)
def test_a_key_that_is_not_good_is_refused(key: Key, action: str) -> None:
    with pytest.raises(WrongKey) as caught:
        asking(auth_with(key), bearer(SECRET))
    assert caught.value.status == 401
    assert caught.value.action == action


@pytest.mark.parametrize("text", ["", "wrn_", "wrn_x", SECRET + "0", SECRET.upper(), "e2b_" + "é" * 40, "x" * 10_000])
def test_what_is_no_key_is_refused_and_not_told_again(text: str) -> None:
    with pytest.raises(WrongKey) as caught:
        asking(auth_with(KEY), {"type": "http", "headers": [(b"x-api-key", text.encode())]})
    assert len(text) < 5 or text not in str(caught.value.body())
    assert caught.value.known == {}


def test_a_refusal_has_at_most_eight_digits_of_a_hash() -> None:
    with pytest.raises(WrongKey) as caught:
        asking(auth_with(KEY), bearer(WRONG))
    assert caught.value.known == {"key": key_id(WRONG)[:8]}


def test_a_good_key_works_where_wrong_ones_are_throttled() -> None:
    auth = auth_with(KEY)
    for _ in range(WRONG_KEYS):
        with pytest.raises(WrongKey):
            asking(auth, bearer(WRONG))
    with pytest.raises(Throttled) as caught:
        asking(auth, bearer(WRONG))
    assert caught.value.status == 429
    assert caught.value.retry_after_s > 0
    assert asking(auth, bearer(SECRET)).owner == "red"


def test_a_key_has_its_rate_and_is_told_of_it() -> None:
    auth = auth_with(KEY)
    told = [dict(asking(auth, bearer(SECRET)).headers)[b"ratelimit-remaining"] for _ in range(10)]
    assert told == [b"%d" % left for left in reversed(range(10))]
    with pytest.raises(TooFast) as caught:
        asking(auth, bearer(SECRET))
    assert dict(caught.value.headers)[b"ratelimit-remaining"] == b"0"
    assert caught.value.retry_after_s == 1


def test_a_scope_that_the_key_has_not_is_forbidden() -> None:
    caller = asking(auth_with(KEY), bearer(SECRET))
    need(caller, Scope.SANDBOXES)
    with pytest.raises(Forbidden):
        need(caller, Scope.ADMIN)


def test_a_request_without_a_key_has_none() -> None:
    assert secret_of([(b"authorization", b"Basic abc"), (b"accept", b"*/*")], is_socket=True) is None


def test_an_address_without_a_key_has_a_rate_of_its_own_and_an_ipv6_network_is_one() -> None:
    now_s = 100.0
    auth = auth_with(KEY, visitor_rate=2, clock_s=lambda: now_s)
    for address in ["192.0.2.1"] * 4 + ["2001:db8::1", "2001:db8::2"] * 2:
        auth.visitor(address)
    for address in ("192.0.2.1", "2001:db8::3"):
        with pytest.raises(TooFast) as caught:
            auth.visitor(address)
        assert caught.value.retry_after_s == 1
        assert (b"ratelimit-limit", b"4") in caught.value.headers
    auth.visitor("192.0.2.2")
    assert asking(auth, bearer(SECRET)).owner == "red", "a key from the same address has its own"
    now_s += 0.5
    auth.visitor("192.0.2.1")


def test_without_a_rate_visitors_are_not_counted() -> None:
    auth = auth_with(visitor_rate=0)
    for _ in range(10_000):
        auth.visitor("192.0.2.1")

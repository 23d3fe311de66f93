"""Who asks: from the key in a request to its record, or the refusal that it deserves."""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from contract.errors import RateLimited
from contract.keys import Forbidden, Key, NoKey, Scope, key_id
from gateway.rates import Buckets, WrongKeys, network_of

BEARER = b"bearer "
# What a page in a browser can set on a WebSocket: a subprotocol. A key in an address would be in everybody's logs.
SUBPROTOCOL = "warren-key."
PLAIN = "warren"  # offered beside it, for us to take
NO_KEY = "this needs a key: Authorization: Bearer wrn_…, or X-API-Key"

Headers = Iterable[tuple[bytes, bytes]]
Pairs = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Caller:
    """Who asks, as their key says, and what every reply to them tells of their rate."""

    key: Key
    headers: Pairs

    @property
    def owner(self) -> str:
        return self.key.owner


class WrongKey(NoKey):
    """A refusal that is written down: `action` and `known` go into the audit, the secret never does."""

    def __init__(self, message: str, action: str, known: dict[str, str]) -> None:
        super().__init__(message)
        self.action = action
        self.known = known


class Throttled(RateLimited):
    """Too many wrong keys from one address."""

    action = "gateway.throttled"


class TooFast(RateLimited):
    """More requests than the rate of a key, or of an address without one."""

    def __init__(self, message: str, *, retry_after_s: int, headers: Pairs) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.headers = headers


class Auth:
    """Keys as the registry last had them; buckets and counts of this gateway alone."""

    def __init__(
        self, *, now_ms: Callable[[], int], visitor_rate: int, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._now_ms = now_ms
        self._visitor_rate = visitor_rate
        self._clock_s = clock_s
        self._keys: Mapping[str, Key] = {}
        self.changes = 0  # of keys by this gateway itself: what was read before the last one is older than what we know
        self._right: dict[str | None, Key] = {}  # by secret, since the last look at the registry
        self._buckets = Buckets()
        self._visitors = Buckets()  # not among those of keys: many strangers make no key's bucket full again
        self._wrong = WrongKeys()

    def know(self, keys: Mapping[str, Key]) -> None:
        """From now on these are all keys."""
        self._keys = keys
        self._right.clear()

    def change(self, key: Key) -> None:
        """This gateway has written that record: it counts from now on."""
        self.changes += 1
        self.know({**self._keys, key.id: key})

    @property
    def keys(self) -> Mapping[str, Key]:
        return self._keys

    def caller(self, secret: str | None, address: str) -> Caller:
        """Who asks, after one token of their bucket. Raises `NoKey`, `Throttled` or `TooFast`."""
        key = self._right.get(secret) or self._key(secret, address)
        found = self.known(secret)
        if found is not None:
            return found
        if self._is_over(key):
            known = {"key": key.id[:8], "owner": key.owner}
            raise self._wrong_from(address, WrongKey("the key is over", "gateway.expired_key", known))
        bucket = self._buckets.of(key.id, key.rate, self._clock_s())
        message = f"more than {key.rate} requests a second with this key"
        raise TooFast(message, retry_after_s=bucket.wait_s, headers=bucket.headers())

    def visitor(self, address: str) -> None:
        """Somebody without a key takes one token of their address's bucket. Raises `TooFast`. Rate 0 is no limit."""
        rate = self._visitor_rate
        if not rate:
            return
        now_s = self._clock_s()
        bucket = self._visitors.of(network_of(address), rate, now_s)
        if not bucket.take(now_s):
            message = f"more than {rate} requests a second without a key from this address"
            raise TooFast(message, retry_after_s=bucket.wait_s, headers=bucket.headers())

    def known(self, secret: str | None) -> Caller | None:
        """As `caller`, for a key that was right before; None if there is anything to say against it."""
        key = self._right.get(secret)
        if key is None or self._is_over(key):
            return None
        now_s = self._clock_s()
        bucket = self._buckets.of(key.id, key.rate, now_s)
        return Caller(key, bucket.headers()) if bucket.take(now_s) else None

    def _is_over(self, key: Key) -> bool:
        return key.expires_ms is not None and key.expires_ms <= self._now_ms()

    def _key(self, secret: str | None, address: str) -> Key:
        """The key that is right, remembered until the registry is next looked at."""
        if secret is None:
            raise NoKey(NO_KEY)
        try:
            asked = key_id(secret)
        except NoKey as error:
            raise self._wrong_from(address, WrongKey(error.message, "gateway.bad_key", {})) from None
        key = self._keys.get(asked)
        if key is None or not hmac.compare_digest(key.id, asked):
            raise self._wrong_from(address, WrongKey("no such key", "gateway.bad_key", {"key": asked[:8]}))
        if not key.active:
            known = {"key": asked[:8], "owner": key.owner}
            raise self._wrong_from(address, WrongKey("the key was revoked", "gateway.revoked_key", known))
        self._right[secret] = key
        return key

    def _wrong_from(self, address: str, error: WrongKey) -> NoKey | Throttled:
        """The refusal, and what becomes of it where there were too many from one address."""
        wait_s = self._wrong.add(address, self._clock_s())
        return Throttled("too many wrong keys from this address", retry_after_s=wait_s) if wait_s else error


def need(caller: Caller, scope: Scope) -> None:
    """Raises `Forbidden` unless the caller's key is for this."""
    if scope not in caller.key.scopes:
        raise Forbidden(f"this needs a key with the scope {scope}", scope=scope)


def secret_of(headers: Headers, is_socket: bool) -> str | None:
    """The key in a request, whatever it looks like. None if there is none."""
    for name, value in headers:
        if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
            return value[len(BEARER) :].strip().decode("latin-1")
        if name == b"x-api-key":
            return value.decode("latin-1")
        if is_socket and name == b"sec-websocket-protocol":
            for offered in value.decode("latin-1").split(","):
                if offered.strip().startswith(SUBPROTOCOL):
                    return offered.strip().removeprefix(SUBPROTOCOL)
    return None

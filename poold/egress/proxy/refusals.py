"""How a guest is told that something is refused, and what helps. No I/O."""

from poold.egress.addresses import Address

_STATUS = {
    "bad_request": "400 Bad Request",
    "bad_name": "400 Bad Request",
    "not_http": "400 Bad Request",
    "resolve_failed": "502 Bad Gateway",
    "connect_failed": "502 Bad Gateway",
    "too_many": "429 Too Many Requests",
    "too_fast": "429 Too Many Requests",
    "byte_limit": "429 Too Many Requests",
    "idle": "408 Request Timeout",
}
_HELPS = {
    "policy": "allow it in the sandbox's network policy (PUT /v1/sandboxes/ID/network)",
    "private_address": "only the host's operator can allow private addresses",
    "forbidden_address": "no policy allows this address",
    "own_address": "no policy allows the host's own addresses",
    "bad_name": "use a host name of letters, digits, dots and hyphens",
    "sni_mismatch": "the name in the TLS handshake has to be the one that was asked for",
    "no_sni": "send the host name in the TLS handshake (SNI)",
    "ech": "turn encrypted ClientHello off",
    "host_mismatch": "the Host header has to be the host that was asked for",
    "not_tls": "only TLS is spoken at this port",
    "h2c": "use HTTP/1.1, or HTTP/2 inside TLS",
    "resolve_failed": "the host of this sandbox cannot resolve the name",
    "connect_failed": "nobody answers there",
    "too_many": "close connections first, or raise limits.connections",
    "too_fast": "wait a second, or raise limits.connects_per_sec",
    "byte_limit": "raise limits.up_mb or limits.down_mb",
}
# A fatal alert, access_denied, in a record of TLS 1.2, which is how all versions write it this early.
TLS_ALERT = bytes([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 49])


class Refusal(Exception):
    """Something is refused. `why` is one word for programs."""

    def __init__(self, why: str, told: str, address: Address | None = None) -> None:
        super().__init__(told)
        self.why = why
        self.told = told
        self.address = address


def answer(refusal: Refusal) -> bytes:
    """What HTTP says. It is the last thing on its connection."""
    helps = _HELPS.get(refusal.why)
    said = f"warren: refused ({refusal.why}): {refusal.told}" + (f"; {helps}" if helps else "")
    body = "".join(char if " " <= char <= "~" else "?" for char in said).encode("ascii") + b"\n"
    head = (
        f"HTTP/1.1 {_STATUS.get(refusal.why, '403 Forbidden')}\r\n"
        f"Warren-Egress: refused; why={refusal.why}\r\n"
        "Content-Type: text/plain; charset=us-ascii\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body

"""Which headers pass: what belongs to one connection, and what says who asks, ends here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contract.tickets import HEADER as TICKET
from gateway.errors import BadFraming
from gateway.upstream.parts import header_block

Pairs = list[tuple[bytes, bytes]]

# Of one connection, and what we say ourselves.
HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
TRUE_ONES = frozenset(
    {
        b"host", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-prefix",
        b"x-forwarded-port", b"x-real-ip", b"x-request-id", b"expect",
    }
)  # fmt: skip
CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"cookie"})
OURS = b"warren-"
TICKET_NAME = TICKET.encode()

NOT_PASSED = HOP_BY_HOP | TRUE_ONES | {b"content-length"}
NOT_TO_HOSTS = NOT_PASSED | CREDENTIALS
LENGTH = re.compile(rb"[0-9]{1,18}")
MAX_FORWARDED_HOST = 260


@dataclass(slots=True)
class Asked:
    """A client's headers as they go to the host, without those that say how long the body is."""

    headers: Pairs
    length: int | None
    is_coded: bool  # the body comes in chunks
    block: bytes  # the headers as they are sent


def asked_headers(scope: Any, given: Sequence[tuple[bytes, bytes]], *, keep_credentials: bool = False) -> Asked:
    """What of a client's headers goes to the host, with what is true about the client instead of what it says."""
    refused = NOT_PASSED if keep_credentials else NOT_TO_HOSTS
    passed: Pairs = []
    seen: Pairs = []
    for pair in given:
        name = pair[0]
        if name in refused:
            seen.append(pair)
        elif not name.startswith(OURS):
            passed.append(pair)
    host, length, is_coded, named = _framing(seen)
    if named:
        passed = without(passed, named)
    client = scope["client"]
    if client and client[0]:
        passed.append((b"x-forwarded-for", client[0].encode("latin-1")))
    passed.append((b"x-forwarded-proto", b"https" if scope["scheme"] in ("https", "wss") else b"http"))
    passed.append((b"x-forwarded-host", host[:MAX_FORWARDED_HOST]))
    return Asked(passed, length, is_coded, header_block(passed))


def _framing(seen: Pairs) -> tuple[bytes, int | None, bool, bytes]:
    """Host, length, whether it is coded, and what `Connection` names. Refuses what can be read in two ways.

    So does our server. This is what is passed on, whoever has served it.
    """
    hosts: list[bytes] = []
    lengths: list[bytes] = []
    is_coded = False
    named = b""
    for name, value in seen:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            is_coded = True
        elif name == b"connection":
            named += value + b","
    if len(lengths) > 1 or (lengths and (is_coded or not LENGTH.fullmatch(lengths[0]))):
        raise BadFraming("the request does not say in one way how long its body is")
    if len(hosts) != 1 or not hosts[0]:
        raise BadFraming("the request must have one Host header")
    return hosts[0], int(lengths[0]) if lengths else None, is_coded, named


def answer_headers(given: Sequence[tuple[bytes, bytes]]) -> Pairs:
    """What of a host's headers goes to the client."""
    passed: Pairs = []
    named: bytes | None = None
    for pair in given:
        name = pair[0]
        if name in HOP_BY_HOP:
            if name == b"connection":
                named = pair[1] if named is None else named + b"," + pair[1]
        elif name != b"x-request-id" and not name.startswith(OURS):
            passed.append(pair)
    if named is not None:
        passed = without(passed, named)
    return passed


def without(headers: Pairs, named: bytes) -> Pairs:
    """`headers` without those that a `Connection` header names. How long the body is does not go away like that."""
    names = {name.strip().lower() for name in named.split(b",")} - {b"content-length", b"content-type", b"close"}
    return [pair for pair in headers if pair[0] not in names] if names else headers


def check_framing(scope: Any) -> None:
    """Refuse a request whose length or host can be read in two ways. For requests that are not passed on."""
    _framing([pair for pair in scope["headers"] if pair[0] in NOT_PASSED])


def target_of(scope: Any) -> str:
    """The path and query that the client asked for, as it wrote them."""
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"]
    return f"{path}?{query.decode('latin-1')}" if query else path

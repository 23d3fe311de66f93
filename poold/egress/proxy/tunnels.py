"""Connections that carry anything: those that were sent to us without the guest's knowing, and those by CONNECT.

At 443 TLS is spoken, with a name in it, and at 80 HTTP or TLS. At other ports a server may speak first, so it is
dialled at once; but what the guest says first is looked at everywhere: TLS and HTTP have to mean the same name.
"""

import asyncio

from contract.network import MAX_NAME_CHARS
from poold.egress.addresses import Address, literal
from poold.egress.names import canonical, matches
from poold.egress.policy import Allowed, Policy, Target, allows_nothing, decide
from poold.egress.proxy.firsts import First, is_worth_a_look, read_first
from poold.egress.proxy.refusals import Refusal
from poold.egress.proxy.visits import FIRST_BYTES_S, Face, Meant, Visit, read_host
from poold.egress.proxy.web import Conversation, read_head
from poold.egress.wire.hello import Hello, NotTls, read_hello

_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_TLS_PORT, _HTTP_PORT = 443, 80


async def serve_explicit(visit: Visit) -> None:
    """A guest that knows it speaks to a proxy."""
    request = await read_head(visit.client, is_first=True)
    if request is None:
        return
    if request.method != "CONNECT":
        visit.via = "http"
        await Conversation(visit, None).run(request)
        return
    authority = request.authority
    if authority is None or authority.port is None or request.has_body:
        raise Refusal("bad_request", "CONNECT needs a host and a port, and no body")
    visit.said = (authority.host, None, authority.port)
    name, address = read_host(authority.host)
    meant = Meant(authority.port, name, address)
    visit.mean(meant)
    if _is_to_be_reached(visit.gate.policy, meant, knows=True):
        await visit.reach(meant.target)
    await visit.client.send(_CONNECTED)
    visit.face = Face.RAW
    await _carry(visit, meant)


async def serve_transparent(visit: Visit, meant: Meant | None, own: str) -> None:
    """A guest that thinks it speaks to `meant`. `own`: our address in its network."""
    if meant is None:
        raise Refusal("no_destination", "nobody knows where this connection was to go")
    visit.mean(meant)
    if meant.address is not None and str(meant.address) == own:
        raise Refusal("own_address", f"{own} is the proxy itself, and has only its own ports")
    if allows_nothing(visit.gate.policy):  # at once: there is no need to hear more
        raise Refusal("policy", f"{meant.target} is not allowed: nothing is")
    if meant.port not in (_TLS_PORT, _HTTP_PORT) and _is_to_be_reached(visit.gate.policy, meant, knows=False):
        await visit.reach(meant.target)
    await _carry(visit, meant)


def _is_to_be_reached(policy: Policy, meant: Meant, *, knows: bool) -> bool:
    """Whether the first bytes cannot make it any better: it is allowed, or nothing that they say could allow it."""
    if meant.name is None and meant.address is None:
        return False
    if isinstance(decide(policy, meant.target), Allowed):
        return True
    rules = [rule for level in policy.levels for rule in (*level.hosts, *level.registries) if meant.port in rule.ports]
    if meant.name is not None:
        # Some requests of plain HTTP may be allowed, and which one it is has to be seen first.
        return not any((rule.methods or rule.paths) and matches(rule.host, meant.name) for rule in rules)
    return knows or not rules


async def _carry(visit: Visit, meant: Meant) -> None:
    """Look at what the guest says first, and let it pass if it means what is meant."""
    if visit.upstream is not None and visit.flow is not None:
        visit.upstream.pour(visit.client, visit.flow.add_down)
    first = await _first_words(visit, meant.port)
    if first is First.TLS:
        await _carry_tls(visit, meant)
    elif meant.port == _TLS_PORT:
        visit.face = Face.HTTP if first is First.HTTP else Face.RAW
        raise Refusal("not_tls", f"{meant.target} is for TLS, and this is something else")
    elif first is First.H2C:
        raise Refusal("h2c", "HTTP/2 without TLS is not spoken here")
    elif first is First.HTTP:
        await _carry_http(visit, meant)
    elif meant.port == _HTTP_PORT:
        raise Refusal("not_http", f"{meant.target} is for HTTP, and this is something else")
    else:
        await _carry_other(visit, meant)


async def _first_words(visit: Visit, port: int) -> First:
    """What the guest's first bytes are. `UNCLEAR`: it has ended before that was clear."""
    client = visit.client
    if visit.upstream is not None and port not in (_TLS_PORT, _HTTP_PORT) and not client.data:
        await client.more()  # it is the server's turn, or nobody's: the idle time counts
    try:
        async with asyncio.timeout(FIRST_BYTES_S):
            while (first := read_first(bytes(client.data))) is First.UNCLEAR:
                looked = len(client.data)
                while await client.more():
                    if is_worth_a_look(client.data, looked):
                        break
                else:
                    return read_first(bytes(client.data))
            return first
    except TimeoutError:
        raise Refusal("idle", "nothing that makes sense was said for too long") from None


async def _carry_tls(visit: Visit, meant: Meant) -> None:
    visit.face = Face.TLS
    _is_now(visit, "tls")
    hello = await _hello(visit)
    if hello.has_ech:
        raise Refusal("ech", f"{meant.target} is hidden in an encrypted ClientHello")
    name = _sni(visit, hello, meant)
    if meant.name is not None:
        _check_sni(visit, name, meant)
    if visit.upstream is None:
        await visit.reach(_tls_target(visit, name, meant))
    await visit.pour_both()


def _is_now(visit: Visit, via: str) -> None:
    """What was only bytes has turned out to be more."""
    if visit.via == "tcp":
        visit.via = via
        if visit.flow is not None:
            visit.flow.via = via


async def _hello(visit: Visit) -> Hello:
    try:
        async with asyncio.timeout(FIRST_BYTES_S):
            while (hello := read_hello(bytes(visit.client.data))) is None:
                if not await visit.client.more():
                    raise Refusal("not_tls", "the TLS handshake is not whole")
    except NotTls as error:
        raise Refusal("not_tls", f"this is no TLS handshake: {error}") from None
    except TimeoutError:
        raise Refusal("idle", "the TLS handshake took too long") from None
    return hello


def _sni(visit: Visit, hello: Hello, meant: Meant) -> str | None:
    """The canonical name in the handshake. An address is no name: some clients put the one they dial there."""
    if hello.sni is None:
        return None
    # What is too long is not even asked for: names that were looked at are remembered.
    name = canonical(hello.sni) if len(hello.sni) <= MAX_NAME_CHARS + 1 else None
    if name is None and (meant.address is None or literal(hello.sni) != meant.address):
        visit.said = (hello.sni, meant.address, meant.port)
        raise Refusal("bad_name", f"{hello.sni[:80]!r} is not the name of a host")
    return name


def _check_sni(visit: Visit, name: str | None, meant: Meant) -> None:
    if name is None:
        raise Refusal("no_sni", f"{meant.target}: the TLS handshake has no name in it")
    if name != meant.name:
        visit.said = (name, None, meant.port)
        raise Refusal("sni_mismatch", f"the connection is to {meant.name}, and the TLS handshake is for {name}")


def _tls_target(visit: Visit, name: str | None, meant: Meant) -> Target:
    """The name, if it is allowed; or the address, if that is; or the name, to be refused or to wait."""
    policy, by_address = visit.gate.policy, meant.target
    if name is not None:
        by_name = Target(meant.port, name)
        if meant.address is None or isinstance(decide(policy, by_name), Allowed):
            return by_name
        return by_address if isinstance(decide(policy, by_address), Allowed) else by_name
    if _is_no_way(policy, by_address, meant.address):
        raise Refusal("no_sni", f"{by_address}: the TLS handshake has no name in it, and the address is not allowed")
    return by_address


def _is_no_way(policy: Policy, target: Target, address: Address | None) -> bool:
    if address is None:
        return True
    verdict = decide(policy, target)
    return not isinstance(verdict, Allowed) and verdict.why == "policy" and not policy.hold_s


async def _carry_http(visit: Visit, meant: Meant) -> None:
    _is_now(visit, "http")
    if visit.upstream is not None:
        visit.upstream.keep()
    await Conversation(visit, meant).run()


async def _carry_other(visit: Visit, meant: Meant) -> None:
    if meant.name is None and meant.address is None:
        raise Refusal("no_destination", "nobody knows which host this connection is for")
    if visit.upstream is None:
        await visit.reach(meant.target)
    await visit.pour_both()

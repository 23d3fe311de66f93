"""Requests to where callers want to be told of something: one each, over a connection of its own.

A name is resolved here, each of its addresses is looked at, and the one that was looked at is dialled: no private ones
that the operator does not allow, and none of the host itself. Redirects lead nowhere. Certificates are verified.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httptools

from contract.network import HostRule, NetRule
from poold.egress.addresses import Address, Kind, kind_of
from poold.egress.policy import Policy, Refused, Target, decide_address
from poold.tasks.urls import Url

RESOLVE_S = 10.0
CONNECT_S = 10.0  # for one address, and once more for TLS
POST_S = 30.0  # for everything
REST_S = 5.0  # for what follows the head of an answer, of which nobody needs to know
MAX_ANSWER = 64 << 10
MAX_ADDRESSES = 8

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
Connect = Callable[[Address, int], Awaitable[socket.socket]]


class Unreached(Exception):
    """There was no answer. Says why, without any address: those of the host's network are nobody's business."""


@dataclass(frozen=True)
class Ways:
    """How the world is reached, which can be exchanged by those who have no internet, and what may be private in it."""

    resolve: Resolve
    connect: Connect
    is_own: Callable[[Address], bool]
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    private_hosts: tuple[HostRule, ...] = ()
    private_nets: tuple[NetRule, ...] = ()


async def post(ways: Ways, url: Url, headers: Mapping[str, str], body: bytes) -> int:
    """Send `body` and return the status of the answer. Raises `Unreached` and nothing else."""
    try:
        async with asyncio.timeout(POST_S), _open(ways, url) as (reader, writer):
            writer.write(_head(url, headers, len(body)) + body)
            await writer.drain()
            return await _status(reader)
    except TimeoutError:
        raise Unreached(f"{url.authority} did not answer within {POST_S:g} s") from None
    except OSError as error:
        raise Unreached(f"{url.authority}: {_said(error)}") from None


def _head(url: Url, headers: Mapping[str, str], length: int) -> bytes:
    own = {"Host": url.authority, "Content-Length": str(length), "Connection": "close"}
    lines = [f"POST {_target(url)} HTTP/1.1", *(f"{name}: {value}" for name, value in {**own, **headers}.items())]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


def _target(url: Url) -> str:
    return url.target if url.target.startswith("/") else f"/{url.target}"


@contextlib.asynccontextmanager
async def _open(ways: Ways, url: Url) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection during the block. Raises `Unreached` or `OSError`."""
    sock = await _dial(ways, url)
    try:
        tls, name = (ways.tls, url.host) if url.scheme == "https" else (None, None)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_ANSWER, ssl=tls, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _dial(ways: Ways, url: Url) -> socket.socket:
    """A socket to one of the addresses that may be dialled: exactly that one."""
    failure: OSError | None = None
    for address in await _addresses(ways, url):
        try:
            async with asyncio.timeout(CONNECT_S):
                return await ways.connect(address, url.port)
        except OSError as error:
            failure = error
    raise failure or Unreached(f"{url.authority} has no address")


async def _addresses(ways: Ways, url: Url) -> list[Address]:
    """Where it may be dialled. Raises `Unreached` if it may be nowhere."""
    found = [url.address] if url.address is not None else await _resolved(ways, url)
    allowed, refused = [], None
    for each in found[:MAX_ADDRESSES]:
        address = (each.version == 6 and each.ipv4_mapped) or each
        problem = _problem(ways, url, address)
        if problem is None:
            allowed.append(address)
        refused = refused or problem
    if not allowed and refused:
        raise Unreached(refused)
    return allowed


async def _resolved(ways: Ways, url: Url) -> Sequence[Address]:
    try:
        async with asyncio.timeout(RESOLVE_S):
            return await ways.resolve(url.host)
    except TimeoutError:
        raise Unreached(f"{url.host} was not resolved within {RESOLVE_S:g} s") from None
    except OSError as error:
        raise Unreached(f"{url.host} cannot be resolved ({_said(error)})") from None


def _problem(ways: Ways, url: Url, address: Address) -> str | None:
    """Why it must not go there. What the operator allows by name or by number may be this host itself."""
    name = None if url.address is not None else url.host
    policy = Policy(private_hosts=ways.private_hosts, private_nets=ways.private_nets)
    target = Target(url.port, name=name, address=url.address)
    verdict = decide_address(policy, target, address, "")
    if isinstance(verdict, Refused):
        return f"{url.authority} is at an address that is not public"
    if kind_of(address) is Kind.PUBLIC and ways.is_own(address):
        return f"{url.authority} is this host itself"
    return None


class _Answer:
    """What the parser says. An answer may have others before it, which only say that it will come."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status: int | None = None
        self.is_over = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_over = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self.status is None:
            self.status = status

    def on_message_complete(self) -> None:
        self.is_over = self.status is not None


async def _status(reader: asyncio.StreamReader) -> int:
    answer = _Answer()
    left = await _read(reader, answer, MAX_ANSWER, lambda: answer.status is not None)
    if answer.status is None:
        raise Unreached("the answer is none of HTTP" if left < MAX_ANSWER else "there was no answer")
    # A server that is cut off in the middle of its answer may take that for a failure.
    with contextlib.suppress(OSError):
        async with asyncio.timeout(REST_S):
            await _read(reader, answer, left, lambda: False)
    return answer.status


async def _read(reader: asyncio.StreamReader, answer: _Answer, left: int, is_enough: Callable[[], bool]) -> int:
    """Read on until it is enough, and return how many bytes may still be read."""
    while left and not answer.is_over and not is_enough():
        data = await reader.read(min(left, 16 << 10))
        if not data:
            break
        left -= len(data)
        answer.feed(data)
    return left


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason'})"
    return error.strerror or "no answer in time"

"""The metadata service of an EC2 instance, version 2, asked by the host and by nobody else.

A token is had by a PUT and sent with each question; 404 means that there is nothing to tell. What is answered is
checked like everything that comes from outside: it is short, and it is JSON of a known form, or it is trouble.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from datetime import datetime

from contract.errors import CallerError, shown
from contract.fields import Fields

USUAL_ADDRESS = "169.254.169.254"
TOKEN_TTL_S = 21_600  # the most that it gives
TOKEN_USE_S = 300.0  # then another is asked for: one that was revoked costs a question, not a notice
LIMIT_S = 2.0  # for one question
MAX_BYTES = 16 << 10
TOKEN = re.compile(rb"[\x21-\x7e]{1,1024}")
STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
ACTIONS = ("terminate", "stop", "hibernate")


@dataclass(frozen=True)
class ImdsPlace:
    """Where the service is; `is_probed`: if it is there at all."""

    host: str
    port: int = 80
    is_probed: bool = False

    @classmethod
    def of(cls, setting: str) -> "ImdsPlace | None":
        """What POOLD_IMDS says, which was checked: off, auto or http://ADDRESS:PORT."""
        if setting == "off":
            return None
        if setting == "auto":
            return cls(USUAL_ADDRESS, is_probed=True)
        host, _, port = setting.removeprefix("http://").partition(":")
        return cls(host, int(port or 80))


class ImdsTrouble(Exception):
    """It did not answer, or not in a way that makes sense."""


@dataclass(frozen=True)
class Notice:
    """This host is to go: `kind` is what happens to it, or `rebalance`, or `other`; `at_ms` when, if that is known."""

    kind: str
    at_ms: int | None
    text: str


class Imds:
    """One service. Calls are made one after the other."""

    def __init__(self, place: ImdsPlace) -> None:
        self._place = place
        self._token: bytes | None = None
        self._token_until = 0.0

    async def notice(self) -> Notice | None:
        """That the instance is interrupted, else that it may be soon, else None. Raises `ImdsTrouble`."""
        body = await self._asked(ACTION)
        if body is not None:
            return read_action(body)
        body = await self._asked(REBALANCE)
        return None if body is None else Notice("rebalance", None, body.decode("utf-8", "replace")[:200])

    async def _asked(self, path: str) -> bytes | None:
        """The answer's body; None if there is nothing to tell. A token that is not taken is replaced, once."""
        for _ in range(2):
            status, body = await self._exchange("GET", path, b"X-aws-ec2-metadata-token: " + await self._valid_token())
            if status == 200:
                return body
            if status == 404:
                return None
            if status != 401:
                break
            self._token = None
        raise ImdsTrouble(f"{path} was answered with {status}")

    async def _valid_token(self) -> bytes:
        if self._token is None or time.monotonic() >= self._token_until:
            header = b"X-aws-ec2-metadata-token-ttl-seconds: %d" % TOKEN_TTL_S
            status, body = await self._exchange("PUT", "/latest/api/token", header)
            if status != 200 or not TOKEN.fullmatch(body):
                raise ImdsTrouble(f"no token was to be had: it was answered with {status} and {len(body)} bytes")
            self._token, self._token_until = body, time.monotonic() + TOKEN_USE_S
        return self._token

    async def _exchange(self, method: str, path: str, header: bytes) -> tuple[int, bytes]:
        place = self._place
        try:
            async with asyncio.timeout(LIMIT_S):
                reader, writer = await asyncio.open_connection(place.host, place.port)
                try:
                    host = f"{place.host}:{place.port}".encode()
                    head = b"%b %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\nContent-Length: 0\r\n%b\r\n\r\n"
                    writer.write(head % (method.encode(), path.encode(), host, header))
                    return await _answer(reader)
                finally:
                    writer.transport.abort()
        except (OSError, OverflowError, TimeoutError, EOFError, asyncio.LimitOverrunError) as error:
            why = str(error) or type(error).__name__
            raise ImdsTrouble(f"{method} {path} at {place.host}:{place.port}: {why}") from None


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the whole body, of which there must be as much as is said."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    status = STATUS.fullmatch(lines[0])
    if status is None:
        raise ImdsTrouble(f"this is no HTTP: {shown(lines[0])}")
    headers = dict(line.lower().split(b":", 1) for line in lines[1:] if b":" in line)
    length = headers.get(b"content-length", b"").strip()
    if b"transfer-encoding" in headers or not re.fullmatch(rb"[0-9]{1,9}", length) or int(length) > MAX_BYTES:
        raise ImdsTrouble(f"an answer of unknown or too great length: {shown(length)}")
    return int(status[1]), await reader.readexactly(int(length))


def read_action(body: bytes) -> Notice:
    """What a notice says. One that makes no sense is one all the same: nothing else is ever there."""
    text = body.decode("utf-8", "replace")[:200]
    try:
        fields = Fields.parse(body)
        action = fields.text("action", max_chars=32)
        at = fields.text("time", max_chars=64, default=None)
    except CallerError:
        return Notice("other", None, text)
    return Notice(action if action in ACTIONS else "other", _ms(at), text)


def _ms(text: str | None) -> int | None:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if at.tzinfo is None else int(at.timestamp() * 1000)

"""The way to the gateway, for threads and for asyncio: sends what `calls` has, and translates what goes wrong."""

import asyncio
import contextlib
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import httpx

from warren.__about__ import __version__
from warren.calls import EVENT_STREAM, Call, Reply, refusal
from warren.config import Config
from warren.errors import ConfigError, ProtocolError, StreamBroken, Unreachable, WarrenError
from warren.flows import Carried, Download, Following, Numbered, Progress, Upload, total_of
from warren.models import Transfer
from warren.retries import Attempts, Retries

T = TypeVar("T")
CONNECT_S = 10.0
KEEPALIVE_S = 45.0  # an event stream says something every 15 s
# No request waits for another, or ending a sandbox would wait for whatever else is open.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
# A peer that vanished is noticed although a silent command has nothing to say.
DEAD_PEER = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")  # as versions of OpenSSL call it
if sys.platform == "linux":
    DEAD_PEER += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]


class Line:
    """One gateway, from any number of threads."""

    def __init__(self, config: Config, timeout_s: float, retries: Retries) -> None:
        self.config, self.timeout_s, self.retries = config, timeout_s, retries
        transport = httpx.HTTPTransport(**_transport(config))
        self._client = httpx.Client(transport=transport, **_client(config, timeout_s))

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call[T]) -> T:
        attempts = Attempts(self.retries, is_repeatable=call.is_repeatable)
        while True:
            try:
                with self._answer(call, None) as answer:
                    return call.read(_whole(answer, answer.read()))
            except WarrenError as error:
                time.sleep(attempts.wait_s(error))

    def upload(self, call: Call[T], upload: Upload) -> T:
        attempts = Attempts(self.retries, is_repeatable=upload.is_repeatable)
        while True:
            upload.rewind()
            try:
                with self._answer(call, iter(upload.piece, b"")) as answer:
                    return call.read(_whole(answer, answer.read()))
            except WarrenError as error:
                time.sleep(attempts.wait_s(error))

    @contextlib.contextmanager
    def open(self, call: Call[Any]) -> Iterator[tuple[httpx.Headers, Iterator[bytes]]]:
        """The reply's headers and its pieces as they come. Whoever leaves the block hangs up."""
        with contextlib.ExitStack() as stack:
            answer = self._opened(call, stack)
            yield answer.headers, self._pieces(answer)

    def download(
        self,
        call: Call[Any],
        target: str | Path | IO[bytes],
        progress: Progress | None,
        sha256: str | None,
        *,
        heads: Callable[[Mapping[str, str]], object] = len,
    ) -> Transfer:
        """Carry a reply to `target`. A file of that name is there when all of it is, and not before.

        `heads` is shown the reply's headers first.
        """
        with self.open(call) as (headers, pieces), contextlib.closing(Download(target)) as download:
            heads(headers)
            carried = Carried(progress, total_of(headers))
            for piece in pieces:
                download.write(carried.saw(piece))
            done = carried.done(sha256=sha256)
            download.keep()
        return done

    def follow(self, following: Following[Numbered], is_over: Callable[[], bool] | None) -> Iterator[Numbered]:
        """All that it tells, until `is_over` says so of whose it is; without that, what there is now."""
        while is_over is not None:
            try:
                with self.open(following.call()) as (_, pieces):
                    for piece in pieces:
                        yield from following.feed(piece)
                        if following.is_over:
                            return
                if is_over():
                    break
                wait_s = following.ended_early()
            except Unreachable as error:
                wait_s = following.wait_s(error)
            time.sleep(wait_s)
        while not following.is_over and (page := self.send(following.page())):
            yield from following.new(page)

    def _opened(self, call: Call[Any], stack: contextlib.ExitStack) -> httpx.Response:
        attempts = Attempts(self.retries, is_repeatable=call.is_repeatable)
        while True:
            try:
                return stack.enter_context(self._answer(call, None))
            except WarrenError as error:
                time.sleep(attempts.wait_s(error))

    @contextlib.contextmanager
    def _answer(self, call: Call[Any], content: Iterator[bytes] | None) -> Iterator[httpx.Response]:
        with _translated(self.config.url):
            request = self._client.build_request(**_request(call, content, self.timeout_s))
            answer = self._client.send(request, stream=True)
        try:
            if answer.status_code >= 400:
                with _translated(self.config.url):
                    raise refusal(_whole(answer, answer.read()))
            with _translated(self.config.url):
                yield answer
        finally:
            answer.close()

    def _pieces(self, answer: httpx.Response) -> Iterator[bytes]:
        with _broken():
            yield from answer.iter_raw()


class AsyncLine:
    """One gateway, from any number of tasks of one loop."""

    def __init__(self, config: Config, timeout_s: float, retries: Retries) -> None:
        self.config, self.timeout_s, self.retries = config, timeout_s, retries
        transport = httpx.AsyncHTTPTransport(**_transport(config))
        self._client = httpx.AsyncClient(transport=transport, **_client(config, timeout_s))

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, call: Call[T]) -> T:
        attempts = Attempts(self.retries, is_repeatable=call.is_repeatable)
        while True:
            try:
                async with self._answer(call, None) as answer:
                    return call.read(_whole(answer, await answer.aread()))
            except WarrenError as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def upload(self, call: Call[T], upload: Upload) -> T:
        attempts = Attempts(self.retries, is_repeatable=upload.is_repeatable)
        while True:
            await asyncio.to_thread(upload.rewind)
            try:
                async with self._answer(call, _in_thread(upload)) as answer:
                    return call.read(_whole(answer, await answer.aread()))
            except WarrenError as error:
                await asyncio.sleep(attempts.wait_s(error))

    @contextlib.asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[tuple[httpx.Headers, AsyncIterator[bytes]]]:
        """The reply's headers and its pieces as they come. Whoever leaves the block hangs up."""
        async with contextlib.AsyncExitStack() as stack:
            answer = await self._opened(call, stack)
            yield answer.headers, self._pieces(answer)

    async def download(
        self,
        call: Call[Any],
        target: str | Path | IO[bytes],
        progress: Progress | None,
        sha256: str | None,
        *,
        heads: Callable[[Mapping[str, str]], object] = len,
    ) -> Transfer:
        async with self.open(call) as (headers, pieces):
            heads(headers)
            with contextlib.closing(Download(target)) as download:
                carried = Carried(progress, total_of(headers))
                async for piece in pieces:
                    await asyncio.to_thread(download.write, carried.saw(piece))
                done = carried.done(sha256=sha256)
                download.keep()
        return done

    async def follow(
        self, following: Following[Numbered], is_over: Callable[[], Awaitable[bool]] | None
    ) -> AsyncGenerator[Numbered, None]:
        while is_over is not None:
            try:
                async with self.open(following.call()) as (_, pieces):
                    async for piece in pieces:
                        for one in following.feed(piece):
                            yield one
                        if following.is_over:
                            return
                if await is_over():
                    break
                wait_s = following.ended_early()
            except Unreachable as error:
                wait_s = following.wait_s(error)
            await asyncio.sleep(wait_s)
        while not following.is_over and (page := await self.send(following.page())):
            for one in following.new(page):
                yield one

    async def _opened(self, call: Call[Any], stack: contextlib.AsyncExitStack) -> httpx.Response:
        attempts = Attempts(self.retries, is_repeatable=call.is_repeatable)
        while True:
            try:
                return await stack.enter_async_context(self._answer(call, None))
            except WarrenError as error:
                await asyncio.sleep(attempts.wait_s(error))

    @contextlib.asynccontextmanager
    async def _answer(self, call: Call[Any], content: AsyncIterator[bytes] | None) -> AsyncIterator[httpx.Response]:
        with _translated(self.config.url):
            request = self._client.build_request(**_request(call, content, self.timeout_s))
            answer = await self._client.send(request, stream=True)
        try:
            if answer.status_code >= 400:
                with _translated(self.config.url):
                    raise refusal(_whole(answer, await answer.aread()))
            with _translated(self.config.url):
                yield answer
        finally:
            await answer.aclose()

    async def _pieces(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        with _broken():
            async for piece in answer.aiter_raw():
                yield piece


async def _in_thread(upload: Upload) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(upload.piece):
        yield piece


def tls(config: Config) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{config.ca} is not a file of certificates ({error})") from None


def _transport(config: Config) -> dict[str, Any]:
    options: dict[str, Any] = {"verify": _verify(config), "limits": LIMITS}
    return options | ({"uds": config.socket} if config.socket else {"socket_options": DEAD_PEER})


def _verify(config: Config) -> ssl.SSLContext | bool:
    return tls(config) if config.url.startswith("https:") else False  # there is nothing to verify


def _client(config: Config, timeout_s: float) -> dict[str, Any]:
    # Redirects are not followed: a gateway has none, and the key is not for anybody else.
    return {
        "base_url": "http://localhost" if config.socket else config.url,
        "headers": headers(config),
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S),
        "follow_redirects": False,
        "trust_env": not config.is_near,  # for the proxies of the environment
        "verify": _verify(config),
    }


def headers(config: Config) -> dict[str, str]:
    sent = {"User-Agent": f"warren-python/{__version__}", "Accept-Encoding": "identity"}
    return sent | ({} if config.key is None else {"Authorization": f"Bearer {config.key}"})


def _request(call: Call[Any], content: Any, timeout_s: float) -> dict[str, Any]:
    sent = {"Accept": "application/json", **call.headers}
    if call.body is not None:
        sent["Content-Type"] = "application/json"
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query,
        "headers": sent,
        "content": call.content() if content is None else content,
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S, read=_read_limit(call, timeout_s)),
    }


def _read_limit(call: Call[Any], timeout_s: float) -> float | None:
    """A command may say nothing for hours; a sandbox's events may not, because their stream says that it lives."""
    if call.headers.get("Accept") != EVENT_STREAM:
        return max(timeout_s, call.answer_s)
    return KEEPALIVE_S if call.method == "GET" else None


def _whole(answer: httpx.Response, body: bytes) -> Reply:
    if answer.is_redirect:
        raise ProtocolError(f"{answer.request.url.host} sends us elsewhere: is it a gateway's address?")
    return Reply(answer.status_code, answer.headers, body)


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectTimeout:
        raise Unreachable(f"{url} did not answer within {CONNECT_S:g} s") from None
    except httpx.ConnectError as error:
        raise Unreachable(f"{url} cannot be reached ({_reason(error)})") from None
    except httpx.TimeoutException:
        raise Unreachable(f"{url} did not answer in time; whether it did what was asked is not known") from None
    except httpx.TransportError as error:
        raise Unreachable(f"the connection to {url} broke ({_reason(error)})") from None
    except (httpx.InvalidURL, httpx.DecodingError) as error:
        raise ProtocolError(f"{url}: {error}") from None


@contextlib.contextmanager
def _broken() -> Iterator[None]:
    """A stream that breaks off is told as such."""
    try:
        yield
    except httpx.TransportError as error:
        raise StreamBroken(f"the stream broke off ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    told = str(error) or type(error).__name__
    if any(sign in told for sign in NO_TLS):
        return "no TLS is spoken there; if it is on this machine, try http://"
    return told

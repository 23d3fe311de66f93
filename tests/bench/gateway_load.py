"""Clients for the gateway's benchmark: many event streams, many WebSockets, many idle connections."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from websockets.asyncio.client import connect

CONNECTING = 50  # at once


class Subscriber(asyncio.Protocol):
    """One event stream: notes how long each event was under way."""

    def __init__(self, request: bytes, delays_ns: list[int]) -> None:
        self._request = request
        self._delays_ns = delays_ns
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data: "):
                self._delays_ns.append(now - int(line[6:]))


async def subscribe(port: int, request: bytes, count: int, seconds: float) -> list[float]:
    """Delays in ms of the events of so many streams, once all of them run."""
    loop = asyncio.get_running_loop()
    delays: list[int] = []
    streams: list[Subscriber] = []
    for begin in range(0, count, CONNECTING):
        some = range(begin, min(begin + CONNECTING, count))
        dialled = [loop.create_connection(lambda: Subscriber(request, delays), "127.0.0.1", port) for _ in some]
        streams += [stream for _, stream in await asyncio.gather(*dialled)]
    await asyncio.sleep(1.0)
    delays.clear()
    await asyncio.sleep(seconds)
    found = [ns / 1e6 for ns in delays]
    for stream in streams:
        stream.transport.abort()  # type: ignore[attr-defined]
    return found


async def echo(port: int, path: str, headers: dict[str, str], count: int, rounds: int) -> list[float]:
    """Round trips in ms over so many WebSockets, each of which says something twice a second."""
    found: list[float] = []
    gate = asyncio.Semaphore(CONNECTING)

    async def one(number: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with gate:
                dialled = connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers, proxy=None)
                socket = await stack.enter_async_context(dialled)
            await asyncio.sleep(2 + number / count * 0.5)  # all of them are there, and not all at the same moment
            for _ in range(rounds):
                began = time.perf_counter()
                await socket.send(b"x" * 100)
                await socket.recv()
                found.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return found


async def idle(port: int, request: bytes, count: int) -> list[asyncio.StreamWriter]:
    """So many connections on which one request was answered."""
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(_length(head))
        writers.append(writer)
    return writers


def _length(head: bytes) -> int:
    lines: Iterator[bytes] = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(next(lines).partition(b":")[2])

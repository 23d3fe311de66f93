"""A crowd follows one task. Who reads slowly, or not at all, is nobody's concern but their own."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.tasks.client import Caller, Task
from tests.tasks.stage import GATEWAY_PORT, Stage
from tests.vm import traces

CLIENTS = int(os.environ.get("WARREN_TASKS_CLIENTS", "1000"))
SLOW = 10  # of them read one byte a second
SAID = 60
LIMIT_S = 240.0
MOST_MB = 300.0  # more that poold may take for all of them


@dataclass
class Seen:
    """What one client was told, and when."""

    numbers: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    at: list[float] = field(default_factory=list)


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Of a body that comes in chunks."""
    rest = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        *whole, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readline()
        for line in whole:
            yield line


async def read(reader: asyncio.StreamReader, seen: Seen) -> None:
    async for line in lines(reader):
        name, _, value = line.partition(b": ")
        if name == b"data":
            event = json.loads(value)
            seen.numbers.append(event["seq"])
            seen.kinds.append(event["kind"])
            seen.at.append(time.time())


async def follow(sock: socket.socket, asked: bytes, seen: Seen) -> None:
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock)
    with contextlib.closing(writer):
        writer.write(asked)
        assert b"200" in await reader.readline()
        while (await reader.readline()).strip():
            pass
        await read(reader, seen)


async def crawl(sock: socket.socket, asked: bytes, done: asyncio.Event) -> None:
    """One byte a second."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    with sock:
        await loop.sock_sendall(sock, asked)
        while not done.is_set():
            with contextlib.suppress(BlockingIOError):
                if not sock.recv(1):
                    return
            await asyncio.sleep(1)


async def crowd(sockets: list[socket.socket], asked: bytes) -> list[Seen]:
    done = asyncio.Event()
    slow = [asyncio.create_task(crawl(sock, asked, done)) for sock in sockets[:SLOW]]
    seen = [Seen() for _ in sockets[SLOW:]]
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(
            *(follow(sock, asked, each) for sock, each in zip(sockets[SLOW:], seen, strict=True)),
        )
    done.set()
    for each in slow:
        each.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    return seen


def connections(stage: Stage, count: int) -> list[socket.socket]:
    def dial() -> list[socket.socket]:
        found = []
        for number in range(count):
            sock = socket.socket()
            if number < SLOW:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", GATEWAY_PORT))
            found.append(sock)
        return found

    return stage.space.do(dial)


def test_a_thousand_clients_follow_a_task_and_the_slow_ones_slow_nobody(stage: Stage, alice: Caller) -> None:
    lines = "\n".join(f"say {number} {'x' * 2000}" for number in range(SAID))
    task = alice.task(f"ask Is everybody here?\n{lines}")
    asked_id = task.question("question")["id"]
    before = stage.host.rss_mb()
    traces.forget_peak(stage.host.process.pid)
    asked = f"GET {task.path}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice.key}\r\n"
    request = f"{asked}Accept: text/event-stream\r\nConnection: close\r\n\r\n".encode()
    sockets = connections(stage, CLIENTS)
    seen: list[Seen] = []
    thread = threading.Thread(target=lambda: seen.extend(asyncio.run(crowd(sockets, request))))
    thread.start()
    assert task.say("answer", asked_id, "yes").status == 200
    task.ended()
    thread.join(LIMIT_S)
    assert len(seen) == CLIENTS - SLOW
    everything(task, seen)
    assert traces.peak_mb(stage.host.process.pid) - before < MOST_MB


def everything(task: Task, seen: list[Seen]) -> None:
    events = task.events()
    numbers = list(range(1, len(events) + 1))
    assert sum(event["kind"] == "agent.message" for event in events) >= SAID
    for each in seen:
        assert each.numbers == numbers
        assert each.kinds[-1] == "task.completed"
    late = [each.at[-1] - events[-1]["at_ms"] / 1000 for each in seen]
    print(f"\nthe end came to {len(seen)} clients within {max(late):.1f} s", flush=True)

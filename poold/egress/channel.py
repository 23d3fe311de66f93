"""The line between poold and one proxy: objects of JSON, one on each line, both ways."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.egress import MAX_NUMBER
from poold.errors import NetError

VERSION = 1  # of what is said here; a proxy may be older than we are
MAX_LINE = 1 << 16
PIECE = 1 << 16

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Hello:
    """Who a proxy says it is."""

    slot: int
    pid: int
    number: int  # of the last rule


class Channel:
    """One connection to a proxy. What it tells is read by one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str) -> None:
        self._reader = reader
        self._writer = writer
        self._who = who
        self._rest = b""  # of what was read, behind the last line
        self._lines: list[bytes] = []  # that were read and not told yet
        self._asked: list[tuple[Callable[[Message], bool], asyncio.Future[None]]] = []

    @classmethod
    async def open(cls, path: Path) -> "Channel":
        """Raises `OSError` if nobody is there."""
        reader, writer = await asyncio.open_unix_connection(str(path))
        return cls(reader, writer, path.stem)

    async def first(self) -> Hello:
        """The first that it tells: who it is. Raises `ValueError` if it makes no sense."""
        told = _read(self._lines.pop(0)) if await self._read() else {}
        slot, pid, number = (told.get(name) for name in ("slot", "pid", "number"))
        if told.get("told") != "hello" or told.get("version") != VERSION:
            raise ValueError("it does not say who it is, or in another language")
        if type(slot) is not int or type(pid) is not int or type(number) is not int or not 0 <= number <= MAX_NUMBER:
            raise ValueError(f"it cannot be what it says: {told!r:.100}")
        return Hello(slot, pid, number)

    async def told(self) -> AsyncIterator[list[Message]]:
        """What it tells, until it hangs up: as much at once as has come. Raises `ValueError` if it makes no sense."""
        try:
            while await self._read():
                batch = [_read(line) for line in self._lines]
                self._lines.clear()
                self._answer(batch)
                yield batch
        finally:
            self._fail()

    async def farewell(self) -> None:
        """Have it end, and read until it has hung up. What it tells meanwhile is lost."""
        await self.say({"do": "end"})
        async for _ in self.told():
            pass

    async def _read(self) -> bool:
        """Read until there is a line at least. False if it has hung up."""
        while not self._lines:
            piece = await self._reader.read(PIECE)
            *self._lines, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > MAX_LINE:
                raise ValueError("a line without end")
            if not piece:
                return False
        return True

    async def say(self, message: Message) -> None:
        try:
            self._writer.write(orjson.dumps(message) + b"\n")
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise NetError("tell", f"the proxy of slot {self._who}", hint=str(error)) from error

    async def ask(self, message: Message, is_answer: Callable[[Message], bool]) -> None:
        """Say something and wait for the answer. Somebody has to be reading what is told."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (is_answer, answered)
        self._asked.append(entry)
        try:
            await self.say(message)
            await answered
        finally:
            if entry in self._asked:
                self._asked.remove(entry)

    def close(self) -> None:
        self._writer.close()
        self._fail()

    def _answer(self, batch: list[Message]) -> None:
        for is_answer, answered in list(self._asked):
            if not answered.done() and any(is_answer(told) for told in batch):
                answered.set_result(None)

    def _fail(self) -> None:
        for _, answered in self._asked:
            if not answered.done():
                answered.set_exception(NetError("tell", f"the proxy of slot {self._who}", hint="it has hung up"))


def _read(line: bytes) -> Message:
    told = orjson.loads(line)
    if not isinstance(told, dict):
        raise ValueError(f"no object: {line[:80]!r}")
    return told

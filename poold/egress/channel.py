"""The line between poold and one proxy: objects of JSON, one on each line, both ways."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from poold.errors import NetError
from poold.files import short_name

VERSION = 1  # of what is said here; a proxy may be older than we are
MAX_LINE = 1 << 16
PIECE = 1 << 16

Message = Mapping[str, Any]


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
        with short_name(path) as name:
            reader, writer = await asyncio.open_unix_connection(name)
        return cls(reader, writer, path.stem)

    async def first(self) -> Message:
        """The first that it tells: who it is. Raises `OSError` or `ValueError` as well."""
        if await self._read():
            hello = _read(self._lines.pop(0))
            if hello.get("told") == "hello":
                return hello
        raise NetError("reach", f"the proxy of slot {self._who}", hint="it does not say who it is")

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
        self._writer.transport.abort()  # who does not read must not keep us waiting
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
    message = orjson.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"no message: {line[:80]!r}")
    return message

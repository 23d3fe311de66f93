"""The DevTools protocol over two pipes: JSON messages with a NUL after each, calls and their answers, events."""

import asyncio
import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable
from typing import Any

from warren_guest.errors import RefusedError
from warren_guest.pumps import Inlet

# A screenshot is the largest message that we ask for.
MESSAGE_LIMIT = 12 << 20
_READ = 1 << 16
# Whoever works in the machine can write to us as the browser does, and have us ask it things that it never answers.
_CALLS_LIMIT = 100
# How a message begins that answers a call; enough to know which one was answered beyond the limit.
_ANSWER = re.compile(rb'\{"id":([0-9]{1,15}),')

Json = dict[str, Any]
OnEvent = Callable[[str, str, Json], None]


class GoneError(Exception):
    """The browser, or the page that was asked, is there no more."""


class CallError(Exception):
    """A call that the browser refused."""


class Pipe:
    """A conversation with one browser. Owns both descriptors. `on_event` is given method, session and parameters."""

    def __init__(self, writing: int, reading: int, on_event: OnEvent, on_end: Callable[[], None]) -> None:
        self._inlet = Inlet(writing)
        self._reading = reading
        self._on_event = on_event
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[str, asyncio.Future[Json]]] = {}
        self._message = bytearray()
        self._skips = False
        self._is_open = True
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(reading, self._read)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = self._loop.create_task(self._write())

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def call(self, method: str, session: str = "", **params: object) -> Json:
        """Ask the browser, or the page of `session`. Raises `CallError` and `GoneError`."""
        if not self._is_open:
            raise GoneError("the browser has ended")
        if max(len(self._calls), self._outbox.qsize()) >= _CALLS_LIMIT:
            raise CallError("the browser does not answer")
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        answer: asyncio.Future[Json] = self._loop.create_future()
        self._calls[number] = (session, answer)
        try:
            self._outbox.put_nowait(json.dumps(message).encode() + b"\0")
            return await answer
        finally:
            self._calls.pop(number, None)

    async def _write(self) -> None:
        """Write messages whole, one after the other: who asked may leave in the middle of one."""
        with contextlib.suppress(RefusedError):  # a pipe that nobody reads; its other half is at its end as well
            while True:
                await self._inlet.write([await self._outbox.get()])

    def forget(self, session: str) -> None:
        """Fail what is asked of a page that is gone: nobody will answer."""
        for of, answer in list(self._calls.values()):
            if of == session and not answer.done():
                answer.set_exception(GoneError("the page has crashed"))

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self._writer.cancel()
        self._inlet.close()
        for _, answer in list(self._calls.values()):
            if not answer.done():
                answer.set_exception(GoneError("the browser has ended"))
        self._on_end()

    def _read(self) -> None:
        try:
            data = os.read(self._reading, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *ends, rest = data.split(b"\0")
        for end in ends:
            self._hold(end)
            self._finish()
        self._hold(rest)

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of the message that is arriving; of one that is too large, its beginning."""
        if not self._skips and piece:
            self._message += piece
            self._skips = len(self._message) > MESSAGE_LIMIT

    def _finish(self) -> None:
        message, is_cut = bytes(self._message), self._skips
        self._message, self._skips = bytearray(), False
        if is_cut:
            self._refuse(message)
            return
        try:
            told = json.loads(message)
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict):
            self._take(told)

    def _refuse(self, message: bytes) -> None:
        match = _ANSWER.match(message)
        if match:
            self._answer(int(match[1]), {"error": {"message": f"the answer is larger than {MESSAGE_LIMIT} bytes"}})

    def _take(self, told: Json) -> None:
        if isinstance(number := told.get("id"), int):
            self._answer(number, told)
            return
        method, session, params = told.get("method"), told.get("sessionId", ""), told.get("params")
        if isinstance(method, str) and isinstance(session, str) and isinstance(params, dict):
            self._on_event(method, session, params)

    def _answer(self, number: int, told: Json) -> None:
        _, answer = self._calls.get(number, ("", None))
        if answer is None or answer.done():
            return
        result, error = told.get("result"), told.get("error")
        if isinstance(result, dict):
            answer.set_result(result)
        else:
            message = error.get("message") if isinstance(error, dict) else None
            answer.set_exception(CallError(str(message or "the browser refused")[:500]))

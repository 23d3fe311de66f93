"""QMP, the way to steer a QEMU process: JSON lines on a unix socket.

A QEMU process emulates hardware for hostile code and may have been taken over by it, so what it says is bounded
in size and waited for with a limit by the caller.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson

from poold.errors import EngineError
from poold.files import short_name
from poold.lifetimes import finish

MAX_LINE = 1 << 20  # QEMU's longest reply that we ask for is a few KB
KEPT_EVENTS = 64
TAKE_BACK_S = 5.0


class Qmp:
    """One connection to one QEMU process. Commands may be sent from many tasks; replies come in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, subject: str) -> None:
        self._reader = reader
        self._writer = writer
        self._subject = subject
        self._turn = asyncio.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._last_id = 0

    @classmethod
    async def connect(cls, path: Path, subject: str) -> "Qmp":
        """Connect and shake hands. Waits until QEMU has come up far enough to greet."""
        with short_name(path) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=MAX_LINE)
        qmp = cls(reader, writer, subject)
        try:
            await qmp._line()
            await qmp.run("qmp_capabilities")
        except BaseException:
            qmp.close()
            raise
        return qmp

    async def run(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns."""
        return await self._ask(command, arguments, self._send)

    @contextlib.asynccontextmanager
    async def lent(self, fd: int) -> AsyncIterator[str]:
        """The name by which QEMU opens our open file `fd` during the block. QEMU needs no right to open its path."""
        added = await self._ask("add-fd", {}, lambda line: self._send_with(line, fd))
        fdset = {"fdset-id": added.get("fdset-id") if isinstance(added, dict) else None}
        try:
            yield f"/dev/fdset/{fdset['fdset-id']}"
        finally:
            with contextlib.suppress(EngineError, TimeoutError):  # one that has hung up has nothing any more
                await finish(asyncio.wait_for(self.run("remove-fd", **fdset), TAKE_BACK_S))

    async def _ask(self, command: str, arguments: dict[str, Any], send: Callable[[bytes], None]) -> Any:
        async with self._turn:
            self._last_id += 1
            request = {"execute": command, "arguments": arguments, "id": self._last_id}
            try:
                send(orjson.dumps(request) + b"\n")
            except (RuntimeError, OSError) as error:  # the first is uvloop's word for a connection that has ended
                raise EngineError("QMP", self._subject, hint="QEMU hung up") from error
            while True:
                reply = await self._line()
                if "event" in reply:
                    self._events.append(reply)
                elif reply.get("id") != self._last_id:
                    continue  # the reply to a command whose caller was cancelled
                elif "return" in reply:
                    return reply["return"]
                else:
                    raise EngineError(command, self._subject, hint=str(reply.get("error")))

    def _send(self, line: bytes) -> None:
        self._writer.write(line)

    def _send_with(self, line: bytes, fd: int) -> None:
        """Send a line and an open file with it. Past the stream, which has nothing to send: each command was answered.

        The command of one who was cancelled may overtake; nobody waits for its reply.
        """
        connected = self._writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(connected.fileno())) as plain:
            socket.send_fds(plain, [line], [fd])

    async def event(self, name: str, **data: Any) -> dict[str, Any]:
        """The next event `name` with `data`, also one that came while a command ran. Others are dropped."""
        async with self._turn:
            while True:
                found = self._events.popleft() if self._events else await self._line()
                told = found.get("data", {})
                if found.get("event") == name and isinstance(told, dict) and data.items() <= told.items():
                    return found

    def close(self) -> None:
        self._writer.close()

    async def _line(self) -> dict[str, Any]:
        try:
            line = await self._reader.readline()
            message = orjson.loads(line) if line else None
        except (OSError, ValueError) as error:
            raise EngineError("QMP", self._subject, hint=str(error)) from error
        if not isinstance(message, dict):
            raise EngineError("QMP", self._subject, hint="QEMU hung up")
        return message

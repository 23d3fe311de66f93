"""QMP, the way to steer a QEMU process: JSON lines on a unix socket.

A QEMU process emulates hardware for hostile code and may have been taken over by it, so what it says is bounded
in size and waited for with a limit by the caller.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import orjson

from poold.engines.qemu.inherited import open_folder
from poold.errors import EngineError

MAX_LINE = 1 << 20  # QEMU's longest reply that we ask for is a few KB
KEPT_EVENTS = 64


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
        with open_folder(path) as short:
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
        async with self._turn:
            self._last_id += 1
            request = {"execute": command, "arguments": arguments, "id": self._last_id}
            try:
                self._writer.write(orjson.dumps(request) + b"\n")
            except RuntimeError as error:  # uvloop's word for a connection that has ended
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

    async def event(self, name: str, **data: Any) -> dict[str, Any]:
        """The next event `name` with `data`, also one that came while a command ran. Others are dropped."""
        async with self._turn:
            while True:
                found = self._events.popleft() if self._events else await self._line()
                if found.get("event") == name and data.items() <= found.get("data", {}).items():
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

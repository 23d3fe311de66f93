"""How poold speaks with this process: JSON, one object a line, both ways.

There is one connection at a time, and a newer one replaces the older: poold may be started anew while this goes on.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from poold.egress.policy import Policy
from poold.egress.proxy.gate import Gate
from poold.egress.proxy.rows import ALIKE_S
from poold.egress.proxy.words import say

VERSION = 1
MAX_LINE_BYTES = 8 * 1024 * 1024


class Control:
    """Hands on what poold says, and tells it what happens. `end` is called when poold says that it is over.

    `alike_s`: for so long refusals that are alike are one row.
    """

    def __init__(
        self, listener: socket.socket, slot: int, pid: int, end: Callable[[], None], *, alike_s: float = ALIKE_S
    ) -> None:
        self.gate = Gate(self.tell, self.wake, alike_s)
        self._listener = listener
        self._slot = slot
        self._pid = pid
        self._end = end
        self._line: _Line | None = None
        self._has_missed = False  # something was not told because poold does not read
        self._is_woken = False

    def start(self) -> None:
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._line is not None:
            self._line.close()

    def tell(self, message: dict[str, Any]) -> None:
        if self._line is None:
            return
        if self._line.is_full:
            self._has_missed = True
        else:
            self._line.write((message,))

    def wake(self) -> None:
        """There may be rows to send."""
        if not self._is_woken and self._line is not None:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._send_rows)

    def welcome(self, line: "_Line") -> None:
        if self._line is not None:
            self._line.abort()
        self._line = line
        hello = {"told": "hello", "version": VERSION, "slot": self._slot, "pid": self._pid}
        line.write((hello | {"number": self.gate.number, "sandbox": self.gate.sandbox},))
        line.write(self.gate.rows.again())
        self._tell_open()
        self.wake()

    def has_room(self) -> None:
        if self._has_missed:
            self._has_missed = False
            self._tell_open()
        self.wake()

    def heard(self, message: dict[str, Any]) -> None:
        """Do what poold says. Raises whatever is wrong with it."""
        match message["do"]:
            case "rule":
                self.gate.rule(message["number"], message["sandbox"], Policy.decode(message["policy"]))
                if self._line is not None:  # this is waited for: it is said even to a slow reader
                    self._line.write(({"told": "ruled", "number": message["number"]},))
            case "taken":
                self.gate.rows.taken(message["number"])
            case "end":
                self._end()
                if self._line is not None:
                    self._line.write(self.gate.rows.rest())
                    self._line.write(({"told": "ended"},))
            case other:
                raise ValueError(f"nobody knows how to do {other!r}")

    def lost(self, line: "_Line") -> None:
        if self._line is line:
            self._line = None

    async def flushed(self) -> None:
        """Wait until all that was told is read, or poold has left."""
        if self._line is not None:
            self._line.close()
            await self._line.gone

    def _tell_open(self) -> None:
        for flow in list(self.gate.flows.values()):
            if flow.is_open:
                self.tell(flow.view())
        for held in list(self.gate.held.values()):
            self.tell(held.told)

    def _send_rows(self) -> None:
        self._is_woken = False
        if self._line is not None and not self._line.is_full:
            self._line.write(self.gate.rows.next())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # whoever it was has left, or will come again
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._connect(sock))
        task.add_done_callback(_look)

    async def _connect(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Line(self), sock)


class _Line(asyncio.Protocol):
    """One connection of poold's."""

    def __init__(self, control: Control) -> None:
        self.is_full = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control = control
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 — for the type checker
        self._transport = transport
        self._control.welcome(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        *lines, rest = self._data.split(b"\n")
        self._data = rest
        try:
            for line in lines:
                self._control.heard(orjson.loads(line))
            if len(rest) > MAX_LINE_BYTES:
                raise ValueError("a line is too long")
        except Exception as error:  # whatever it is, this conversation has no sense any more
            say(f"what poold says is not understood: {error!r}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._control.lost(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._control.has_room()

    def write(self, messages: Iterable[dict[str, Any]]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(orjson.dumps(message) + b"\n" for message in messages))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _look(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        say(f"a connection of poold's failed: {task.exception()!r}")

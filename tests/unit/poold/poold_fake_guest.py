"""A guest in memory that speaks enough of docs/GUEST.md, and misbehaves when it is told to.

What a command does is said by its command line: `echo TEXT`, `fail N`, `flood N`, `cat`, `hang`, `garbage`, `cut`,
`late`, `missing`. What a port does is said by its number: see `_port`.
"""

import asyncio
import contextlib
import io
import tarfile
import urllib.parse

import orjson

from tests.unit.poold.poold_fake_run import FakeRun, archive
from tests.unit.poold.poold_hostile import answer, read_head

START, STDOUT, STDERR, PTY, END, DEADLINE = 16, 1, 2, 3, 17, 19
FRAMES = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.warren.frames\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LOG = b"the guest's own log\n"


def refusal(status: int, code: str) -> bytes:
    return answer(orjson.dumps({"error": {"code": code, "message": f"the guest says {code}"}}), f"{status} No")


class FakeGuest:
    """The guest of one machine. `says` overrides the answer to a path, `commands` is what ran, `asked` every path.

    `events` is its event stream, as raw blocks; `tell` puts a proper one at its end. `health` is added to what it says.
    `run` is the run of an agent in it.
    """

    def __init__(self, says: dict[str, bytes]) -> None:
        self.says = says
        self.identity: dict[str, object] = {}
        self.files: dict[str, bytes] = {}
        self.commands: list[dict[str, object]] = []
        self.typed: asyncio.Queue[bytes] = asyncio.Queue()
        self.sizes: list[dict[str, int]] = []
        self.streams = 0  # of processes, open now
        self.asked: list[str] = []
        self.health: dict[str, object] = {}
        self.events: list[bytes] = []
        self._more_events = asyncio.Event()
        self.run = FakeRun()
        self.is_frozen = False

    def tell(self, kind: str, **data: object) -> None:
        """One more event, with the next number."""
        self.tell_raw(b"id: %d\nevent: %b\ndata: %b\n\n" % (len(self.events) + 1, kind.encode(), orjson.dumps(data)))

    def tell_raw(self, block: bytes) -> None:
        self.events.append(block)
        self._more_events.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                line, headers = await read_head(reader)
                method, target, _ = line.split()
                path, _, query = target.partition("?")
                asked = dict(urllib.parse.parse_qsl(query))
                self.asked.append(target)
                if path in self.says:
                    await _body(reader, headers)
                    writer.write(self.says[path])
                elif path.endswith("/stdin"):
                    await self._stdin(reader, writer, headers)
                elif path == "/files/content":
                    await self._file(method, asked, headers, reader, writer)
                elif path == "/events":
                    await self._tell_all(self.events, self._more_events, int(asked["after"]), writer)
                elif path == "/run/events":
                    await self._tell_all(self.run.events, self.run.more, int(asked["after"]), writer)
                elif path == "/layer":
                    self._layer(method, await _body(reader, headers), writer)
                elif path.startswith("/ports/"):
                    await self._port(path.split("/")[2], reader, writer)
                else:
                    await self._route(path, await _body(reader, headers), writer)
                await writer.drain()

    async def _route(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        request = orjson.loads(body or b"{}")
        match path.split("/")[1:]:
            case ["health"]:
                told = {"generation": self.identity.get("generation", 0), "id": self.identity.get("id")}
                writer.write(
                    answer(
                        orjson.dumps(
                            {"contract": 1, **told, "features": ["layer"], "frozen": self.is_frozen, **self.health}
                        )
                    )
                )
            case ["identity"]:
                self._identify(request, writer)
            case ["logs"]:
                writer.write(answer(LOG))
            case ["rehearse"]:
                writer.write(answer())
            case ["processes"]:
                await self._process(request, writer)
            case ["terminal"] | ["processes", _, "attach"]:
                await self._terminal(writer)
            case ["processes", _, "resize"]:
                self.sizes.append(request)
                writer.write(answer())
            case ["layer", word]:
                self.is_frozen = word == "freeze"
                writer.write(answer(b'{"ended": 1, "killed": 0}'))
            case ["archive"]:
                writer.write(answer(archive()))
            case route if (told := self.run.answer(route, request)) is not None:
                writer.write(answer(orjson.dumps(told)))
            case _:
                writer.write(refusal(404, "not_found"))

    def _identify(self, request: dict[str, object], writer: asyncio.StreamWriter) -> None:
        if request["generation"] <= self.identity.get("generation", 0):  # type: ignore[operator]
            writer.write(refusal(409, "already_identified"))
            return
        self.identity = {**self.identity, **request}
        writer.write(answer(orjson.dumps({"generation": request["generation"]})))

    def _layer(self, method: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Its files as an archive, if it is frozen; or those of an archive."""
        if method == "PUT":
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                members = {each.name: archive.extractfile(each) for each in archive.getmembers()}
            told = {name.removeprefix("root"): file.read() for name, file in members.items() if file is not None}
            self.files = {name: data for name, data in told.items() if name.startswith("/")}
            self.identity["env"] = {**self.identity["env"], **orjson.loads(told["env"])}  # type: ignore[dict-item]
            writer.write(answer())
        elif self.is_frozen:
            env = orjson.dumps(self.identity.get("env"))
            files = {"removed": b"", "env": env, **{f"root{name}": data for name, data in self.files.items()}}
            writer.write(answer(layer_of(files)))
        else:
            writer.write(refusal(409, "not_possible"))

    async def _tell_all(
        self, events: list[bytes], more: asyncio.Event, after: int, writer: asyncio.StreamWriter
    ) -> None:
        """All that there are, then each as it comes."""
        writer.write(EVENTS + chunk(b":\n\n"))
        while True:
            more.clear()
            for block in events[after:]:
                writer.write(chunk(block))
            after = len(events)
            await writer.drain()
            await more.wait()

    async def _process(self, request: dict[str, object], writer: asyncio.StreamWriter) -> None:
        self.commands.append(request)
        verb, _, rest = request["args"][-1].partition(" ")  # type: ignore[index]
        if verb == "missing":
            writer.write(refusal(400, "program_not_found"))
            return
        self.streams += 1
        try:
            writer.write(FRAMES + _frame(START, {"pid": 7}))
            await self._run(verb, rest, writer)
        finally:
            self.streams -= 1

    async def _run(self, verb: str, rest: str, writer: asyncio.StreamWriter) -> None:
        code = 0
        match verb:
            case "echo":
                writer.write(_frame(STDOUT, rest.encode() + b"\n"))
            case "fail":
                writer.write(_frame(STDERR, b"it failed\n"))
                code = int(rest)
            case "flood":
                for _ in range(int(rest)):
                    writer.write(_frame(STDOUT, b"x" * 65_536))
                    await writer.drain()
            case "cat":
                while (piece := await self.typed.get()) != b"":
                    writer.write(_frame(STDOUT, piece))
            case "hang":
                writer.write(_frame(STDOUT, b"hanging"))
                await asyncio.get_running_loop().create_future()
            case "garbage":
                writer.write(b"\x00\x01garbage, not a chunk\r\n")
                return
            case "cut":
                writer.write(_frame(STDOUT, b"half"))
                raise ConnectionResetError
            case "late":
                writer.write(_frame(DEADLINE, {}) + b"0\r\n\r\n")
                return
        writer.write(_frame(END, {"exit_code": code, "duration_ms": 3}) + b"0\r\n\r\n")

    async def _terminal(self, writer: asyncio.StreamWriter) -> None:
        """Echoes what is typed, until `exit`."""
        self.streams += 1
        try:
            writer.write(FRAMES + _frame(START, {"pid": 9}) + _frame(PTY, b"$ "))
            while (piece := await self.typed.get()) != b"exit\n":
                writer.write(_frame(PTY, piece))
            writer.write(_frame(END, {"exit_code": 0, "duration_ms": 3}) + b"0\r\n\r\n")
        finally:
            self.streams -= 1

    async def _port(self, port: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """1 is closed, 2 is not known to old guests, 3 lies; 4 breaks off, 5 counts, and all others echo."""
        refusals = {"1": refusal(502, "port_closed"), "2": refusal(404, "not_found"), "3": b"HTTP/1.1 101 Yes\r\n\r\n"}
        if port in refusals:
            writer.write(refusals[port])
            return
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        self.streams += 1
        try:
            if port == "5":
                writer.write(b"%d" % len(await reader.read()))
            while port != "5" and (data := await reader.read(1 << 16)):
                writer.write(data)
                await writer.drain()
                if port == "4":
                    raise ConnectionResetError
            writer.write_eof()
            await reader.read()
        finally:
            self.streams -= 1
        raise ConnectionResetError

    async def _stdin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> None:
        total = 0
        async for piece in _pieces(reader, headers):
            total += len(piece)
            self.typed.put_nowait(piece)
        self.typed.put_nowait(b"")
        writer.write(answer(orjson.dumps({"bytes": total})))

    async def _file(
        self,
        method: str,
        asked: dict[str, str],
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        path = asked["path"]
        if method == "PUT":
            self.files[path] = await _body(reader, headers)
            entry = {"name": path.rpartition("/")[2], "size": len(self.files[path]), "mode": asked.get("mode", "0644")}
            writer.write(answer(orjson.dumps({"bytes": len(self.files[path]), "entry": entry})))
        elif path == "/cut":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            await writer.drain()
            raise ConnectionResetError
        elif path not in self.files:
            writer.write(refusal(404, "not_found"))
        elif "range" in headers:
            data = self.files[path]
            first, last = (int(part) for part in headers["range"].removeprefix("bytes=").split("-"))
            told = f"Content-Range: bytes {first}-{last}/{len(data)}"
            writer.write(answer(data[first : last + 1], "206 Partial Content", told))
        else:
            writer.write(answer(self.files[path]))


def layer_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _frame(kind: int, payload: bytes | dict[str, object]) -> bytes:
    """A frame as one chunk."""
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    return chunk(bytes([kind]) + len(data).to_bytes(4, "big") + data)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _pieces(reader: asyncio.StreamReader, headers: dict[str, str]):  # type: ignore[no-untyped-def]
    left = int(headers.get("content-length", 0))
    while left > 0:
        piece = await reader.read(min(left, 1 << 16))
        if not piece:
            raise ConnectionResetError
        left -= len(piece)
        yield piece
    if "transfer-encoding" in headers:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    return b"".join([piece async for piece in _pieces(reader, headers)])

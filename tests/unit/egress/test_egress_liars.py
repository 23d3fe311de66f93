"""A proxy that a guest has taken over: poold survives whatever it says, believes little of it, and gets rid of it."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from contract.egress import Row
from poold import processes
from poold.egress.forks import user_of
from poold.egress.policy import Policy
from poold.egress.proxies import Proxies, Told
from poold.egress.traces import end_all_of, listening
from poold.errors import NetError
from poold.slots import ProxySockets, Slot

LIMIT_S = 15.0
UID = 225_000 + os.getpid() % 5_000  # other tests may run on this host at the same time
PYTHON = str(Path(sys.executable).resolve())  # everybody may run the system's own
SLOT = Slot(3, Path("/proc/self/ns/net"), "", UID)
ROW = {"told": "row", "number": 1, "sandbox": "sb-1", "at_ms": 1, "verdict": "allowed", "via": "tls", "up": 1}
ROW |= {"down": 1, "duration_ms": 1, "times": 1}
OPEN = {"told": "open", "id": 1, "sandbox": "sb-1", "at_ms": 1, "via": "tls"}

# Says hello (with `%` for its pid), obeys one rule, and says something; then it is quiet.
PROGRAM = """
import ctypes, json, os, socket, sys, time
listener = socket.socket(fileno=int(sys.argv[1]))
hello, name = (bytes.fromhex(each) for each in sys.argv[2:4])
said = open(int(sys.argv[4]), "rb").read()
if name:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
while True:
    line, _ = listener.accept()
    line.sendall(hello.replace(b"%", str(os.getpid()).encode()) + b"\\n")
    file = line.makefile("rb")
    for asked in file:
        asked = json.loads(asked)
        if asked["do"] == "rule":
            line.sendall(b'{"told":"ruled","number":%d}\\n' % asked["number"] + said)
            said = b""
        if asked["do"] == "end":
            line.sendall(b'{"told":"ended"}\\n')
            sys.exit()
"""
HELLO = b'{"told":"hello","version":1,"slot":3,"pid":%,"number":0,"sandbox":null}'


class Liars:
    """Starts processes that say what they are to say; those after the last of them say nothing special."""

    def __init__(self, *said: tuple[bytes, bytes], name: bytes = b"") -> None:
        self.said = list(said)
        self.name = name
        self.started: list[subprocess.Popen[bytes]] = []

    async def fork(self, slot: Slot, sockets: ProxySockets, control: socket.socket) -> int:
        hello, said = self.said.pop(0) if self.said else (HELLO, b"")
        control.setblocking(True)
        with os.fdopen(os.memfd_create("said"), "wb") as words:
            words.write(said)
            words.seek(0)
            fds = [control.fileno(), words.fileno()]
            argv = [PYTHON, "-c", PROGRAM, str(fds[0]), hello.hex(), self.name.hex(), str(fds[1])]
            user = user_of(slot)
            process = subprocess.Popen(argv, pass_fds=fds, user=user, group=user, extra_groups=[])
        self.started.append(process)
        return process.pid

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


class Book(Told):
    def __init__(self) -> None:
        self.rows: list[Row] = []

    async def wrote(self, proxy: str, rows: list[Row]) -> None:
        self.rows += rows


async def no_sockets(_: Slot) -> ProxySockets:
    return ProxySockets(*(socket.socket() for _ in range(5)))


async def left_behind(liars: Liars, path: Path) -> None:
    """A proxy that a former daemon started."""
    sockets = await no_sockets(SLOT)
    with listening(path, user_of(SLOT)) as control:
        await liars.fork(SLOT, sockets, control)
    sockets.close()


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("other users need root")


@contextlib.asynccontextmanager
async def among(folder: Path, liars: Liars, book: Book | None = None) -> AsyncIterator[Proxies]:
    proxies = Proxies(
        folder / "egress", no_sockets, told=book or Book(), now_ms=lambda: 1, environ={}, log=folder / "log"
    )
    proxies.zygote = liars  # type: ignore[assignment]
    async with proxies.running():
        yield proxies


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


NONSENSE = {
    "a list": b"[]\n",
    "a number": b"1\n",
    "nothing": b"null\n",
    "text": b'"row"\n',
    "no JSON": b"{{{\n",
    "deep": b"[" * 60_000 + b"\n",
    "no end": b"x" * 200_000,
    "a row without anything": b'{"told":"row"}\n',
    "an open list": b'{"told":"open","id":[]}\n',
    "somebody else's connection": orjson.dumps(ROW | {"sandbox": "sb-2"}) + b"\n",
    "somebody else's open connection": orjson.dumps(OPEN | {"sandbox": "sb-2"}) + b"\n",
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_costs_the_one_who_says_it_its_place_and_nothing_else(tmp_path: Path, said: bytes) -> None:
    liars, book = Liars((HELLO, said)), Book()
    async with among(tmp_path, liars, book) as proxies:
        proxy = await proxies.start(SLOT)
        await proxy.rule("sb-1", Policy())
        await until(lambda: len(liars.started) >= 2 and proxy._channel is not None)
        await proxy.rule("sb-1", Policy())
        assert processes.owner(liars.started[0].pid) is None
        assert all(row.sandbox == "sb-1" for row in book.rows)
        await proxies.end(proxy)


HELLOS = {
    "a list": b"[]",
    "no JSON": b"{{",
    "no number": HELLO.replace(b'"number":0', b'"number":"x"'),
    "a large number": HELLO.replace(b'"number":0', b'"number":18446744073709551615'),
    "no pid": HELLO.replace(b"%", b"[]"),
    "a large pid": HELLO.replace(b"%", b"18446744073709551615"),
    "another's pid": HELLO.replace(b"%", b"1"),
}


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS.keys())
async def test_one_that_does_not_say_who_it_is_is_replaced(tmp_path: Path, hello: bytes) -> None:
    """When a proxy takes another's place, and when a former daemon left one."""
    liars = Liars((HELLO, b"[]\n"), (hello, b""))
    async with among(tmp_path, liars) as proxies:
        proxy = await proxies.start(SLOT)
        with contextlib.suppress(NetError):  # of the second
            await proxy.rule("sb-1", Policy())
        await until(lambda: len(liars.started) >= 3 and proxy._channel is not None)
        proxy.let_go()
    liars.close()
    before = len(liars.started)
    liars.said = [(hello, b"")]
    await left_behind(liars, tmp_path / "egress/3.sock")
    async with among(tmp_path, liars) as proxies:
        proxy = await proxies.adopt(SLOT, "sb-1")
        await proxy.rule("sb-1", Policy())
        assert len(liars.started) == before + 2
        await proxies.end(proxy)


async def test_one_that_dies_before_it_says_anything_is_replaced(tmp_path: Path) -> None:
    liars = Liars((HELLO, b"[]\n"), (b"", b""))
    fork = liars.fork

    async def fork_and_kill(slot: Slot, sockets: ProxySockets, control: socket.socket) -> int:
        pid = await fork(slot, sockets, control)
        if len(liars.started) == 2:
            liars.started[-1].kill()
            liars.started[-1].wait()
        return pid

    liars.fork = fork_and_kill  # type: ignore[method-assign]
    async with among(tmp_path, liars) as proxies:
        proxy = await proxies.start(SLOT)
        with contextlib.suppress(NetError):  # of the second
            await proxy.rule("sb-1", Policy())
        await until(lambda: len(liars.started) >= 3 and proxy._channel is not None)
        await proxies.end(proxy)


async def test_a_process_may_call_itself_anything(tmp_path: Path) -> None:
    """Its name is in the files of /proc that we read of all processes."""
    liars = Liars(name=b"\xff)\n\xfe")
    async with among(tmp_path, liars) as proxies:
        proxy = await proxies.start(SLOT)
        await proxy.rule("sb-1", Policy())
        [process] = liars.started
        assert processes.owner(process.pid) == user_of(SLOT)
        await proxies.end(proxy)
        assert process.poll() is not None


async def test_what_is_told_without_end_is_not_kept_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poold.egress.proxies.MAX_OPENS", 50)
    monkeypatch.setattr("poold.egress.proxies.MAX_UNWRITTEN", 50)
    opens = b"".join(orjson.dumps(OPEN | {"id": number}) + b"\n" for number in range(100))
    rows = b"".join(orjson.dumps(ROW | {"number": number}) + b"\n" for number in range(1, 101))

    class Slow(Book):
        async def wrote(self, proxy: str, rows: list[Row]) -> None:
            if rows[0].number:  # and not what the host itself tells
                await asyncio.Event().wait()

    liars = Liars((HELLO, opens), (HELLO, rows))
    async with among(tmp_path, liars, Slow()) as proxies:
        proxy = await proxies.start(SLOT)
        await proxy.rule("sb-1", Policy())
        await until(lambda: len(liars.started) >= 3)  # both were replaced
        assert len(proxy.opens) <= 50
        proxy.let_go()
    liars.close()


async def test_rows_of_a_former_daemons_sandbox_are_taken_and_no_others(tmp_path: Path) -> None:
    liars, book = Liars((HELLO, b"")), Book()
    async with among(tmp_path, liars, book) as proxies:
        proxy = await proxies.start(SLOT)
        await proxy.rule("sb-1", Policy())
        proxy.let_go()
    liars.close()
    liars.said = [(HELLO + b"\n" + orjson.dumps(ROW), b"")]
    await left_behind(liars, tmp_path / "egress/3.sock")
    async with among(tmp_path, liars, book) as proxies:
        proxy = await proxies.adopt(SLOT, "sb-1")
        await until(lambda: [row.sandbox for row in book.rows] == ["sb-1"])
        await proxies.end(proxy)


MULTIPLY = """
import os, sys, time
from poold.egress.zygote import _drop_rights
_drop_rights(int(sys.argv[1]), 3)
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
time.sleep(60)
"""


async def test_a_proxy_cannot_multiply_and_nothing_of_it_is_left() -> None:
    user = user_of(SLOT)
    with subprocess.Popen([sys.executable, "-c", MULTIPLY, str(user)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        made = int(await asyncio.to_thread(process.stdout.readline))
        await end_all_of(user)
        assert 0 < made < 20
    assert [
        pid for pid in processes.of_user(user) if b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    ] == []

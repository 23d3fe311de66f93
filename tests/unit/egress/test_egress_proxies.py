"""Proxies as poold has them: real processes at real slots, asked for names by a guest made of frames."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.egress import Row, Waiting
from contract.network import HostRule
from poold import processes
from poold.egress.forks import UID_OFFSET
from poold.egress.policy import Level, Policy
from poold.egress.proxies import Proxies, Proxy, Told
from poold.net import Slots, open_slots
from tests.unit.net.fake_guest import UDP, FakeGuest, fake_guest

LIMIT_S = 15.0
BASE_UID = 205_000 + os.getpid() % 20_000  # other tests may run on this host at the same time
OPEN = Policy(levels=(Level("host", is_open=True), Level("sandbox", hosts=(HostRule("a.example"),))))


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("slots need root")


@dataclass
class Book(Told):
    """Keeps what is told, unless it is told to fail."""

    rows: list[Row] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def wrote(self, proxy: str, rows: list[Row]) -> None:
        self.rows += rows
        self.heard.set()

    def waits(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self.heard.clear()
                await self.heard.wait()


@contextlib.asynccontextmanager
async def open_proxies(folder: Path, slots: Slots, book: Book) -> AsyncIterator[Proxies]:
    proxies = Proxies(
        folder / "egress", slots.proxy_sockets, told=book, now_ms=lambda: 1000, environ=os.environ, log=folder / "log"
    )
    async with proxies.running():
        yield proxies


@contextlib.asynccontextmanager
async def one(folder: Path, book: Book) -> AsyncIterator[tuple[Proxies, Proxy, FakeGuest]]:
    """A slot with a guest and a proxy."""
    async with open_slots(folder, count=1, base_uid=BASE_UID) as slots, open_proxies(folder, slots, book) as proxies:
        slot = slots.take_nowait()
        with fake_guest(slot.netns, slot.tap) as guest:
            proxy = await proxies.start(slot)
            try:
                yield proxies, proxy, guest
            finally:
                await proxies.end(proxy)
                assert processes_of(slot.uid) == []


def processes_of(uid: int) -> list[int]:
    """The proxies of a slot. One that has ended may wait for whoever adopted it to notice."""
    return [pid for pid in processes.of_user(uid + UID_OFFSET) if not is_over(pid)]


def is_over(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def ask(guest: FakeGuest, name: str, number: int = 7) -> bytes:
    """What a name server says, whichever the guest asks."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    guest.send(UDP, "9.9.9.9", struct.pack("!HHHH", 40001, 53, 8 + len(question), 0) + question)
    while (answer := guest.next_packet()).protocol != UDP:
        pass
    assert answer.source == "9.9.9.9"
    return answer.payload[8:]


def address_in(answer: bytes) -> str | None:
    """The address that it gives, if it gives one."""
    return socket.inet_ntoa(answer[-4:]) if struct.unpack("!H", answer[6:8])[0] else None


async def test_a_new_proxy_denies_everything_and_says_so(tmp_path: Path) -> None:
    book = Book()
    async with one(tmp_path, book) as (_, proxy, guest):
        assert address_in(await asyncio.to_thread(ask, guest, "a.example")) is None
        await proxy.rule("sb-1", Policy())
        assert address_in(await asyncio.to_thread(ask, guest, "b.example")) is None
        await book.until(lambda: len(book.rows) == 2)
        first, second = book.rows
        assert (first.sandbox, first.verdict, first.via, first.why) == (None, "refused", "dns", "policy")
        assert first.name == "a.example"
        assert (second.sandbox, second.name) == ("sb-1", "b.example")


async def test_a_rule_is_in_force_when_it_is_told(tmp_path: Path) -> None:
    async with one(tmp_path, Book()) as (_, proxy, guest):
        for number in range(20):
            policy = OPEN if number % 2 else Policy()
            await proxy.rule("sb-1", policy)
            given = address_in(await asyncio.to_thread(ask, guest, "a.example"))
            assert (given is not None) == bool(number % 2)


async def test_a_proxy_that_is_killed_comes_back_under_its_rules(tmp_path: Path) -> None:
    async with one(tmp_path, Book()) as (_, proxy, guest):
        await proxy.rule("sb-1", OPEN)
        [before] = processes_of(proxy.slot.uid)
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            while processes_of(proxy.slot.uid) in ([before], []):
                await asyncio.sleep(0.02)
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(TimeoutError, AssertionError):
                    if address_in(await asyncio.to_thread(ask, guest, "a.example")) is not None:
                        break


async def test_a_proxy_outlives_its_daemon_and_tells_the_next_what_it_missed(tmp_path: Path) -> None:
    former, book = Book(), Book()
    async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        with fake_guest(slot.netns, slot.tap) as guest:
            async with open_proxies(tmp_path, slots, former) as proxies:
                await (await proxies.start(slot)).rule("sb-1", OPEN)
            [pid] = processes_of(slot.uid)
            assert address_in(await asyncio.to_thread(ask, guest, "a.example")) is not None
            assert address_in(await asyncio.to_thread(ask, guest, "missed.example")) is None
            async with open_proxies(tmp_path, slots, book) as proxies:
                proxy = await proxies.adopt(slot, "sb-1")
                assert processes_of(slot.uid) == [pid]
                await book.until(lambda: [row.name for row in book.rows] == ["missed.example"])
                assert book.rows[0].sandbox == "sb-1"
                await proxies.end(proxy)
            assert processes_of(slot.uid) == []


async def test_what_a_former_daemon_left_is_swept_unless_it_is_kept(tmp_path: Path) -> None:
    async with open_slots(tmp_path, count=2, base_uid=BASE_UID) as slots:
        one, two = slots.take_nowait(), slots.take_nowait()
        async with open_proxies(tmp_path, slots, Book()) as proxies:
            await proxies.start(one)
            await proxies.start(two)
        async with open_proxies(tmp_path, slots, Book()) as proxies:
            await proxies.sweep({two.number})
            assert (len(processes_of(one.uid)), len(processes_of(two.uid))) == (0, 1)
            await proxies.sweep(())
            assert processes_of(two.uid) == []
        assert not (tmp_path / "egress").exists()


async def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        async with open_proxies(tmp_path, slots, Book()) as proxies:
            for delay_ms in (0, 1, 2, 4, 8, 16, 32, 64, 400):
                starting = asyncio.ensure_future(proxies.start(slot))
                await asyncio.sleep(delay_ms / 1000)
                starting.cancel()
                await asyncio.wait([starting])
                if not starting.cancelled():
                    await proxies.end(starting.result())
                assert processes_of(slot.uid) == []
            await proxies.end(await proxies.start(slot))


async def test_a_proxy_has_no_rights(tmp_path: Path) -> None:
    async with one(tmp_path, Book()) as (_, proxy, _guest):
        [pid] = processes_of(proxy.slot.uid)
        status = Path(f"/proc/{pid}/status").read_text()
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["NoNewPrivs"] == "1"
        assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert facts["Groups"].strip() == ""
        assert proxy.slot.uid not in map(int, facts["Uid"].split())

"""Proxies when something is killed, stopped, full or gone: poold goes on, and no guest is left without a proxy."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.egress import ENDED, Open, Row
from poold.egress import forks, proxies, traces
from poold.egress.channel import Channel
from poold.egress.policy import Policy
from poold.egress.proxies import Proxies, Proxy
from poold.errors import EngineError, LedgerFull, NetError
from poold.net import open_slots
from poold.slots import Slot
from tests.unit.egress.test_egress_proxies import (
    BASE_UID,
    LIMIT_S,
    OPEN,
    Book,
    address_in,
    ask,
    one,
    open_proxies,
    processes_of,
)
from tests.unit.net.fake_guest import FakeGuest, fake_guest

UNDER_WAY = Open(9, "sb-1", 500, "tls", "a.example", "192.0.2.1", 443, "a.example:80,443")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="slots need root")


@dataclass
class FullBook(Book):
    is_full: bool = True
    tries: int = field(default=0)

    async def wrote(self, proxy: str, rows: list[Row]) -> None:
        self.tries += 1
        self.heard.set()
        if self.is_full:
            raise LedgerFull(Path("ledger"))
        await super().wrote(proxy, rows)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def is_allowed(guest: FakeGuest) -> None:
    """Return when the guest gets an answer for what is allowed."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(TimeoutError, AssertionError):
                if address_in(await asyncio.to_thread(ask, guest, "a.example")) is not None:
                    return


@contextlib.asynccontextmanager
async def a_slot(folder: Path) -> AsyncIterator[tuple[Proxies, Slot]]:
    async with (
        open_slots(folder, count=1, base_uid=BASE_UID) as slots,
        open_proxies(folder, slots, Book()) as home,
    ):
        slot = slots.take_nowait()
        yield home, slot
        assert processes_of(slot.uid) == []


def around_fork(home: Proxies, monkeypatch: pytest.MonkeyPatch, then: Callable[[int], Awaitable[None]]) -> list[int]:
    """Have `then` done with every pid of a new proxy, before anybody hears of it. Returns the pids."""
    fork, pids = home.zygote.fork, []

    async def forked(*args: Any) -> int:
        pid = await fork(*args)
        pids.append(pid)
        await then(len(pids))
        return pid

    monkeypatch.setattr(home.zygote, "fork", forked)
    return pids


@needs_root
async def test_a_proxy_that_ends_at_once_is_a_fault_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_slot(tmp_path) as (home, slot):

        async def kill(_count: int) -> None:
            os.kill(pids[-1], signal.SIGKILL)
            await until(lambda: processes_of(slot.uid) == [])

        pids = around_fork(home, monkeypatch, kill)
        with pytest.raises(NetError):
            await home.start(slot)


@needs_root
async def test_a_proxy_that_ends_again_and_again_costs_nobody_else_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path, Book()) as (home, proxy, guest):

        async def kill(count: int) -> None:
            if count <= 3:
                os.kill(pids[-1], signal.SIGKILL)
                await until(lambda: pids[-1] not in processes_of(proxy.slot.uid))

        pids = around_fork(home, monkeypatch, kill)
        await proxy.rule("sb-1", OPEN)
        os.kill(processes_of(proxy.slot.uid)[0], signal.SIGKILL)
        await is_allowed(guest)
        assert len(pids) == 4


@needs_root
async def test_where_no_file_can_be_made_there_is_no_proxy_and_poold_goes_on(tmp_path: Path) -> None:
    async with a_slot(tmp_path) as (home, slot):
        shutil.rmtree(tmp_path / "egress")
        with pytest.raises(NetError):
            await home.start(slot)
        (tmp_path / "egress").mkdir()
        await home.end(await home.start(slot))


@needs_root
async def test_a_process_that_cannot_be_ended_does_not_end_poold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path, Book()) as (_, proxy, guest):
        await proxy.rule("sb-1", OPEN)
        tries = 0

        async def fail_once(uid: int) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise EngineError("killing", "process 7")
            await traces.end_all_of(uid)

        monkeypatch.setattr(proxies, "end_all_of", fail_once)
        os.kill(processes_of(proxy.slot.uid)[0], signal.SIGKILL)
        await is_allowed(guest)
        assert tries > 1


@needs_root
async def test_a_rule_that_could_not_be_put_in_force_is_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path, Book()) as (home, proxy, guest):
        fork, is_broken = home.zygote.fork, True

        async def forked(*args: Any) -> int:
            if is_broken:
                raise NetError("start", "a proxy")
            return await fork(*args)

        monkeypatch.setattr(home.zygote, "fork", forked)
        monkeypatch.setattr(proxies, "RULE_LIMIT_S", 0.3)
        os.kill(processes_of(proxy.slot.uid)[0], signal.SIGSTOP)
        with pytest.raises(NetError):
            await proxy.rule("sb-1", OPEN)
        assert processes_of(proxy.slot.uid) == []
        is_broken = False
        await is_allowed(guest)


@needs_root
async def test_one_that_ended_is_replaced_once_also_if_a_rule_finds_it_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path, Book()) as (home, proxy, guest):

        async def slowly(_count: int) -> None:
            await asyncio.sleep(0.2)

        pids = around_fork(home, monkeypatch, slowly)
        [before] = processes_of(proxy.slot.uid)
        os.kill(before, signal.SIGKILL)
        await until(lambda: len(pids) == 1)  # it is on its way
        await asyncio.gather(proxy.rule("sb-1", Policy()), proxy.rule("sb-1", OPEN))
        await is_allowed(guest)
        assert processes_of(proxy.slot.uid) == pids


@needs_root
@pytest.mark.parametrize("ends", [True, False])
async def test_connections_of_a_proxy_that_had_to_be_killed_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(proxies, "RULE_LIMIT_S", 0.3)
    monkeypatch.setattr(proxies, "END_LIMIT_S", 0.5)
    book = Book()
    async with one(tmp_path, book) as (home, proxy, _):
        await proxy.rule("sb-1", OPEN)
        proxy.opens[UNDER_WAY.id] = UNDER_WAY
        os.kill(processes_of(proxy.slot.uid)[0], signal.SIGSTOP)
        await (home.end(proxy) if ends else proxy.rule("sb-1", Policy()))
        await book.until(lambda: [(row.sandbox, row.id, row.why) for row in book.rows] == [("sb-1", 9, ENDED)])


@needs_root
async def test_a_full_ledger_keeps_no_proxy_from_coming_back_and_nobody_from_leaving(tmp_path: Path) -> None:
    book = FullBook()
    async with asyncio.timeout(LIMIT_S):
        async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
            slot = slots.take_nowait()
            with fake_guest(slot.netns, slot.tap) as guest:
                async with open_proxies(tmp_path, slots, book) as home:
                    proxy = await home.start(slot)
                    await proxy.rule("sb-1", OPEN)
                    proxy.opens[UNDER_WAY.id] = UNDER_WAY
                    os.kill(processes_of(slot.uid)[0], signal.SIGKILL)
                    await is_allowed(guest)
                    await until(lambda: book.tries > 0)
                async with open_proxies(tmp_path, slots, book) as home:
                    await home.sweep(())
                assert processes_of(slot.uid) == []


@needs_root
async def test_a_start_that_is_cancelled_under_a_hung_zygote_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "FORK_LIMIT_S", 1.0)
    async with a_slot(tmp_path) as (home, slot):
        await home.end(await home.start(slot))
        zygote = home.zygote._process
        assert zygote is not None
        os.kill(zygote.pid, signal.SIGSTOP)
        starting = asyncio.ensure_future(home.start(slot))
        await asyncio.sleep(0.3)
        starting.cancel()
        await asyncio.wait([starting])
        proxy = await home.start(slot)
        assert processes_of(slot.uid) == [proxy._pid]
        await home.end(proxy)


def test_a_zygote_whose_poold_was_killed_makes_no_proxy_that_nobody_sweeps(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = tmp_path / "made"
    made.touch()
    with ours, theirs, made.open() as file:
        # It is still starting when this is asked for, and poold is gone when it has started.
        socket.send_fds(ours, [b'{"slot": 0, "uid": 1}'], [file.fileno()])
        argv = [sys.executable, "-m", "poold.egress.zygote", str(theirs.fileno()), str(tmp_path)]
        zygote = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        theirs.close()
        ours.close()
        _, said = zygote.communicate(timeout=LIMIT_S)
    assert (zygote.returncode, said) == (0, b"")


@needs_root
async def test_a_folder_with_a_long_name_will_do(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    async with one(folder, Book()) as (_, proxy, guest):
        await proxy.rule("sb-1", OPEN)
        await is_allowed(guest)


@needs_root
async def test_the_last_words_of_a_proxy_that_is_swept_are_written_down(tmp_path: Path) -> None:
    former, book = Book(), Book()
    async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        with fake_guest(slot.netns, slot.tap) as guest:
            async with open_proxies(tmp_path, slots, former) as home:
                await (await home.start(slot)).rule("sb-1", OPEN)
            assert address_in(await asyncio.to_thread(ask, guest, "missed.example")) is None
            async with open_proxies(tmp_path, slots, book) as home:
                await home.sweep(())
            assert [(row.sandbox, row.name) for row in book.rows] == [("sb-1", "missed.example")]
            assert processes_of(slot.uid) == []


@needs_root
async def test_what_cannot_be_swept_costs_the_others_nothing(tmp_path: Path) -> None:
    async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        async with open_proxies(tmp_path, slots, Book()) as home:
            await home.start(slot)
        (tmp_path / "egress" / "00.sock").mkdir()
        (tmp_path / "egress" / "12.sock").write_text("")
        async with open_proxies(tmp_path, slots, Book()) as home:
            await home.sweep(())
        assert processes_of(slot.uid) == []
        assert [path.name for path in (tmp_path / "egress").iterdir()] == ["00.sock"]


@needs_root
@pytest.mark.parametrize("lost", ["its file", "its mind", "its sandbox"])
async def test_a_proxy_that_cannot_be_taken_over_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(proxies, "HELLO_LIMIT_S", 1.0)
    async with open_slots(tmp_path, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        with fake_guest(slot.netns, slot.tap) as guest:
            async with open_proxies(tmp_path, slots, Book()) as home:
                await (await home.start(slot)).rule("sb-9" if lost == "its sandbox" else "sb-1", OPEN)
            [before] = processes_of(slot.uid)
            if lost == "its file":
                (tmp_path / "egress" / "0.sock").unlink()
            elif lost == "its mind":
                os.kill(before, signal.SIGSTOP)
            async with open_proxies(tmp_path, slots, Book()) as home:
                proxy = await home.adopt(slot, "sb-1")
                await proxy.rule("sb-1", OPEN)
                await is_allowed(guest)
                assert before not in processes_of(slot.uid)
                await home.end(proxy)


async def said(folder: Path, words: bytes) -> tuple[asyncio.Server, Path]:
    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await writer.drain()
        writer.close()

    path = folder / "0.sock"
    return await asyncio.start_unix_server(say, path), path


@pytest.mark.parametrize("words", [b"[1]\n", b"7\n", b"null\n", b"{\n", b"\n", b"\xff\n"])
async def test_nonsense_is_a_value_error_whatever_it_is(tmp_path: Path, words: bytes) -> None:
    server, path = await said(tmp_path, words)
    async with server:
        with contextlib.closing(await Channel.open(path)) as channel, pytest.raises(ValueError):  # noqa: PT011 — by many
            await channel.first()
        with contextlib.closing(await Channel.open(path)) as channel, pytest.raises(ValueError):  # noqa: PT011 — by many
            async for _ in channel.told():
                pass


@pytest.mark.parametrize("sandbox", [None, "sb-1", "sb-2"])
async def test_a_proxy_tells_of_its_own_sandbox_only(tmp_path: Path, sandbox: str | None) -> None:
    home = Proxies(tmp_path, None, told=Book(), now_ms=lambda: 0, environ={}, log=tmp_path / "log")  # type: ignore[arg-type]
    proxy = Proxy(home, Slot(0, tmp_path / "0", "tap", BASE_UID), "sb-1")
    opened = {"told": "open", "id": 1, "at_ms": 1, "via": "tls", "sandbox": sandbox}
    row = opened | {"told": "row", "verdict": "allowed", "up": 0, "down": 0, "times": 1, "number": 1}
    for told in (opened, row):
        with pytest.raises(ValueError, match="sb-2") if sandbox == "sb-2" else contextlib.nullcontext():
            proxy._take([told], {})


async def test_a_proxy_tells_no_more_than_there_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "MAX_OPENS", 3)
    home = Proxies(tmp_path, None, told=Book(), now_ms=lambda: 0, environ={}, log=tmp_path / "log")  # type: ignore[arg-type]
    proxy, opens = Proxy(home, Slot(0, tmp_path / "0", "tap", BASE_UID)), {}
    for number in range(3):
        proxy._take([{"told": "open", "id": number, "at_ms": 1, "via": "tls"}], opens)
    with pytest.raises(ValueError, match="more than"):
        proxy._take([{"told": "open", "id": 3, "at_ms": 1, "via": "tls"}], opens)

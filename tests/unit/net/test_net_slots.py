"""Slots are alike, used once, and leave nothing: after the block, after an error, a cancellation or a kill."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from poold.errors import NetError, NoFreeSlot
from poold.net import Slots, folder, libnft, namespace, nft, open_slots, tap
from poold.slots import Slot
from tests.unit.net.fake_guest import fake_guest, in_namespace

BASE_UID = 200_000


def pins(run_dir: Path) -> list[str]:
    return sorted(os.listdir(run_dir / "netns"))


def seen_in(slot: Slot) -> dict[str, Any]:
    """All that `ip`, `nft` and `sysctl` say about a slot."""

    def told(*argv: str) -> str:
        return subprocess.check_output(["nsenter", f"--net={slot.netns}", *argv], text=True)

    links = json.loads(told("ip", "-j", "-d", "addr"))
    for link in links:
        # The kernel takes up to a second to see that a tap was closed: these tell when we looked, not what is there.
        link["flags"] = sorted(set(link["flags"]) - {"NO-CARRIER", "LOWER_UP"})
        link.pop("operstate")
    return {
        "owner": links[1]["linkinfo"]["info_data"].pop("user"),
        "links": links,
        "neighbours": told("ip", "neigh"),
        "routes": told("ip", "route").replace("linkdown ", ""),
        "rules": told("nft", "list", "ruleset"),
        "forwarding": told("cat", "/proc/sys/net/ipv4/ip_forward").strip(),
        "ipv6": told("cat", "/proc/net/if_inet6"),
    }


async def test_slots_are_all_alike_but_for_their_owner(run_dir: Path) -> None:
    async with open_slots(run_dir, count=3, base_uid=BASE_UID) as slots:
        taken = [slots.take_nowait() for _ in range(3)]
        seen = [seen_in(slot) for slot in taken]
    assert [slot.number for slot in taken] == [0, 1, 2]
    assert [int(each.pop("owner")) for each in seen] == [slot.uid for slot in taken] == [200_000, 200_001, 200_002]
    assert seen[0] == seen[1] == seen[2]

    loopback, card = seen[0]["links"]
    assert (loopback["ifname"], card["ifname"]) == ("lo", "tap0")
    assert "UP" in loopback["flags"]
    assert "UP" in card["flags"]
    assert card["address"] == "02:57:41:52:00:01"
    assert [(a["local"], a["prefixlen"]) for a in card["addr_info"]] == [("172.16.0.1", 30)]
    assert seen[0]["neighbours"].split()[:5] == ["172.16.0.2", "dev", "tap0", "lladdr", "02:57:41:52:00:02"]
    assert "PERMANENT" in seen[0]["neighbours"]
    assert [line.split()[0] for line in seen[0]["routes"].splitlines()] == ["172.16.0.0/30"]
    assert (seen[0]["forwarding"], seen[0]["ipv6"]) == ("0", "")


async def test_two_hundred_slots_leave_nothing(run_dir: Path) -> None:
    async with open_slots(run_dir, count=200, base_uid=BASE_UID) as slots:
        assert slots.free == 200
        assert len(pins(run_dir)) == 200
    assert pins(run_dir) == []


async def test_a_slot_is_taken_once(run_dir: Path) -> None:
    async with open_slots(run_dir, count=2, base_uid=BASE_UID) as slots:
        first, second = slots.take_nowait(), slots.take_nowait()
        assert first.number != second.number
        assert slots.taken == {first, second}
        with pytest.raises(NoFreeSlot):
            slots.take_nowait()
        await slots.give_back(first)
        assert (slots.free, slots.taken) == (1, {second})
        assert slots.take_nowait() == first


async def test_giving_back_twice_frees_once(run_dir: Path) -> None:
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        await asyncio.gather(slots.give_back(slot), slots.give_back(slot))
        await slots.give_back(slot)
        assert slots.free == 1


async def test_the_next_machine_finds_nothing_of_the_last(run_dir: Path) -> None:
    def refused(slot: Slot) -> str:
        return in_namespace(slot.netns, lambda: nft.run_nft("list counter inet warren refused"))

    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        former, untouched = slot.netns.stat().st_ino, refused(slot)
        with fake_guest(slot.netns, slot.tap) as guest, await slots.socket_in(slot) as ours:
            guest.send_udp("8.8.8.8", 123)
            assert refused(slot) != untouched
            # Also while a monitor that dies slowly and a forgotten socket are still inside.
            await slots.give_back(slot)
            assert slots.take_nowait() == slot
            assert slot.netns.stat().st_ino != former
            assert refused(slot) == untouched
            assert ours.fileno() >= 0


async def test_a_failed_give_back_can_be_repeated(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        with monkeypatch.context() as broken:
            broken.setattr(folder, "RULES", "no such command")
            with pytest.raises(NetError, match="syntax error"):
                await slots.give_back(slot)
        assert (slots.free, slots.taken) == (0, {slot})
        await slots.give_back(slot)
        assert (slots.free, pins(run_dir)) == (1, ["0"])


async def test_a_socket_after_the_end_is_refused(run_dir: Path) -> None:
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
    with pytest.raises(NetError):
        await slots.socket_in(slot)
    await slots.give_back(slot)
    assert pins(run_dir) == []


HOLDER = """
import asyncio, sys
from pathlib import Path
from poold.net import open_slots

async def main():
    async with open_slots(Path(sys.argv[1]), count=5, base_uid=200_000) as slots:
        slots.take_nowait()
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def killed_holder(run_dir: Path, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let another process open five slots, and kill it."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run_dir)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"ready\n"
            meanwhile()
        finally:
            holder.send_signal(signal.SIGKILL)


async def test_after_a_kill_the_next_daemon_leaves_none(run_dir: Path) -> None:
    killed_holder(run_dir)
    assert pins(run_dir) == ["0", "1", "2", "3", "4"]
    async with open_slots(run_dir, count=2, base_uid=BASE_UID) as slots:
        assert (slots.free, pins(run_dir)) == (2, ["0", "1"])
    assert pins(run_dir) == []


async def test_the_next_daemon_keeps_the_slots_that_it_is_told_to(run_dir: Path) -> None:
    killed_holder(run_dir)
    before = {number: (run_dir / "netns" / str(number)).stat().st_ino for number in range(5)}
    async with open_slots(run_dir, count=3, base_uid=BASE_UID, keep={1, 4, 7}) as slots:
        assert pins(run_dir) == ["0", "1", "2", "4"]
        assert {slot.number: slot.netns.stat().st_ino for slot in slots.taken} == {1: before[1], 4: before[4]}
        assert slots.free == 2
        for slot in slots.taken:
            await slots.give_back(slot)
        # The fifth is beyond this daemon's count, so it is gone.
        assert (slots.free, pins(run_dir)) == (3, ["0", "1", "2"])
    assert pins(run_dir) == []


async def test_a_failed_opening_leaves_the_kept_slots_alone(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_holder(run_dir)
    with monkeypatch.context() as broken:
        broken.setattr(folder, "RULES", "no such command")
        with pytest.raises(NetError):
            async with open_slots(run_dir, count=3, base_uid=BASE_UID, keep={1}):
                pass
    assert pins(run_dir) == ["1"]
    async with open_slots(run_dir, count=0, base_uid=BASE_UID):
        pass
    assert pins(run_dir) == []


async def test_two_daemons_do_not_share_a_folder(run_dir: Path) -> None:
    async def second() -> None:
        async with open_slots(run_dir, count=1, base_uid=BASE_UID):
            pass

    async with open_slots(run_dir, count=2, base_uid=BASE_UID):
        with pytest.raises(NetError, match="another poold"):
            await second()
        assert pins(run_dir) == ["0", "1"]


async def test_junk_in_the_folder_is_no_obstacle(run_dir: Path) -> None:
    (run_dir / "netns").mkdir(parents=True)
    for name in ("0", "7", "007", "notes", "²"):
        (run_dir / "netns" / name).write_text("junk")
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        assert slots.free == 1
        assert namespace.is_pin(run_dir / "netns" / "0")
    # What has no name of ours is not ours to remove.
    assert pins(run_dir) == ["007", "notes", "²"]


class InjectedError(NetError):
    pass


class Interruption:
    """Does something at the nth step that a worker takes, whichever slot it is for."""

    STEPS = ("fresh", "_set", "new_tap", "wire", "run_nft", "pin_to", "unpin", "is_pin", "sweep")

    def __init__(self, at: int, happen: Callable[[str], None]) -> None:
        self._left = at
        self._happen = happen

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in self.STEPS:
            patch.setattr(folder, name, self._around(name, getattr(folder, name)))
        patch.setattr(namespace, "socket_in", self._around("socket_in", namespace.socket_in))

    @property
    def has_happened(self) -> bool:
        return self._left < 0

    def _around(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self._happen(name)
            return step(*args, **kwargs)

        return counted


async def whole_life(run_dir: Path) -> None:
    async with open_slots(run_dir, count=2, base_uid=BASE_UID) as slots:
        slot = slots.take_nowait()
        (await slots.socket_in(slot)).close()
        await slots.give_back(slot)
        assert slots.free == 2


async def interrupted_everywhere(
    run_dir: Path, patch: pytest.MonkeyPatch, happen: Callable[[str], None], live: Callable[[], Awaitable[None]]
) -> int:
    """Live once for every step there is, with `happen` at that step, and look for leftovers. Return how many."""
    for at in range(1000):
        interruption = Interruption(at, happen)
        with patch.context() as within:
            interruption.install(within)
            await live()
        assert pins(run_dir) == []
        assert [thread.name for thread in threading.enumerate() if thread.name == "net"] == []
        if not interruption.has_happened:
            return at
    raise AssertionError("no end of steps")


async def test_an_error_at_any_step_leaves_nothing(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: str) -> None:
        # Removing is what cleans up: if that fails too, the next daemon does it.
        if step not in {"unpin", "is_pin", "sweep"}:
            raise InjectedError("take", step)

    async def live() -> None:
        with suppress(InjectedError):
            await whole_life(run_dir)

    assert await interrupted_everywhere(run_dir, monkeypatch, fail, live) > 30


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_at_any_step_leaves_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    loop = asyncio.get_running_loop()
    life: asyncio.Task[None]

    def cancel(step: str) -> None:
        for _ in range(times):
            loop.call_soon_threadsafe(life.cancel)

    async def live() -> None:
        nonlocal life
        life = asyncio.create_task(whole_life(run_dir))
        await asyncio.wait({life})
        if not life.cancelled():
            life.result()

    assert await interrupted_everywhere(run_dir, monkeypatch, cancel, live) > 30


async def test_a_cancelled_give_back_still_frees_the_slot(run_dir: Path) -> None:
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        giving = asyncio.create_task(slots.give_back(slots.take_nowait()))
        await asyncio.sleep(0)
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving
        assert (slots.free, pins(run_dir)) == (1, ["0"])


async def test_the_end_waits_for_what_is_being_given_back(run_dir: Path) -> None:
    async with open_slots(run_dir, count=5, base_uid=BASE_UID) as slots:
        giving = [asyncio.create_task(slots.give_back(slots.take_nowait())) for _ in range(5)]
        await asyncio.sleep(0)
    assert pins(run_dir) == []
    await asyncio.gather(*giving)
    assert pins(run_dir) == []


async def open_and_close(run_dir: Path) -> None:
    async with open_slots(run_dir, count=1, base_uid=BASE_UID) as slots:
        assert isinstance(slots, Slots)


async def test_a_missing_library_is_named_with_its_package(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libnft, "LIBRARY", "libnftables.so.999")
    libnft._library.cache_clear()
    with pytest.raises(NetError, match="apt install libnftables1"):
        await open_and_close(run_dir)
    assert pins(run_dir) == []


async def test_a_missing_tun_device_is_named_with_its_module(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "_TUN", "/dev/net/no-such-tun")
    with pytest.raises(NetError, match="modprobe tun"):
        await open_and_close(run_dir)
    assert pins(run_dir) == []


UNPRIVILEGED = """
import asyncio, os, sys
from pathlib import Path
from poold.errors import NetError
from poold.net import open_slots

async def main():
    try:
        async with open_slots(Path(sys.argv[1]), count=1, base_uid=200_000):
            pass
    except NetError as exc:
        print(exc)

os.chdir(sys.argv[1])
os.setuid(65534)
sys.argv[1] = "."
asyncio.run(main())
"""


def test_without_root_the_error_says_so(run_dir: Path) -> None:
    run_dir.mkdir()
    os.chown(run_dir, 65534, 65534)
    said = subprocess.check_output([sys.executable, "-c", UNPRIVILEGED, str(run_dir)], text=True)
    assert "run it as root" in said
    assert pins(run_dir) == []

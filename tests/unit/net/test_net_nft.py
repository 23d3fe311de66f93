"""nftables where a process has more files open than the library's `select` knows of."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from poold.errors import NetError
from poold.net import open_slots
from poold.net.nft import run_nft
from tests.unit.net.fake_guest import in_namespace

TABLE = "table inet told { counter seen { packets 0 bytes 0; }; }"


@contextmanager
def many_files(count: int) -> Iterator[int]:
    """Have `count` more files open; yields the last of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
        stack.callback(lambda: [os.close(fd) for fd in files])
        yield files[-1]


def refusal_of(commands: str) -> str:
    with pytest.raises(NetError) as refused:
        run_nft(commands)
    return str(refused.value)


@pytest.mark.parametrize("files", [0, 600, 2000])
async def test_rules_are_applied_and_listed_whatever_number_of_files_is_open(run_dir: Path, files: int) -> None:
    async with open_slots(run_dir, count=1, base_uid=200_000) as slots:
        slot = slots.take_nowait()
        with many_files(max(1, files)) as last:
            assert last >= files
            in_namespace(slot.netns, lambda: run_nft(TABLE))
            assert "counter seen" in in_namespace(slot.netns, lambda: run_nft("list table inet told"))
            assert "syntax error" in in_namespace(slot.netns, lambda: refusal_of("nonsense"))
        assert "No such file" in refusal_of("list table inet told")  # of this namespace, which has had nothing of it


async def test_slots_are_made_anew_with_two_thousand_files_open(run_dir: Path) -> None:
    with many_files(2000):
        async with open_slots(run_dir, count=2, base_uid=200_000) as slots:
            slot = slots.take_nowait()
            await slots.give_back(slot)
            listed = in_namespace(slot.netns, lambda: run_nft("list counter inet warren refused"))
    assert "packets 0" in listed

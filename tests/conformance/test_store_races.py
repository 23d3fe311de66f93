"""Many who want one key at once: in one process and in several."""

import asyncio
import os
import subprocess
import sys

import orjson
import pytest

from poold.config import S3Config
from poold.store import Entry, Store
from poold.store.errors import Conflict, Unreachable
from tests.conformance.stores import Bench

RACERS = 16


async def count_up(store: Store, key: str, who: int, times: int = 1) -> None:
    """Add our name to a list, by compare-and-swap, as often as it takes."""
    for turn in range(times):
        while True:
            blob = await store.get(key)
            names = [*orjson.loads(blob.data), f"{who}-{turn}"]
            try:
                await store.replace(key, orjson.dumps(names), blob.entry.tag)
                break
            except Conflict:
                continue


async def test_of_sixteen_creators_one_wins(shelf: Bench) -> None:
    for turn in range(2):
        key = f"races/{turn}"
        came = await asyncio.gather(
            *(shelf.store.create(key, b"%d" % who) for who in range(RACERS)), return_exceptions=True
        )
        won = [who for who, outcome in enumerate(came) if isinstance(outcome, Entry)]
        assert len(won) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in came) == RACERS - 1
        blob = await shelf.store.get(key)
        assert (blob.data, blob.entry) == (b"%d" % won[0], came[won[0]])


async def test_of_sixteen_who_compare_and_swap_none_is_lost(shelf: Bench) -> None:
    await shelf.store.create("list", b"[]")
    await asyncio.gather(*(count_up(shelf.store, "list", who) for who in range(RACERS)))
    names = orjson.loads((await shelf.store.get("list")).data)
    assert sorted(names) == sorted(f"{who}-0" for who in range(RACERS))


async def test_a_put_between_is_not_overwritten_by_who_did_not_see_it(shelf: Bench) -> None:
    """Puts and swaps at once: whoever swapped had seen what was there."""
    await shelf.store.create("a", b"0")
    for turn in range(10):
        known = await shelf.store.get("a")
        swapped, _ = await asyncio.gather(
            shelf.store.replace("a", b"swapped %d" % turn, known.entry.tag),
            shelf.store.put("a", b"put %d" % turn),
            return_exceptions=True,
        )
        now = (await shelf.store.get("a")).data
        assert now == b"put %d" % turn, (now, swapped)


async def test_deleting_and_creating_at_once_loses_no_folder(shelf: Bench) -> None:
    """The last one out of a folder must not take away the place of who comes in."""

    async def one(who: int) -> None:
        for _ in range(10):
            await shelf.store.create(f"shared/folder/{who}", b"x")
            await shelf.store.delete(f"shared/folder/{who}")

    await asyncio.gather(*(one(who) for who in range(8)))


PROGRAM = """
import asyncio, sys
from pathlib import Path
from poold.config import S3Config
from poold.store.opening import open_store
from tests.conformance.test_store_races import count_up

async def main() -> None:
    where = Path(sys.argv[1]) if sys.argv[2] == "" else S3Config(sys.argv[1], sys.argv[2])
    async with open_store(where) as store:
        await asyncio.gather(*(count_up(store, "list", int(sys.argv[3]) * 10 + one, 3) for one in range(2)))

asyncio.run(main())
"""


async def test_several_processes_lose_nothing_either(shelf: Bench) -> None:
    await shelf.store.create("list", b"[]")
    where = (shelf.where.bucket, shelf.where.prefix) if isinstance(shelf.where, S3Config) else (str(shelf.where), "")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *where, str(number)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for number in range(3)
    ]
    codes = await asyncio.gather(*(asyncio.to_thread(process.wait, 120) for process in started))
    assert codes == [0, 0, 0]
    names = orjson.loads((await shelf.store.get("list")).data)
    assert sorted(names) == sorted(f"{p * 10 + one}-{turn}" for p in range(3) for one in range(2) for turn in range(3))


async def test_who_is_killed_in_a_write_leaves_all_of_it_or_nothing_and_no_lock(shelf: Bench) -> None:
    program = PROGRAM.replace('count_up(store, "list", int(sys.argv[3]) * 10 + one, 3)', "forever(store, one)").replace(
        "async def main()",
        "async def forever(store, one):\n"
        "    print(flush=True)\n"
        "    while True:\n"
        "        await store.put('list', bytes([one]) * 100_000)\n\n"
        "async def main()",
    )
    where = (shelf.where.bucket, shelf.where.prefix) if isinstance(shelf.where, S3Config) else (str(shelf.where), "")
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *where, "0"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        async with asyncio.timeout(60):
            while True:
                try:
                    before = (await shelf.store.head("list")).tag
                    break
                except Exception:
                    continue
            while (await shelf.store.head("list")).tag == before and process.poll() is None:
                pass
        process.kill()
        await asyncio.to_thread(process.wait)
        process.stdout.close()
        data = (await shelf.store.get("list")).data
        assert data in (b"\0" * 100_000, b"\1" * 100_000)
        await shelf.store.put("list", b"nobody holds it")
        await shelf.store.delete("list")
    for name in shelf.back.left_over():  # a half of the folder's has a name of its own, and is swept after a day
        os.unlink(f"{shelf.where}/.new/{name}")


async def test_a_lock_that_is_never_free_is_given_up(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import fcntl
    import hashlib

    from poold.store.folder import open_folder

    async with open_folder(tmp_path, limit_s=0.3) as store:
        number = hashlib.sha256(b"a").digest()[0]
        with open(tmp_path / ".locks" / f"{number:02x}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(Unreachable):
                await store.put("a", b"x")
        await store.put("a", b"x")
        assert list((tmp_path / ".new").iterdir()) == []

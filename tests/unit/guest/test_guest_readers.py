"""Readers of a process: who comes late gets what is kept, who is slow loses nothing, and who leaves holds nobody up."""

import asyncio
from pathlib import Path

from warren_guest import frames

from tests.unit.guest.client import Client, Conversation, facts, output, read_until


async def test_a_process_lives_on_when_its_reader_leaves_and_can_be_attached_again(guest: Client) -> None:
    body = {"cmd": "bash", "args": ["-c", "echo first; read; echo second"], "stdin": True, "tag": "stays"}
    stream = await guest.stream("POST", "/processes", body)
    await read_until(stream, b"first\n")
    await stream.close()
    again = await guest.stream("GET", "/processes/tag:stays/attach?after=6")
    await guest.call("POST", "/processes/tag:stays/stdin", b"\n")
    found = [frame async for frame in again.frames()]
    assert facts(found, frames.START)["output_bytes"] == 6
    assert output(found, frames.STDOUT) == b"second\n"
    assert facts(found, frames.END)["exit_code"] == 0


async def test_a_late_reader_of_an_ended_process_gets_start_what_is_kept_and_end(guest: Client) -> None:
    pid = await guest.start("echo kept; exit 4")
    await guest.until_ended(pid)
    kept = [f async for f in (await guest.stream("GET", f"/processes/{pid}/attach?after=0")).frames()]
    assert [kind for kind, _ in kept] == [frames.START, frames.STDOUT, frames.END]
    late = [f async for f in (await guest.stream("GET", f"/processes/{pid}/attach")).frames()]
    assert [kind for kind, _ in late] == [frames.START, frames.END]
    assert facts(late, frames.START)["output_bytes"] == 5
    assert (await guest.call("GET", f"/processes/{pid}/attach?after=6")).code == "bad_field"


async def test_output_that_nobody_reads_is_kept_to_its_last_part_with_true_offsets(guest: Client) -> None:
    pid = await guest.start("head -c 1000000 /dev/zero; echo -n tail")
    ended = await guest.until_ended(pid)
    assert ended["output_bytes"] == 1_000_004
    stream = await guest.stream("GET", f"/processes/{pid}/attach?after=10")
    found = [frame async for frame in stream.frames()]
    kept = output(found, frames.STDOUT)
    assert kept.endswith(b"tail")
    assert 128 * 1024 < len(kept) <= 256 * 1024
    assert facts(found, frames.START)["output_bytes"] == 1_000_004 - len(kept)


async def test_two_readers_both_get_everything(guest: Client) -> None:
    pid = await guest.start("read; seq 1 200000", stdin=True)
    streams = [await guest.stream("GET", f"/processes/{pid}/attach") for _ in range(2)]
    await guest.call("POST", f"/processes/{pid}/stdin", b"\n")

    async def everything(stream: Conversation) -> bytes:
        return output([frame async for frame in stream.frames()], frames.STDOUT)

    expected = "".join(f"{i}\n" for i in range(1, 200_001)).encode()
    assert await asyncio.gather(*map(everything, streams)) == [expected, expected]


async def test_a_slow_reader_loses_nothing_and_slows_the_process(guest: Client, folder: Path) -> None:
    script = f"seq 1 3000000; touch {folder}/written"
    stream = await guest.stream("POST", "/processes", {"cmd": "bash", "args": ["-c", script], "tag": "slow"})

    async def has_stopped_growing() -> bool:
        before = (await guest.call("GET", "/processes/tag:slow")).json["output_bytes"]
        await asyncio.sleep(0.1)
        return bool(before and before == (await guest.call("GET", "/processes/tag:slow")).json["output_bytes"])

    await guest.until(has_stopped_growing)
    assert not (folder / "written").exists()
    found = [frame async for frame in stream.frames()]
    assert output(found, frames.STDOUT) == "".join(f"{i}\n" for i in range(1, 3_000_001)).encode()


async def test_a_slow_reader_that_leaves_does_not_hold_the_process(guest: Client) -> None:
    stream = await guest.stream("POST", "/processes", {"cmd": "seq", "args": ["1", "2000000"], "tag": "left"})
    await stream.close()
    pid = (await guest.call("GET", "/processes/tag:left")).json["pid"]
    assert (await guest.until_ended(pid))["exit_code"] == 0


async def test_single_bytes_to_both_streams_in_turn_reach_a_slow_reader_whole(guest: Client) -> None:
    script = "import os\nfor i in range(20000): os.write(1, b'o'); os.write(2, b'e')"
    stream = await guest.stream("POST", "/processes", {"cmd": "python3", "args": ["-c", script]})
    found = [frame async for frame in stream.frames()]
    assert output(found, frames.STDOUT) == b"o" * 20_000
    assert output(found, frames.STDERR) == b"e" * 20_000

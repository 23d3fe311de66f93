"""Processes: what they write arrives, in order and whole, and how they ended is never made up."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from warren_guest import frames

from tests.unit.guest.client import Client, end, facts, launch, output, read_until


async def test_a_stream_is_start_then_output_by_stream_then_end(guest: Client) -> None:
    found = await guest.run("echo out; echo err >&2; exit 3")
    assert found[0][0] == frames.START
    assert facts(found, frames.START)["output_bytes"] == 0
    assert output(found, frames.STDOUT) == b"out\n"
    assert output(found, frames.STDERR) == b"err\n"
    assert found[-1][0] == frames.END
    assert facts(found, frames.END)["exit_code"] == 3
    assert "signal" not in facts(found, frames.END)


async def test_a_killed_process_ends_with_its_signal_and_no_exit_code(guest: Client) -> None:
    told = facts(await guest.run("kill -9 $$"), frames.END)
    assert told["signal"] == "SIGKILL"
    assert "exit_code" not in told


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "bad_field", "cmd"),
        ({"cmd": ""}, "bad_field", "cmd"),
        ({"cmd": "no-such-program"}, "program_not_found", "cmd"),
        ({"cmd": "/etc/passwd"}, "program_not_executable", "cmd"),
        ({"cmd": "/etc"}, "program_not_executable", "cmd"),
        ({"cmd": "true", "cwd": "/no/such/folder"}, "cwd_not_found", "cwd"),
        ({"cmd": "true", "cwd": "/etc/passwd"}, "cwd_not_found", "cwd"),
        ({"cmd": "true", "cwd": "/a/../b"}, "bad_path", "cwd"),
        ({"cmd": "true", "user": "nobody-here"}, "unknown_user", "user"),
        ({"cmd": "true", "args": "x"}, "bad_field", "args"),
        ({"cmd": "true", "args": ["\ud800"]}, "bad_field", "args[0]"),
        ({"cmd": "true", "args": ["x" * 200_000]}, "bad_field", "args"),
        ({"cmd": "true", "env": {"A=B": "c"}}, "bad_field", "env"),
        ({"cmd": "true", "env": {"A": 1}}, "bad_field", "env.A"),
        ({"cmd": "true", "timeout_ms": 0}, "bad_field", "timeout_ms"),
        ({"cmd": "true", "stdin": "yes"}, "bad_field", "stdin"),
        ({"cmd": "true", "pty": {"cols": 0, "rows": 1}}, "bad_field", "pty.cols"),
    ],
)
async def test_what_cannot_be_started_is_refused_by_name(
    guest: Client, body: dict[str, Any], code: str, field: str
) -> None:
    reply = await guest.call("POST", "/processes", body)
    assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, code, field)


async def test_a_script_whose_interpreter_is_missing_is_refused(guest: Client, folder: Path) -> None:
    script = folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert (await guest.call("POST", "/processes", {"cmd": str(script)})).code == "program_not_found"
    script.write_bytes(b"\x00\x01\x02")
    assert (await guest.call("POST", "/processes", {"cmd": str(script)})).code == "program_not_executable"


async def test_the_environment_is_the_users_and_the_requests_and_not_the_guests(guest: Client) -> None:
    told = output(await guest.run("env", env={"EXTRA": "1", "HOME": "/elsewhere"}), frames.STDOUT).decode()
    variables = dict(line.split("=", 1) for line in told.splitlines())
    assert variables["EXTRA"] == "1"
    assert variables["HOME"] == "/elsewhere"
    assert {"PATH", "USER", "LOGNAME", "SHELL"} < set(variables)
    assert "SECRET" not in variables
    assert b"EXTRA" not in output(await guest.run("env"), frames.STDOUT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run others' processes")
async def test_a_process_runs_as_the_user_that_was_asked_for(guest: Client) -> None:
    found = await guest.run("id -un; id -G; umask", user="nobody", cwd="/")
    name, groups, mask = output(found, frames.STDOUT).decode().split("\n")[:3]
    assert (name, mask) == ("nobody", "0022")
    assert "0" not in groups.split()


async def test_a_process_inherits_no_descriptor_and_no_ignored_signal(guest: Client) -> None:
    found = await guest.run("ls /proc/self/fd; grep SigIgn /proc/self/status; grep SigBlk /proc/self/status")
    lines = output(found, frames.STDOUT).decode().splitlines()
    # 3 is the folder that ls reads.
    assert lines[:4] == ["0", "1", "2", "3"]
    # Signals from 32 on are libc's own, and come from whoever started these tests.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in lines[4:]] == [0, 0]


async def test_a_process_starts_in_the_workspace(guest: Client) -> None:
    assert output(await guest.run("pwd"), frames.STDOUT).decode().strip() == str(guest.workspace)


async def test_stdin_is_empty_unless_asked_for(guest: Client) -> None:
    assert output(await guest.run("cat; echo done"), frames.STDOUT) == b"done\n"
    pid = await guest.start("sleep 60")
    reply = await guest.call("POST", f"/processes/{pid}/stdin", b"x")
    assert (reply.status, reply.code) == (400, "no_stdin")
    await guest.call("POST", f"/processes/{pid}/signal", {"signal": "SIGKILL"})


async def test_stdin_arrives_in_pieces_and_ends_with_eof(guest: Client) -> None:
    stream = await guest.stream("POST", "/processes", {"cmd": "cat", "stdin": True, "tag": "echo-it"})
    found = stream.frames()
    assert (await anext(found))[0] == frames.START
    assert (await guest.call("POST", "/processes/tag:echo-it/stdin", b"one ")).json == {"bytes": 4}
    assert (await guest.call("POST", "/processes/tag:echo-it/stdin?eof=1", b"two")).json == {"bytes": 3}
    rest = [frame async for frame in found]
    assert output(rest, frames.STDOUT) == b"one two"
    assert facts(rest, frames.END)["exit_code"] == 0
    reply = await guest.call("POST", "/processes/tag:echo-it/stdin", b"x")
    assert (reply.status, reply.code) == (409, "process_ended")


async def test_input_larger_than_every_buffer_passes_whole(guest: Client) -> None:
    pid = await guest.start("wc -c", stdin=True)
    stream = await guest.stream("GET", f"/processes/{pid}/attach?after=0")
    assert (await guest.call("POST", f"/processes/{pid}/stdin?eof=1", b"x" * 5_000_000)).json == {"bytes": 5_000_000}
    assert output([f async for f in stream.frames()], frames.STDOUT).strip() == b"5000000"


async def test_who_writes_to_a_process_that_ends_is_told_so(guest: Client) -> None:
    pid = await guest.start("read -n 1; exit 0", stdin=True)
    reply = await guest.call("POST", f"/processes/{pid}/stdin", b"x" * 5_000_000)
    assert (reply.status, reply.code) in ((409, "process_ended"), (400, "no_stdin"))


async def test_a_terminal_echoes_and_can_be_resized(guest: Client) -> None:
    body = {"cols": 81, "rows": 25, "cmd": "bash", "args": ["--norc"], "tag": "term", "env": {"PS1": "$ "}}
    stream = await guest.stream("POST", "/terminal", body)
    await guest.call("POST", "/processes/tag:term/stdin", b"tty; stty size; echo $TERM\n")
    seen = await read_until(stream, b"xterm-256color\r\n", frames.PTY)
    assert b"/dev/pts/" in seen
    assert b"25 81" in seen
    assert (await guest.call("POST", "/processes/tag:term/resize", {"cols": 100, "rows": 50})).json == {}
    await guest.call("POST", "/processes/tag:term/stdin", b"stty size; exit 7\n")
    rest = [frame async for frame in stream.frames()]
    assert b"50 100" in output(rest, frames.PTY)
    assert facts(rest, frames.END)["exit_code"] == 7


async def test_control_c_reaches_the_program_in_front_of_a_terminal(guest: Client) -> None:
    body = {"cmd": "bash", "args": ["-c", "echo up; sleep 60"], "pty": {"cols": 80, "rows": 24}, "tag": "front"}
    stream = await guest.stream("POST", "/processes", body)
    await read_until(stream, b"up", frames.PTY)
    await guest.call("POST", "/processes/tag:front/stdin", b"\x03")
    assert facts([f async for f in stream.frames()], frames.END)["signal"] == "SIGINT"


async def test_only_a_terminal_can_be_resized_and_only_a_pipe_ends(guest: Client) -> None:
    pid = await guest.start("sleep 60", stdin=True)
    assert (await guest.call("POST", f"/processes/{pid}/resize", {"cols": 1, "rows": 1})).code == "no_pty"
    await guest.call("POST", f"/processes/{pid}/signal", {"signal": 9})
    pid = await guest.start("sleep 60", pty={"cols": 80, "rows": 24})
    assert (await guest.call("POST", f"/processes/{pid}/stdin?eof=1", b"")).code == "no_stdin"
    await guest.call("POST", f"/processes/{pid}/signal", {"signal": 9})


async def test_signals_have_names_and_numbers_and_reach_the_group(guest: Client) -> None:
    pid = await guest.start("sleep 61 & sleep 62")
    assert (await guest.call("POST", f"/processes/{pid}/signal", {"signal": "SIGNOPE"})).code == "unknown_signal"
    assert (await guest.call("POST", f"/processes/{pid}/signal", {"signal": 99})).code == "unknown_signal"
    assert (await guest.call("POST", f"/processes/{pid}/signal", {})).code == "bad_field"
    assert (await guest.call("POST", f"/processes/{pid}/signal", {"signal": "SIGTERM"})).json == {}
    assert (await guest.until_ended(pid))["signal"] == "SIGTERM"
    assert not processes_of_session(pid)
    reply = await guest.call("POST", f"/processes/{pid}/signal", {"signal": 15})
    assert (reply.status, reply.code) == (409, "process_ended")


def processes_of_session(session: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[3]) == session:
            found.append(int(name))
    return found


async def test_the_deadline_is_the_last_frame_and_then_the_whole_session_is_killed(guest: Client) -> None:
    # Job control gives the background job a process group of its own.
    script = "set -m; sleep 300 & echo up; sleep 300"
    found = await guest.run(script, timeout_ms=400, tag="late")
    assert found[-1] == (frames.DEADLINE, b"{}")
    assert frames.END not in [kind for kind, _ in found]
    pid = facts(found, frames.START)["pid"]
    assert (await guest.until_ended(pid))["signal"] == "SIGKILL"

    async def is_gone() -> bool:
        return not processes_of_session(pid)

    await guest.until(is_gone)


async def test_the_deadline_reaches_every_reader_even_under_endless_output(guest: Client, folder: Path) -> None:
    pid = await guest.start(f"setsid yes & echo $! >{folder}/left; yes", timeout_ms=500)
    stream = await guest.stream("GET", f"/processes/{pid}/attach")
    last = None
    async for kind, _ in stream.frames():
        last = kind
    assert last == frames.DEADLINE
    await guest.run(f"kill -9 $(cat {folder}/left)")


async def test_a_process_that_ends_before_its_deadline_just_ends(guest: Client) -> None:
    found = await guest.run("exit 0", timeout_ms=10_000)
    assert facts(found, frames.END)["exit_code"] == 0


async def test_what_a_process_leaves_behind_does_not_hold_its_end_and_lives_on(guest: Client, folder: Path) -> None:
    script = f"(trap '' PIPE; while [ ! -e {folder}/go ]; do echo noise; done; touch {folder}/alive) & echo mine"
    found = await guest.run(script)
    assert b"mine\n" in output(found, frames.STDOUT)
    assert facts(found, frames.END)["exit_code"] == 0
    (folder / "go").touch()

    async def is_alive() -> bool:
        return (folder / "alive").exists()

    await guest.until(is_alive)


async def test_all_output_of_a_fast_writer_comes_before_its_end(guest: Client, folder: Path) -> None:
    found = await guest.run(f"sleep 30 & echo $! >{folder}/left; head -c 900000 /dev/zero")
    assert len(output(found, frames.STDOUT)) == 900_000
    await guest.run(f"kill -9 $(cat {folder}/left)")


async def test_orphans_are_reaped(guest: Client) -> None:
    found = await guest.run("(setsid sleep 0.05 >/dev/null 2>&1 & echo $!)")
    orphan = int(output(found, frames.STDOUT))

    async def is_buried() -> bool:
        return not Path(f"/proc/{orphan}").exists()

    await guest.until(is_buried)


async def test_listing_tells_every_process_and_a_tag_finds_the_newest(guest: Client) -> None:
    first = await guest.start("sleep 60", tag="twice")
    second = await guest.start("sleep 60", tag="twice")
    listed = [process["pid"] for process in (await guest.call("GET", "/processes")).json["processes"]]
    assert listed.index(first) < listed.index(second)
    told = (await guest.call("GET", "/processes/tag:twice")).json
    assert told["pid"] == second
    assert told["cmd"] == "bash"
    assert told["args"] == ["-c", "sleep 60"]
    assert told["pty"] is False
    for pid in (first, second):
        await guest.call("POST", f"/processes/{pid}/signal", {"signal": "SIGKILL"})


async def test_many_processes_at_once_each_end_with_their_own_code(guest: Client) -> None:
    ends = await asyncio.gather(*(guest.run(f"exit {i}") for i in range(40)))
    assert [facts(found, frames.END)["exit_code"] for found in ends] == list(range(40))


async def test_only_the_newest_hundred_ended_processes_are_remembered(fresh_guest: Client) -> None:
    for _ in range(6):
        await asyncio.gather(*(fresh_guest.run("exit 0") for _ in range(20)))
    assert len((await fresh_guest.call("GET", "/processes")).json["processes"]) == 100


async def test_descriptors_do_not_leak(fresh_guest: Client) -> None:
    await fresh_guest.run("true")
    before = set(os.listdir(f"/proc/{fresh_guest.pid}/fd"))
    await asyncio.gather(*(fresh_guest.run("echo x", stdin=i % 2 == 0) for i in range(10)))
    for _ in range(3):
        await fresh_guest.run("tty", pty={"cols": 80, "rows": 24})
        await fresh_guest.call("POST", "/processes", {"cmd": "no-such-program"})
        await fresh_guest.call("GET", "/files/content?path=/etc/passwd")

    async def is_as_before() -> bool:
        return len(os.listdir(f"/proc/{fresh_guest.pid}/fd")) <= len(before)

    await fresh_guest.until(is_as_before)


async def test_a_local_guest_ends_everything_it_started(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    process, path = launch(tmp_path)
    client = Client(path, process.pid, tmp_path)
    pid = await client.start("setsid sleep 299 & sleep 299")
    orphans = Path(f"/proc/{pid}/task/{pid}/children")

    async def has_children() -> list[str]:
        return orphans.read_text().split() if len(orphans.read_text().split()) > 1 else []

    children = await client.until(has_children)
    await asyncio.to_thread(end, process)
    for child in (str(pid), *children):
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), signal.SIGCONT)
    assert not Path(path).exists()

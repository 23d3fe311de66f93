"""Runs over the wire: asked for twice they start once, what they tell waits to be read, and a stop leaves nothing."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.guest.client import Client, end, launch
from tests.unit.guest.run_client import LIMIT_S, RunClient

MEMORY_LIMIT_MB = 200


@pytest.fixture
def host(fresh_guest: Client) -> RunClient:
    return RunClient(fresh_guest)


def memory_mb(pid: int) -> int:
    """The largest resident size that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) // 1024


async def settled(host: RunClient) -> int:
    """The number of the last event, once no new ones come."""
    last, same = -1, 0
    while same < 20:
        now = (await host.client.call("GET", "/run")).json["events"]
        same = same + 1 if now == last else 0
        last = now
        await asyncio.sleep(0.05)
    return last


async def test_before_the_first_run_there_is_none(host: RunClient) -> None:
    assert (await host.client.call("GET", "/run")).json == {
        "task": None,
        "run": None,
        "state": "none",
        "outcome": None,
        "events": 0,
        "waiting": [],
    }
    assert await host.stop() is None
    refused = await host.say("instruct", None, "do something")
    assert (refused.status, refused.code) == (409, "no_run")
    assert "run" in (await host.client.call("GET", "/health")).json["features"]


async def test_the_same_run_asked_for_at_once_and_again_is_started_once(host: RunClient) -> None:
    prompt = "append count.txt once\nask Go on?"
    replies = await asyncio.gather(*(host.start(prompt) for _ in range(5)))
    assert sorted(reply.status for reply in replies) == [200, 200, 200, 200, 201]
    assert {reply.json["state"] for reply in replies} == {"running"}
    asked = await host.until("approval.requested")
    await host.say("answer", asked["id"], "yes")
    await host.ended()
    again = await host.start(prompt)
    assert (again.status, again.json) == (200, {"run": 1, "state": "ended"})
    assert (host.client.workspace / "count.txt").read_text() == "once\n"
    facts = (await host.client.call("GET", "/run")).json
    assert (facts["task"], facts["run"], facts["state"]) == ("tk-test", 1, "ended")
    assert facts["outcome"]["outcome"] == "success"
    assert facts["events"] == host.seen[-1]["number"]


async def test_one_run_at_a_time(host: RunClient) -> None:
    await host.started("ask Go on?")
    for other in ({"run": 2}, {"task": "tk-other"}):
        refused = await host.start("say hello", **other)
        assert (refused.status, refused.code) == (409, "run_under_way")
    await host.stop()
    assert (await host.start("say hello", run=2)).status == 201
    await host.until("agent.ended", run=2)
    late = await host.start("ask Go on?", run=1)
    assert (late.status, late.json) == (200, {"run": 1, "state": "ended"})


async def test_whoever_leaves_while_a_run_starts_does_not_undo_it(host: RunClient) -> None:
    body = {"task": "tk-test", "run": 1, "agent": "mock", "prompt": "say here", "cwd": str(host.client.workspace)}
    conversation = await host.client.connect()
    await conversation.send("POST", "/run", json.dumps(body).encode())
    await conversation.close()

    async def is_started() -> bool:
        return bool((await host.client.call("GET", "/run")).json["state"] != "none")

    await host.client.until(is_started)
    assert (await host.ended())["outcome"] == "success"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"agent": "gpt"}, "agent"),
        ({"agent": None}, "agent"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * (1_048_576 + 1)}, "prompt"),
        ({"task": "../x"}, "task"),
        ({"task": None}, "task"),
        ({"run": 0}, "run"),
        ({"run": "1"}, "run"),
        ({"model": "--evil"}, "model"),
        ({"session": "--evil"}, "session"),
        ({"env": {"A": 1}}, "env.A"),
        ({"approvals": {"tools": "Bash"}}, "approvals.tools"),
        ({"approvals": {"commands": ["x"] * 201}}, "approvals.commands"),
        ({"caps": {"output_bytes": 0}}, "caps.output_bytes"),
        ({"cwd": "/no/such/folder"}, "cwd"),
        ({"agent": "cursor", "prompt": "x" * 120_001}, "prompt"),
        ({"agent": "claude", "env": {"PATH": "/nowhere"}}, "agent"),
        ({"agent": "cursor", "env": {"PATH": "/nowhere"}}, "agent"),
    ],
)
async def test_a_wrong_request_names_its_field_and_starts_nothing(guest: Client, wrong: Any, field: str) -> None:
    host = RunClient(guest)
    reply = await host.start("say x", **wrong) if "prompt" not in wrong else await host.start(**wrong)
    assert reply.status == 400, reply
    assert reply.json["error"]["field"] == field
    assert (await guest.call("GET", "/run")).json["state"] == "none"


async def test_answers_are_taken_once_and_may_be_repeated(host: RunClient) -> None:
    await host.started("ask One?\nask Two?")
    first = await host.until("approval.requested")
    for _ in range(2):
        assert (await host.say("answer", first["id"], "yes")).status == 200
    other = await host.say("answer", first["id"], "no")
    assert (other.status, other.code) == (409, "already_answered")
    second = await host.until("approval.requested")
    assert second["id"] != first["id"]
    wrong = await host.say("approve", second["id"])
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "kind")
    unknown = await host.say("answer", "ap-99", "x")
    assert (unknown.status, unknown.code) == (404, "not_found")
    for body in ({"kind": "shout", "id": "x"}, {"kind": "approve"}, {"kind": "instruct"}):
        assert (await host.client.call("POST", "/run/input", body)).status == 400
    await host.say("answer", second["id"], "no")
    assert (await host.ended())["outcome"] == "success"
    assert len(host.told("approval.answered")) == 2


async def test_a_stop_ends_the_run_its_questions_and_all_of_its_processes(host: RunClient) -> None:
    await host.started("run setsid -f sleep 603; sleep 604 & disown\nask Go on?")
    asked = await host.until("approval.requested")
    outcome = await host.stop()
    assert outcome is not None
    assert (outcome["outcome"], outcome["exit_code"]) == ("stopped", 130)
    ended = await host.ended()
    assert ended["outcome"] == "stopped"
    assert host.told("approval.answered", id=asked["id"])[0]["kind"] == "withdrawn"
    late = await host.say("answer", asked["id"], "yes")
    assert (late.status, late.code) == (404, "not_found")
    assert await host.stop() == outcome
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert [line for line in lines if line in (b"sleep\0" + b"603\0", b"sleep\0" + b"604\0")] == []


async def test_an_agent_that_does_not_listen_is_killed(host: RunClient) -> None:
    await host.started("run trap '' INT; touch deaf; while true; do sleep 0.1; done")
    await host.client.until(lambda: exists(host.client.workspace / "deaf"))
    both = await asyncio.gather(host.stop(300), host.stop(100))
    assert both[0] == both[1]
    assert both[0] is not None
    assert both[0]["outcome"] == "stopped"
    assert len([event for event in [await host.ended()] if event["outcome"] == "stopped"]) == 1


async def test_while_nobody_reads_the_agent_waits_and_nothing_is_lost(host: RunClient) -> None:
    await host.started("print 40000000", caps={"output_bytes": 100_000_000})
    stalled = await settled(host)
    assert (await host.client.call("GET", "/run")).json["state"] == "running"
    before = memory_mb(host.client.pid)
    ended = await host.ended()
    assert ended["outcome"] == "success"
    assert ended["number"] > stalled * 5
    text = sum(event["text"].count("x") for event in host.told("agent.log"))
    assert text == 40_000_000 - (40_000_000 + 8191) // 8192
    assert memory_mb(host.client.pid) < MEMORY_LIMIT_MB, before


async def test_a_stop_does_not_wait_for_readers(host: RunClient) -> None:
    await host.started("print 40000000", caps={"output_bytes": 100_000_000})
    await settled(host)
    outcome = await host.stop(100)
    assert outcome is not None
    assert outcome["outcome"] == "stopped"
    assert (await host.ended())["outcome"] == "stopped"


async def test_too_much_output_is_a_failure_that_says_so(host: RunClient) -> None:
    ended = await host.whole("print 3000000\nsleep 600", caps={"output_bytes": 1_000_000})
    assert (ended["outcome"], ended["error"]) == ("failure", "output_bytes")
    assert ended["signal"] == "SIGKILL"


async def test_a_gigabyte_without_a_line_break_is_bounded(host: RunClient, tmp_path: Path) -> None:
    script = tmp_path / "cursor-agent"
    script.write_text('#!/bin/sh\nhead -c 1000000000 /dev/zero\necho\necho \'{"type": "result", "result": "ok"}\'\n')
    script.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = await host.whole("go", agent="cursor", env=env, caps={"output_bytes": 2_000_000_000})
    assert (ended["outcome"], ended["result"]) == ("success", "ok")
    (line,) = host.told("agent.log")
    assert line["truncated"] is True
    assert memory_mb(host.client.pid) < MEMORY_LIMIT_MB


async def test_events_are_forgotten_when_acknowledged_and_a_gap_is_told(host: RunClient) -> None:
    await host.whole("say hello")
    last = host.seen[-1]["number"]
    stream = await host.client.stream("GET", f"/run/events?after={last - 1}")
    assert [event["event"] async for event in first(stream.events(), 1)] == ["agent.ended"]
    stream = await host.client.stream("GET", "/run/events?after=0")
    found = [event async for event in first(stream.events(), 2)]
    assert [event["event"] for event in found] == ["gap", "agent.ended"]
    assert found[0]["first"] == last
    stream = await host.client.stream("GET", "/run/events")
    assert [event["event"] async for event in first(stream.events(), 1)] == ["agent.ended"]
    stream = await host.client.stream("GET", f"/run/events?after={last + 50}")
    found = [event async for event in first(stream.events(), 2)]
    assert [event["event"] for event in found] == ["gap", "agent.ended"]


async def test_agents_gain_no_rights_and_have_the_variables_of_their_run_only(host: RunClient) -> None:
    command = "grep NoNewPrivs /proc/self/status; echo $A_KEY; echo $SECRET; echo $TMPDIR; pwd"
    await host.whole(f"run {command}", env={"A_KEY": "a-value"})
    (ran,) = host.told("agent.tool", phase="end", tool="Bash")
    assert ran["output"].split() == ["NoNewPrivs:", "1", "a-value", "/tmp", str(host.client.workspace)]
    later = await host.client.run("echo -$A_KEY-")
    assert b"--\n" in [payload for _, payload in later]


async def test_a_long_output_is_cut_in_its_event_and_whole_in_a_file_of_the_superuser(host: RunClient) -> None:
    await host.whole("run seq 100000")
    (ran,) = host.told("agent.tool", phase="end", tool="Bash")
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert (ran["truncated"], ran["output_bytes"]) == (True, len(whole))
    assert ran["output"] == whole[: 16 << 10]
    path = Path(ran["file"])
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    fetched = await host.client.call("GET", f"/files/content?path={path}")
    assert fetched.body.decode() == whole


async def test_a_large_argument_and_control_characters_keep_events_small(host: RunClient) -> None:
    await host.whole(f"tool Big {json.dumps({'a': 'x' * 100_000, 'b': 1})}\nrun printf '\\033%.0s' $(seq 20000)")
    (big,) = host.told("agent.tool", phase="start", tool="Big")
    assert (big["truncated"], big["arguments"]["a"], big["arguments"]["b"]) == (True, "x" * 4096, 1)
    sizes = [len(json.dumps(event)) for event in host.seen]
    assert max(sizes) <= 64 << 10


async def test_a_cli_that_does_not_end_after_its_result_is_ended(tmp_path: Path) -> None:
    """In a guest that waits for it for a moment only."""
    impatient = "import warren_guest.run as run; run.PARTING_S = 0.5; import warren_guest.__main__ as it; it.main()"
    result = json.dumps({"type": "result", "result": "ok"})
    script = tmp_path / "cursor-agent"
    script.write_text(f"#!/bin/sh\ntrap '' TERM INT\necho '{result}'\nexec sleep 605\n")
    script.chmod(0o755)
    process, path = launch(tmp_path, program=("-c", impatient))
    client = Client(path, process.pid, tmp_path)
    try:
        ended = await RunClient(client).whole("go", agent="cursor", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    finally:
        await client.close()
        end(process)
    assert (ended["outcome"], ended["result"], ended["signal"]) == ("success", "ok", "SIGKILL")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can start agents as somebody else")
async def test_agents_run_as_the_account_of_the_machine_and_not_as_the_guest() -> None:
    with tempfile.TemporaryDirectory(prefix="warren-run-") as name:
        folder, workspace = Path(name), Path(name) / "workspace"
        folder.chmod(0o755)
        workspace.mkdir()
        shutil.chown(workspace, "nobody")
        process, path = launch(folder, "--user", "nobody")
        client = Client(path, process.pid, workspace)
        host = RunClient(client)
        try:
            fifo = "run mkfifo pipe; mkdir folder; ln -s /etc/shadow link"
            env = {"HOME": str(workspace)}
            await host.whole(f"run id -un\n{fifo}\nrun seq 10000\nedit a.txt b", env=env)
            long = host.told("agent.tool", phase="end", command="seq 10000")[0]
            refused = await host.whole(f"run cat {long['file']}", run=2, env=env)
        finally:
            await client.close()
            end(process)
    assert refused["outcome"] == "success"
    (who,) = host.told("agent.tool", phase="end", command="id -un")
    assert who["output"] == "nobody\n"
    (tried,) = host.told("agent.tool", phase="end", command=f"cat {long['file']}")
    assert "Permission denied" in tried["output"]
    assert host.told("file.diff")


async def exists(path: Path) -> bool:
    return path.exists()


async def first(events: Any, count: int) -> Any:
    async for event in events:
        yield event
        count -= 1
        if count == 0:
            return


# Asks and asks, never reads an answer, and leaves somebody behind who holds its input open.
_DEAF = """#!{python}
import json, os, sys
if os.fork() == 0:
    os.setsid()
    open("left.pid", "w").write(str(os.getpid()))
    os.execve("/bin/sleep", ["sleep", "1000"], {{}})
big = "x" * (3 << 20)
for number in range(12):
    request = {{"subtype": "can_use_tool", "tool_name": "Read", "input": {{"text": big}}}}
    sys.stdout.write(json.dumps({{"type": "control_request", "request_id": str(number), "request": request}}) + "\\n")
    sys.stdout.flush()
    if number == 6:
        open("asked", "w").close()
"""


async def test_an_agent_that_never_reads_its_answers_can_be_stopped(host: RunClient) -> None:
    workspace = host.client.workspace
    program = workspace / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(_DEAF.format(python=sys.executable))
    program.chmod(0o755)
    await host.started("x", agent="claude", env={"PATH": str(program.parent)})
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (workspace / "asked").exists() or not (workspace / "left.pid").exists():
                await asyncio.sleep(0.05)
            outcome = await host.stop()
        assert outcome is not None
        assert outcome["outcome"] == "stopped"
    finally:
        os.kill(int((workspace / "left.pid").read_text()), signal.SIGKILL)


async def test_a_tool_cannot_open_the_streams_of_its_agent(host: RunClient) -> None:
    """The agent is the shell's parent. It could write what the agent did not say, and answer what a person is asked."""
    tries = "; ".join(f"echo '{{}}' > /proc/$PPID/fd/{number} || echo refused {number}" for number in (0, 1))
    ended = await host.whole(f"run {tries}")
    assert ended["outcome"] == "success"
    (tried,) = host.told("agent.tool", phase="end", tool="Bash")
    assert [line for line in tried["output"].splitlines() if line.startswith("refused")] == ["refused 0", "refused 1"]
    assert host.told("agent.log") == []

"""`pooldctl tasks`, as the operator types it, against a poold that has some."""

import asyncio
import json
import sys

from tests.unit.tasks.tasks_stage import Stage


async def ctl(stage: Stage, *words: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "poold.ctl", "tasks", *words, "--socket", str(stage.host.socket)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_tasks_are_listed_shown_and_stopped(stage: Stage) -> None:
    done = await stage.create("Say hello.\ntokens 100 20 0.01")
    waits = await stage.create("ask What?")
    await stage.ended(done)
    await stage.until(waits, lambda view: bool(view["waiting"]))
    code, out, _ = await ctl(stage, "ls")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        [waits, "paused", "mock"],
        [done, "completed", "mock"],
    ]
    assert "waits: ap-1 (question)" in out
    code, out, _ = await ctl(stage, "ls", "--state", "completed", "-q")
    assert (code, out.split()) == (0, [done])
    code, out, _ = await ctl(stage, "show", done)
    assert code == 0
    assert "0.0100" in out
    code, out, _ = await ctl(stage, "stop", waits, "tk-aaaaaaaaaaaaaaaa", "--json")
    assert (code, [row["id"] for row in json.loads(out)["tasks"]]) == (4, [waits])
    assert (await stage.ended(waits))["state"] == "stopped"

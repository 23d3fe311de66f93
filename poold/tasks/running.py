"""The agent at work: its run is asked for, and followed to its end."""

import asyncio
from typing import Any

from contract.errors import BadField
from contract.tasks import Task
from poold.errors import GuestRefused
from poold.ledger import tasks
from poold.tasks import secrets
from poold.tasks.follow import follow
from poold.tasks.keeping import path_of
from poold.tasks.life import Life, ask

START_S = 120.0


async def run(life: Life) -> None:
    """The agent has ended when this returns, or the task is to end. May be called again at any point."""
    row = await life.row()
    try:
        request = await run_request(life, row.task)
    except BadField as error:  # the operator took a secret away that was there when the task was made
        await life.fail("host", error.message)
        return
    try:
        async with life.inside(row.task.sandbox or "") as guest:
            await ask(guest, "POST", "/run", request, limit_s=START_S)
    except GuestRefused as error:
        await life.fail("agent", f"the agent was not started: {error.message}", error=error.code)
        return
    await follow(life, row.task.sandbox or "")


async def run_request(life: Life, task: Task) -> dict[str, Any]:
    """What the agent is told. Its secrets are in the request's body and nowhere else."""
    tools = life.tools
    prompt = await tools.read(lambda db: tasks.prompt(db, task.id))
    kept = await asyncio.to_thread(tools.secrets_of, task.id)
    named = await asyncio.to_thread(secrets.gather, tools.config.secrets, task.owner, task.secrets)
    return {
        "task": task.id,
        "run": 1,
        "agent": task.agent,
        "prompt": prompt,
        "model": task.model,
        "session": None,
        "cwd": path_of(life, task),
        "env": {**named, **kept.env},
        "approvals": {"tools": list(task.approvals.tools), "commands": list(task.approvals.commands)},
        "caps": {"output_bytes": task.caps.output_bytes},
    }

"""The agent at work: its run is asked for, and followed to its end."""

import asyncio
from functools import partial
from typing import Any

from contract.errors import BadField
from poold.errors import GuestRefused
from poold.ledger import questions, tasks
from poold.ledger.tasks import Row
from poold.tasks import secrets
from poold.tasks.follow import follow
from poold.tasks.keeping import path_of
from poold.tasks.life import Life, ask
from poold.tasks.progress import Progress

START_S = 120.0


async def run(life: Life) -> None:
    """The agent has ended when this returns, or the task is to end. May be called again at any point."""
    row = await life.row()
    try:
        request = await run_request(life, row)
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


async def run_request(life: Life, row: Row) -> dict[str, Any]:
    """What the agent is told. Its secrets are in the request's body and nowhere else."""
    tools, task = life.tools, row.task
    prompt = await tools.read(lambda db: tasks.prompt(db, task.id))
    kept = await asyncio.to_thread(tools.secrets_of, task.id)
    named = await asyncio.to_thread(secrets.gather, tools.config.secrets, task.owner, task.secrets)
    return {
        "task": task.id,
        "run": task.continued + 1,
        "agent": task.agent,
        "prompt": prompt,
        "model": task.model,
        "session": (row.kept.get("continued") or {}).get("session"),
        "cwd": path_of(life, task),
        "env": {**named, **kept.env},
        "approvals": {"tools": list(task.approvals.tools), "commands": list(task.approvals.commands)},
        "caps": {"output_bytes": task.caps.output_bytes},
        "continues": await _past(life, row) if task.continued else None,
    }


async def _past(life: Life, row: Row) -> dict[str, Any]:
    """What became of the task in machines that are lost: numbers and totals go on from there."""
    progress = Progress.decode(row.progress)
    return {
        "events": progress.seq,
        "questions": await life.tools.read(partial(questions.last_asked, task_id=row.id)),
        "used": {**progress.used, "usd": None if progress.is_estimate else progress.usd},
        "covered": (row.kept.get("continued") or {}).get("used"),
    }

"""The repository of a task, brought into its machine."""

import asyncio
from functools import partial
from sqlite3 import Connection
from typing import Any

from contract.task_states import TaskEvent
from contract.tasks import Task
from poold.errors import GuestRefused
from poold.ledger import tasks
from poold.tasks.life import Life, ask
from poold.tasks.means import Tools
from poold.tasks.words import text_of

CLONE_S = 1800.0
ANSWER_S = 30.0  # beyond what the guest allows itself


async def clone(life: Life) -> None:
    """The task's agent may begin when this returns, or the task is to end."""
    row = await life.row()
    task = row.task
    told: dict[str, Any] = {}
    if task.repo is not None:
        request = await clone_request(life.tools, task, life.cwd)
        try:
            async with life.inside(task.sandbox or "") as guest:
                answer = await ask(guest, "POST", "/git/clone", request, limit_s=CLONE_S + ANSWER_S)
        except GuestRefused as error:
            await life.fail("clone", f"the repository was not cloned: {error.message}", error=error.code)
            return
        told = {name: text_of(answer.get(name), 200) for name in ("head", "branch", "base")}
    else:
        async with life.inside(task.sandbox or "") as guest:
            await ask(guest, "POST", "/git/policy", policy_request(life.tools))
    await life.write(partial(_begin, life=life, told=told, task=task))
    life.wake()


def _begin(db: Connection, life: Life, told: dict[str, Any], task: Task) -> None:
    """What was cloned, and that the agent runs from now on."""
    now_ms = life.tools.now_ms()
    if told:
        tasks.tell(db, life.id, "git.cloned", {**told, "repo": task.repo, "ref": task.ref}, at_ms=now_ms)
    kept = {**tasks.get(db, life.id).kept, "cloned": told}
    tasks.move(db, life.id, TaskEvent.RUN, now_ms=now_ms, phase="run", kept=kept, wall_ms=life.wall.ms)


def policy_request(tools: Tools) -> dict[str, Any]:
    """Who commits, and where nothing is pushed to: for who works without a repository that was cloned."""
    return {"author": vars(tools.config.author), "protected": list(tools.config.protected)}


async def clone_request(tools: Tools, task: Task, path: str) -> dict[str, Any]:
    """Credentials are in the request's body and nowhere else."""
    kept = await asyncio.to_thread(tools.vault.get, task.id)
    return {
        "operation": f"{task.id}:clone:1",
        "url": task.repo,
        "ref": task.ref,
        "depth": task.depth,
        "path": path,
        "branch": task.branch,
        "credentials": None if kept.credentials is None else kept.credentials.view(),
        "author": vars(tools.config.author),
        "protected": list(tools.config.protected),
        "limit_ms": int(CLONE_S * 1000),
    }

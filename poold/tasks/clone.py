"""The repository of a task, brought into its machine."""

import asyncio
from functools import partial
from typing import Any

from contract.task_states import TaskEvent, TaskState
from contract.tasks import Task
from poold.errors import GuestRefused
from poold.ledger import tasks
from poold.ledger.driver import Connection
from poold.tasks.life import Life, ask
from poold.tasks.means import Tools
from poold.tasks.words import text_of

CLONE_S = 1800.0
ANSWER_S = 30.0  # beyond what the guest allows itself


async def clone(life: Life) -> None:
    """The task's agent may begin when this returns, or the task is to end."""
    row = await life.row()
    task = row.task
    try:
        told = await _brought(life, task)
    except GuestRefused as error:
        what = "its machine is of no use" if task.repo is None else "the repository was not cloned"
        await life.fail("clone", f"{what}: {error.message}", error=error.code)
        return
    await life.write(partial(_begin, life=life, told=told, task=task))
    life.wake()


async def _brought(life: Life, task: Task) -> dict[str, Any]:
    """What was cloned; nothing if there is no repository to clone."""
    async with life.inside(task.sandbox or "") as guest:
        if task.repo is None:
            await ask(guest, "POST", "/git/policy", policy_request(life.tools))
            return {}
        request = await clone_request(life.tools, task, life.cwd)
        answer = await ask(guest, "POST", "/git/clone", request, limit_s=CLONE_S + ANSWER_S)
        return {name: text_of(answer.get(name), 200) for name in ("head", "branch", "base")}


def _begin(db: Connection, life: Life, told: dict[str, Any], task: Task) -> None:
    """What was cloned, and that the agent runs from now on."""
    now_ms = life.tools.now_ms()
    if told:
        tasks.tell(db, life.id, "git.cloned", {**told, "repo": task.repo, "ref": task.ref}, at_ms=now_ms)
    row = tasks.get(db, life.id)
    changes: dict[str, Any] = {"phase": "run", "kept": {**row.kept, "cloned": told}, "wall_ms": life.wall.ms}
    if row.task.state is TaskState.PLANNING:
        tasks.move(db, life.id, TaskEvent.RUN, now_ms=now_ms, **changes)
    else:  # it ran before, in a machine that is lost
        tasks.change(db, life.id, **changes)


def policy_request(tools: Tools, url: str | None = None) -> dict[str, Any]:
    """Who commits, and where nothing is pushed to: for who works without a repository that was cloned here."""
    return {"url": url, "author": vars(tools.config.author), "protected": list(tools.config.protected)}


async def clone_request(tools: Tools, task: Task, path: str) -> dict[str, Any]:
    """Credentials are in the request's body and nowhere else."""
    kept = await asyncio.to_thread(tools.secrets_of, task.id)
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

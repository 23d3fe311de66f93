"""Pushes of a task's work: always from its machine, with credentials that its agent never sees, within the rails."""

import asyncio
from typing import Any

from contract.tasks import Task
from poold.errors import GuestRefused
from poold.tasks.life import Life, ask
from poold.tasks.words import text_of

PUSH_S = 900.0
ANSWER_S = 30.0
REFUSED = ("push_refused", "push_failed")


async def push(life: Life, task: Task, operation: str, branch: str | None, commit: str | None) -> dict[str, Any]:
    """What came of it: `{"branch", "from", "to"}`, or `{"branch", "refused", "message"}`. Told as an event, too."""
    told = await _push(life, task, operation, branch, commit)
    await life.tell("git.refused" if "refused" in told else "git.pushed", told)
    return told


async def _push(life: Life, task: Task, operation: str, branch: str | None, commit: str | None) -> dict[str, Any]:
    branch = branch or task.branch
    if task.repo is None:
        return {"branch": branch, "refused": "no_repository", "message": "the task has no repository to push to"}
    kept = await asyncio.to_thread(life.tools.secrets_of, task.id)
    request = {
        "operation": operation,
        "path": life.cwd,
        "url": task.repo,
        "branch": branch,
        "commit": commit,
        "credentials": None if kept.credentials is None else kept.credentials.view(),
        "protected": list(life.tools.config.protected),
        "author": vars(life.tools.config.author),
        "limit_ms": int(PUSH_S * 1000),
    }
    try:
        async with life.inside(task.sandbox or "") as guest:
            answer = await ask(guest, "POST", "/git/push", request, limit_s=PUSH_S + ANSWER_S)
    except GuestRefused as error:
        rail = text_of(error.details.get("rail"), 64) or error.code
        return {"branch": branch, "refused": rail, "message": error.message}
    return {"branch": branch} | {name: text_of(answer.get(name), 200) for name in ("from", "to")}

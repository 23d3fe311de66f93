"""From a request to the task that it asks for, and back: what may be shown of it, and what only the vault has."""

from dataclasses import asdict
from typing import Any

from contract.errors import BadField
from contract.ids import new_id
from contract.models import Caller
from contract.task_states import TaskState
from contract.tasks import Checkpointing, CreateTask, Task, Webhook
from poold.ledger.tasks import Row
from poold.pool import OVERHEAD_MB
from poold.tasks import secrets
from poold.tasks.claim import network_of
from poold.tasks.means import Tools
from poold.tasks.repos import Repo, read_repo
from poold.tasks.vault import Kept
from poold.tasks.webhooks import webhook_url

AGENT_IMAGE = "agent"  # the one that has the agents' programs in it


def draft(tools: Tools, request: CreateTask, caller: Caller, task_id: str | None) -> tuple[Row, Kept]:
    """The task as the ledger is to have it, and its secrets. Raises `BadField` for what this host cannot do. Blocks."""
    name = task_id or new_id("tk", tools.means.sources.entropy)
    repo = None if request.repo is None else read_repo(request.repo)
    shape = _shape(tools, request)
    secrets.gather(tools.config.secrets, caller.owner, request.secrets)  # which may be gone when they are needed
    task = Task(
        id=name,
        state=TaskState.QUEUED,
        owner=caller.owner,
        agent=request.agent,
        model=request.model,
        prompt=request.prompt,
        repo=None if repo is None else repo.url,
        ref=request.ref,
        depth=request.depth,
        branch=request.branch or (None if repo is None else f"warren/{name}"),
        push=request.push,
        **shape,
        network=request.network,
        secrets=request.secrets,
        caps=request.caps,
        loop=request.loop,
        approvals=request.approvals,
        keep_minutes=request.keep_minutes,
        webhook=_webhook(tools, request.webhook),
        metadata=request.metadata,
        retry_of=request.retry_of,
        checkpoint=_checkpointing(tools, request.checkpoint),
        retries=tools.config.retries if request.retries is None else request.retries,
        workspace=request.workspace,
        created_ms=tools.now_ms(),
    )
    kept = _kept(request, repo)
    _check_network(tools, task, caller, kept)
    return Row(task, key_network=caller.network), kept


def _shape(tools: Tools, request: CreateTask) -> dict[str, Any]:
    """What its machine is made of: what the request says, over what its image says."""
    image = request.image or _usual_image(tools, request.agent)
    defaults = tools.means.images.find(image).defaults
    memory_mb = request.memory_mb or defaults.memory_mb
    most_mb = tools.means.pool.places.memory_budget_mb - OVERHEAD_MB
    if memory_mb > most_mb:  # it would wait for ever, and all others behind it
        raise BadField("memory_mb", memory_mb, f"must be at most {most_mb} on this host")
    return {
        "image": image,
        "vcpus": request.vcpus or defaults.vcpus,
        "memory_mb": memory_mb,
        "disk_mb": request.disk_mb or defaults.disk_mb,
    }


def _checkpointing(tools: Tools, asked: Checkpointing) -> Checkpointing:
    """What was asked for, over what is usual here."""
    usual = tools.config.checkpoint
    return Checkpointing(
        usual.steps if asked.steps is None else asked.steps, usual.minutes if asked.minutes is None else asked.minutes
    )


def _usual_image(tools: Tools, agent: str) -> str:
    is_host = not tools.means.pool.engine.isolates  # this computer as it is: there is no other image
    return tools.default_image if agent == "mock" or is_host else AGENT_IMAGE


def _webhook(tools: Tools, asked: Webhook | None) -> str | None:
    return None if asked is None else webhook_url(asked.url, tools.means.network.private_nets)


def _kept(request: CreateTask, repo: Repo | None) -> Kept:
    return Kept(
        credentials=None if repo is None else repo.credentials,
        env=request.env,
        webhook_secret=(request.webhook.secret or None) if request.webhook is not None else None,
    )


def _check_network(tools: Tools, task: Task, caller: Caller, kept: Kept) -> None:
    if not tools.means.pool.engine.isolates and task.network is not None and task.network.policy != "deny":
        problem = "this host's engine isolates nothing, and keeps no policy but deny"
        raise BadField("network", task.network.policy.value, problem)
    network_of(tools, task, caller.network, kept.env)


def with_former(kept: Kept, former: Kept, *, same_server: bool) -> Kept:
    """What a repetition has: what it was given anew, and for the rest what the former task had.

    Credentials are for the server that they were given for, and are shown to no other.
    """
    return Kept(
        credentials=kept.credentials or (former.credentials if same_server else None),
        env={**former.env, **kept.env},
        webhook_secret=kept.webhook_secret or former.webhook_secret,
    )


def is_same_server(repo: str | None, other: str | None) -> bool:
    """Whether two repositories, by their addresses without credentials, are on one server."""
    if repo is None or other is None:
        return False
    one, two = read_repo(repo).place, read_repo(other).place
    return (one.scheme, one.host, one.port) == (two.scheme, two.host, two.port)


REQUESTED = (
    *("agent", "model", "repo", "ref", "depth", "branch", "push", "image", "vcpus", "memory_mb", "disk_mb"),
    *("secrets", "keep_minutes", "metadata", "retries", "workspace"),
)


def request_of(task: Task, prompt: str) -> dict[str, Any]:
    """The request that made the task, without what only the vault has: a repetition on the same host gets that too."""
    asked = {name: getattr(task, name) for name in REQUESTED}
    if task.branch == f"warren/{task.id}":
        asked["branch"] = None  # it was ours to choose, and a repetition has its own
    return {
        **asked,
        "prompt": prompt,
        "network": None if task.network is None else task.network.view(),
        **{name: asdict(getattr(task, name)) for name in ("caps", "loop", "approvals", "checkpoint")},
        "webhook": None if task.webhook is None else {"url": task.webhook},
    }

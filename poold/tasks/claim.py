"""From a task that waits to one that has its machine: its turn, room, and a sandbox of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial

from contract.errors import BadField, CapacityError, NotFound, WarrenError
from contract.ids import home_of, new_id
from contract.models import MACHINE, MAX_TIMEOUT_S, CreateSandbox, RulesAsked, Sandbox, Shape
from contract.network import Network
from contract.states import State
from contract.task_states import TaskEvent, TaskState
from contract.tasks import Task
from poold.errors import SandboxStopped
from poold.ledger import tasks
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.pool import OVERHEAD_MB, Pool
from poold.store.errors import Corrupt
from poold.tasks.life import OVER, Life
from poold.tasks.means import Tools
from poold.tasks.network import task_network
from poold.tasks.queue import Turn
from poold.tasks.repos import read_repo
from poold.workspaces import Damaged

log = logging.getLogger("poold.tasks")

ATTEMPTS = 3  # machines that may fail before the task does
AGAIN_S = 1.0
MOST_S = 30.0


async def claim(life: Life) -> None:
    """The task has a running sandbox when this returns, or is to end. Cancelled, it has none that runs."""
    row = await life.row()
    sandbox = await life.sandbox(row)
    if sandbox is None or sandbox.state is State.ERROR:
        sandbox = await _made(life)
    if sandbox is None:
        return
    if sandbox.state in OVER:
        await life.fail("machine", f"its sandbox was stopped before it began: {sandbox.reason}")
        return
    told = {"sandbox": sandbox.id, "image": sandbox.shape.image}
    goes_on = "continued" in (await life.row()).kept
    await life.tell("sandbox.claimed", told, phase="restore" if goes_on else "clone")
    life.wake()


async def _made(life: Life) -> Sandbox | None:
    """A sandbox, once it is the task's turn and there is room. None if the task is to end."""
    while True:
        row = await life.row()
        if row.ending is not None:
            return None
        if row.attempts >= ATTEMPTS:
            await life.fail("machine", f"none of {ATTEMPTS} machines could be started")
            return None
        async with life.tools.queue.turn(life.key) as turn:
            sandbox = await _tried(life, turn)
        if sandbox is not None:
            return sandbox


async def _tried(life: Life, turn: Turn) -> Sandbox | None:
    """One try, as soon as there is room for it."""
    row = await life.row()
    while life.tools.sandboxes.is_draining or not has_room(life.tools.means.pool, shape_of(row.task)):
        await turn.wait_for_room()
        if not turn.is_first:
            return None  # somebody older has come
    try:
        return await _create(life, await _planned(life, row), turn)
    except CapacityError as error:
        log.info("no room for a task after all", extra={"task": life.id, "why": str(error)})
        await _requeue(life)
        await turn.wait_for_room()
        await asyncio.sleep(min(MOST_S, AGAIN_S * life.refusals))  # each try leaves rows in the ledger
        life.refusals += 1
    except SandboxStopped as error:
        await life.fail("machine", error.message)
    except (Damaged, Corrupt) as error:  # nothing is deleted: a person may restore an earlier version
        await life.fail("workspace", error.message)
    except BadField as error:  # what the operator allows has changed since the task was made
        await life.fail("host", error.message)
    except WarrenError as error:
        log.warning("a task's machine failed", extra={"task": life.id, "why": str(error)})
        failures = row.attempts + 1
        await life.write(partial(tasks.change, task_id=life.id, attempts=failures))
        await asyncio.sleep(AGAIN_S * failures)
    return None


async def _planned(life: Life, row: Row) -> Row:
    """The intent: which sandbox it is to be. An id that a former try has spent is not used again."""
    name = row.task.sandbox or home_of(life.id)
    with contextlib.suppress(NotFound):
        await life.tools.sandboxes.get(name)
        name = new_id("sb", life.tools.means.sources.entropy)
    life.wall.run(True)
    if row.task.state is TaskState.QUEUED:
        return await life.move(TaskEvent.PLAN, {"sandbox": name}, sandbox=name)
    return await life.write(partial(tasks.change, task_id=life.id, sandbox=name))


async def _requeue(life: Life) -> None:
    """There was no room: nothing was tried."""
    life.wall.run(False)

    def write(db: Connection) -> None:
        if tasks.get(db, life.id).task.state is TaskState.PLANNING:
            tasks.move(db, life.id, TaskEvent.REQUEUE, now_ms=life.tools.now_ms(), sandbox=None)

    await life.write(write)


async def _create(life: Life, row: Row, turn: Turn) -> Sandbox:
    """The next in the queue need not wait for the machine to start: its place is taken once there is a row of it."""
    name = row.task.sandbox or ""
    request = await asyncio.to_thread(sandbox_request, life.tools, row)
    making = asyncio.ensure_future(life.tools.sandboxes.create(request, life.caller, name))
    seen = asyncio.ensure_future(_is_seen(life, name))
    try:
        await asyncio.wait({making, seen}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            turn.over()
        return await making
    finally:
        seen.cancel()
        making.cancel()  # and undone, if it is not over
        await asyncio.wait({making, seen})


async def _is_seen(life: Life, sandbox_id: str) -> None:
    async with contextlib.aclosing(life.tools.ledger.changes(sandbox_id)) as changes:
        await anext(changes)
        await anext(changes)


def sandbox_request(tools: Tools, row: Row) -> CreateSandbox:
    """The sandbox that the task works in, with no time limit that counts before the task's own. Blocks."""
    task = row.task
    far = MAX_TIMEOUT_S
    if tools.can_save:  # its owner's rules for other sandboxes do not count
        rules = RulesAsked(
            far, "pause", idle_sec=far, hibernate_sec=far, hibernate_kind=MACHINE, paused_sec=far, auto_resume=False
        )
    else:
        rules = RulesAsked(far, "destroy")
    env = tools.secrets_of(task.id).env
    return CreateSandbox(
        image=task.image,
        vcpus=task.vcpus,
        memory_mb=task.memory_mb,
        disk_mb=task.disk_mb,
        rules=rules,
        env={},
        metadata={"task": task.id},
        network=network_of(tools, task, row.key_network, env),
        workspace=task.workspace,
        task=task.id,
    )


def network_of(tools: Tools, task: Task, key_network: Network | None, env: Mapping[str, str]) -> Network | None:
    """What the task's sandbox may reach. Raises `BadField` for what no sandbox of this host may."""
    if not tools.means.pool.engine.isolates:
        return task.network  # nothing but `deny` is taken, and nothing is kept
    of_image = tools.means.images.find(task.image or tools.default_image).network
    return task_network(
        task.network,
        repo=None if task.repo is None else read_repo(task.repo),
        agent=task.agent,
        env=env,
        asks_for_hosts=task.approvals.hosts,
        usual=key_network or of_image,
        private_nets=tools.means.network.private_nets,
    )


def shape_of(task: Task) -> Shape:
    """A task's row has all of it since it was made."""
    return Shape(task.image or "", task.vcpus or 1, task.memory_mb or 0, task.disk_mb or 0)


def has_room(pool: Pool, shape: Shape) -> bool:
    """Whether a claim has a chance: warm machines of other shapes go for it."""
    shares = pool.keeper.shares()
    slots = pool.places.free + sum(share["warm"] for share in shares)
    warm_mb = sum(share["warm"] * (share["memory_mb"] + OVERHEAD_MB) for share in shares)
    return bool(slots > 0 and pool.places.memory_left_mb + warm_mb >= shape.memory_mb + OVERHEAD_MB)

"""All tasks of this host. Each that is not over has a runner; what callers ask for is written down, and it is told."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import urlencode

from contract.errors import BadField, CapacityError, NotFound, NotMine, WarrenError, WrongState
from contract.models import Caller
from contract.network import Network
from contract.task_states import FINAL, TaskState
from contract.tasks import CreateTask, Input, Task
from poold.errors import Draining, Exists, LedgerError
from poold.ledger import artifacts, retention, tasks, webhooks
from poold.ledger.driver import Connection
from poold.ledger.tasks import DONE, Row
from poold.lifetimes import finish
from poold.link import FAR_AWAY
from poold.sandboxes.turns import Turns
from poold.seal import Broken
from poold.store.errors import Corrupt, NoObject
from poold.tasks import inputs, keeping, wishes
from poold.tasks.checkpointing import remove_all
from poold.tasks.errors import NoArtifact
from poold.tasks.life import Life
from poold.tasks.making import draft, is_same_server, request_of, with_former
from poold.tasks.means import Tools
from poold.tasks.places import find_workspace
from poold.tasks.runner import live
from poold.tasks.telling import Ends
from poold.tasks.urls import Url
from poold.tasks.vault import Kept
from poold.tasks.webhooks import Deliveries

log = logging.getLogger("poold.tasks")

STOPPING = "this host is being stopped"
AGAIN_S = 5.0
UPKEEP_S = 3600.0
RETRY_MS = 24 * 3600 * 1000  # for so long what only the vault has is kept for a repetition of the task
SETTLE_S = 1.0  # so long a caller waits to see what came of a request that is written down
RESUME_S = 60.0  # a large machine takes a while to be written to disk, or read
MOST_S = 300.0  # between two tries of a runner that fails again and again

Post = Callable[[Url, Mapping[str, str], bytes], Awaitable[int]]


class Tasks:
    """Open as a block: after it nothing is under way any more, and tasks go on when they are opened again."""

    def __init__(self, tools: Tools, post: Post, random: Callable[[], float]) -> None:
        self.tools = tools
        self._lives: dict[str, Life] = {}
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._fresh: set[str] = set()  # whose secrets are there, perhaps before their row is
        self._stale: set[str] = set()  # those of them that were there when it was last swept
        self._stopping = False
        self._is_halted = False  # nobody works on any, for they are about to be another host's
        self._turns = Turns()  # of requests to create the same task
        ends = Ends(tools.ledger, tools.vault, tools.metrics)
        self._deliveries = Deliveries(ends, post, clock_ms=tools.now_ms, random=random)

    @contextlib.asynccontextmanager
    async def running(self, *, halted: bool = False) -> AsyncIterator["Tasks"]:
        """Take up every task that is not over, and work on all of them during the block; `halted`: on none yet."""
        self.tools.means.pool.places.on_room = self.tools.queue.freed
        await self._clear_halves()
        self._is_halted = True
        if not halted:
            await self.go_on()
        others = [asyncio.ensure_future(_always(each)) for each in (self._deliveries.run, self._upkeep)]
        try:
            yield self
        finally:
            self._stopping = True
            await finish(_ended([*others, *self._runners.values()]))

    async def halt(self) -> None:
        """Work on no task, until `go_on`. Each is as the ledger says, and so goes on elsewhere as after a restart."""
        self._is_halted = True
        await finish(_ended(list(self._runners.values())))

    async def go_on(self) -> None:
        """Work on all that are not over."""
        self._is_halted = False
        for row in await self.tools.read(tasks.under_way):
            self._begin(row)

    # What callers ask for.

    async def create(self, request: CreateTask, caller: Caller, task_id: str | None = None) -> Task:
        """A task that is written down, and will be done. If this raises, there is none."""
        if self._stopping:
            raise CapacityError(STOPPING)
        if self.tools.sandboxes.is_draining:
            raise Draining("this host is being emptied by its operator", retry_after_s=60)
        row, kept = await asyncio.to_thread(draft, self.tools, request, caller, task_id)
        if request.retry_of is not None:
            kept = await self._with_former(row.task, kept, request.retry_of, caller)
        await finish(self._add(row, kept, caller))
        return await self.get(row.id)

    async def _with_former(self, task: Task, kept: Kept, task_id: str, caller: Caller) -> Kept:
        """With what only the vault has of a task that is done again. Of one on another host there is nothing here."""
        try:
            former = await self.get(task_id)
        except NotFound:
            return kept
        if former.owner != caller.owner:
            raise BadField("retry_of", task_id, "is no task of yours")
        known = await asyncio.to_thread(self.tools.secrets_of, task_id)
        return with_former(kept, known, same_server=is_same_server(former.repo, task.repo))

    async def _add(self, row: Row, kept: Kept, caller: Caller) -> None:
        """The secrets first: a task without them could not be done, and secrets without a task are swept away."""
        async with self._turns.of(row.id):
            await self._must_be_new(row.id)
            self._fresh.add(row.id)
            await asyncio.to_thread(self.tools.keep_secrets, row.id, kept)
            add = partial(tasks.add, row=row, queue=self.tools.config.queue, request=caller.request)
            try:
                await self.tools.share_secrets(row.id, kept)
                await self.tools.write(add)
            except BaseException:
                if await self._is_unwritten(row.id):
                    await self.tools.forget_secrets(row.id)
                    self._fresh.discard(row.id)
                raise
        self._begin(row)

    async def _is_unwritten(self, task_id: str) -> bool:
        """Whether there is surely no such task. One that nobody could acknowledge may be done yet, here or there."""
        try:
            return (await self.tools.read(partial(tasks.states, ids=[task_id])))[task_id] is None
        except LedgerError:  # it was closed meanwhile
            return False

    async def _must_be_new(self, task_id: str) -> None:
        """In its turn: nobody else can make it meanwhile."""
        state = (await self.tools.read(partial(tasks.states, ids=[task_id])))[task_id]
        if state is not None:
            raise Exists(f"task {task_id} was created before, and is {state}", task=task_id, state=state)

    async def adopt(self, task_id: str) -> None:
        """Go on with a task that has come from a host that is lost, with its secrets. What is over stays so."""
        row = await self._row(task_id)
        if row.task.phase == DONE or task_id in self._lives:
            return
        self._fresh.add(task_id)
        problem = await self._inherit_secrets(task_id)
        if problem is not None:
            told = f"its host is lost, and its secrets cannot be read here: {problem}"
            await Life(self.tools, row).fail("host_lost", told)
        self._begin(await self._row(task_id))

    async def _inherit_secrets(self, task_id: str) -> str | None:
        """What is wrong with them, if that will not change. Raises if the store cannot be read now."""
        if self.tools.escrow is None:
            return "this host has no seal.key in POOLD_PKI"
        try:
            kept = await self.tools.escrow.get(task_id)
        except (Broken, Corrupt, NoObject) as error:
            return error.message
        await asyncio.to_thread(self.tools.keep_secrets, task_id, kept)
        return None

    async def get(self, task_id: str) -> Task:
        return (await self._row(task_id)).task

    async def owner_of(self, task_id: str) -> str:
        """Whose task it is, or `NotMine` if it was never here."""
        life = self._lives.get(task_id)
        if life is not None:
            return life.caller.owner
        try:
            return (await self.get(task_id)).owner
        except NotFound:
            raise NotMine(f"no task {task_id!r} was ever on this host", task=task_id) from None

    async def key_network_of(self, task_id: str) -> Network | None:
        """The policy of the key that the task was made with, which a repeat of it does not get out of either."""
        return (await self._row(task_id)).key_network

    async def listed(self, question: Callable[[Connection], list[Task]]) -> list[Task]:
        return await self.tools.read(question)

    async def request_of(self, task_id: str) -> dict[str, object]:
        """The request that made the task, without its secrets."""
        task, prompt = await self.tools.read(lambda db: (tasks.get(db, task_id).task, tasks.prompt(db, task_id)))
        return request_of(task, prompt)

    async def stop(self, task_id: str, caller: Caller) -> Task:
        """The task ends. Its work is kept first, which may take a while. Stopping one that is over changes nothing."""
        now_ms = self.tools.now_ms()
        await self.tools.write(partial(wishes.stop, task_id=task_id, now_ms=now_ms, request=caller.request))
        if (life := self._lives.get(task_id)) is not None:
            life.ended()
        return await self._until(task_id, lambda row: row.task.state in FINAL, SETTLE_S)

    async def pause(self, task_id: str, caller: Caller) -> Task:
        """The task waits until it is resumed, with its machine on disk. Pausing a paused one changes nothing more."""
        if not self.tools.can_save:
            name = self.tools.means.pool.engine.name
            raise WrongState(f"the {name} engine of this host cannot pause a task", task=task_id)
        now_ms = self.tools.now_ms()
        await self.tools.write(partial(wishes.pause, task_id=task_id, now_ms=now_ms, request=caller.request))
        self._wake(task_id)
        return await self._until(task_id, lambda row: row.task.state is not TaskState.RUNNING, RESUME_S)

    async def resume(self, task_id: str, caller: Caller) -> Task:
        """The task goes on, unless a person is still asked something. Resuming a running one changes nothing."""
        now_ms = self.tools.now_ms()
        await self.tools.write(partial(wishes.resume, task_id=task_id, now_ms=now_ms, request=caller.request))
        self._wake(task_id)
        return await self._until(task_id, wishes.goes_on, RESUME_S)

    async def input(self, task_id: str, said: Input, caller: Caller) -> Task:
        """What a person says is written down when this returns, and will be delivered."""
        now_ms = self.tools.now_ms()
        write = partial(inputs.say, task_id=task_id, said=said, now_ms=now_ms, caller=caller)
        row = await self.tools.write(write)
        self._wake(task_id)
        return row.task

    async def kept(self, task_id: str) -> list[artifacts.Entry]:
        return await self.tools.read(partial(artifacts.of, task_id=task_id))

    async def artifact(self, task_id: str, name: str) -> artifacts.Entry:
        entry = await self.tools.read(partial(artifacts.get, task_id=task_id, name=name))
        if entry is None:
            raise NoArtifact(f"task {task_id} has no {name}", name=name)
        return entry

    @contextlib.asynccontextmanager
    async def diff(self, task_id: str) -> AsyncIterator[tuple[AsyncIterator[bytes], bool]]:
        """The difference to where the task began, as it is now, or as it was at the end; and whether it is cut."""
        row = await self._row(task_id)
        life = self._lives.get(task_id)
        if life is None or "work" in row.kept or row.task.sandbox is None or "cloned" not in row.kept:
            async with self.tools.artifacts.open_part(task_id, keeping.PATCH) as part:
                yield part.chunks(), keeping.is_cut(row)
            return
        async with self.tools.sandboxes.use(row.task.sandbox) as guest:
            await find_workspace(life, row.task.sandbox)
            base = keeping.base_of(row) or keeping.EMPTY_TREE
            query = {"path": keeping.path_of(life, row.task), "base": base, "format": "patch"}
            target = f"/git/diff?{urlencode({**query, 'limit': keeping.MAX_PATCH_BYTES})}"
            async with guest.exchange("GET", target, limit_s=keeping.GIT_S, refusals=FAR_AWAY) as answer:
                chunks = keeping.at_most(answer.chunks(), keeping.MAX_PATCH_BYTES)
                yield chunks, answer.headers.get("warren-truncated") == "true"

    async def keep_screenshot(self, sandbox_id: str, png: bytes) -> str | None:
        """A picture of a task's browser is one of its artifacts. Returns its name; None: the sandbox has no task."""
        task = await self.tools.read(partial(tasks.of_sandbox, sandbox_id=sandbox_id))
        if task is None or task.state in FINAL:
            return None
        count = len(await self.kept(task.id))
        name = f"screenshot-{self.tools.now_ms()}-{count + 1}.png"
        stored = await self.tools.artifacts.put(task.id, name, png)
        entry = artifacts.Entry(name, "screenshot", stored.bytes, stored.sha256, self.tools.now_ms())
        await self.tools.write(lambda db: artifacts.put(db, task.id, entry), durable=False)
        return name

    # How it is done.

    async def _row(self, task_id: str) -> Row:
        return await self.tools.read(partial(tasks.get, task_id=task_id))

    def _wake(self, task_id: str) -> None:
        if (life := self._lives.get(task_id)) is not None:
            life.wake()

    async def _until(self, task_id: str, is_so: Callable[[Row], bool], limit_s: float) -> Task:
        """The task, once it is so, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(limit_s),
                contextlib.aclosing(self.tools.ledger.changes(task_id)) as changes,
            ):
                async for _ in changes:
                    if is_so(await self._row(task_id)):
                        break
        return await self.get(task_id)

    def _begin(self, row: Row) -> None:
        if not (self._stopping or self._is_halted) and row.id not in self._lives:
            life = self._lives[row.id] = Life(self.tools, row)
            self._runners[row.id] = asyncio.create_task(self._live(life), name=row.id)

    async def _live(self, life: Life) -> None:
        """A task costs nobody else anything: what nobody foresaw ends it, and is in the log. It always ends."""
        crashes = 0
        try:
            while True:
                try:
                    await live(life)
                    break
                except Exception:
                    crashes += 1
                    log.exception("a task's runner failed", extra={"task": life.id})
                    await self._give_up(life)
                    # For as long as it takes: who left it alone would leave its machine to run for ever.
                    await asyncio.sleep(min(MOST_S, AGAIN_S * crashes))
        finally:
            self._lives.pop(life.id, None)
            self._runners.pop(life.id, None)
            self._deliveries.ring()

    async def _give_up(self, life: Life) -> None:
        with contextlib.suppress(WarrenError):
            await life.fail("internal", "something went wrong in its host; the host's log has more")

    async def _upkeep(self) -> None:
        """Remove what is no longer needed: secrets of tasks that are over, files of those that are forgotten."""
        while True:
            try:
                await self._sweep()
            except (WarrenError, OSError) as error:
                log.error("what tasks left behind could not be removed", extra={"why": str(error)})
            await asyncio.sleep(UPKEEP_S)

    async def _clear_halves(self) -> None:
        """Before anything is written: what a former daemon left half written, and files of no task, go."""
        try:
            await self.tools.artifacts.sweep(await self.tools.read(tasks.ids))
        except WarrenError as error:
            log.error("the store could not be swept", extra={"why": str(error)})

    async def _sweep(self) -> None:
        needed = await self.tools.read(partial(_needed, since_ms=self.tools.now_ms() - RETRY_MS))
        swept = await finish(asyncio.to_thread(self.tools.vault.sweep, _Either(needed, self._fresh)))
        if swept:
            await self.tools.ledger.covered()  # else a successor might need what is sealed in the store
        for task_id, state in (await self.tools.read(partial(tasks.states, ids=swept))).items():
            if state is not None:  # else others may carry it on, since this host was lost: it is theirs in the store
                await self.tools.forget_secrets(task_id)
        self._fresh -= needed | self._stale  # what was fresh the last time is a task by now, or never will be
        self._stale = set(self._fresh)
        while forgotten := await self.tools.read(retention.forgotten_files):
            await self.tools.ledger.covered()  # a successor might still look for them
            for task_id in forgotten:
                await self.tools.artifacts.remove(task_id)
                await remove_all(self.tools.store, task_id)
            await self.tools.write(partial(retention.removed_files, ids=forgotten), durable=False)


class _Either(set[str]):
    """Those of one set, and of another that may still grow."""

    def __init__(self, known: set[str], growing: set[str]) -> None:
        super().__init__(known)
        self._growing = growing

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._growing


async def _always(work: Callable[[], Awaitable[None]]) -> None:
    """Do it for ever: what nobody foresaw is in the log, and is not the end of it."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("what is done for all tasks failed")
        await asyncio.sleep(AGAIN_S)


async def _ended(runners: list["asyncio.Task[None]"]) -> None:
    for runner in runners:
        runner.cancel()
    if runners:
        await asyncio.wait(runners)


def _needed(db: Connection, since_ms: int) -> set[str]:
    """Tasks whose secrets somebody may still need."""
    rows = db.execute("SELECT id FROM tasks WHERE phase <> 'done' OR ended_ms >= ?", (since_ms,))
    return {row[0] for row in rows} | webhooks.waiting(db)

"""One task's life, as all who work on it see it: its row, its machine, and who is to be told that something changed."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

import orjson

from contract.errors import FaultError, NotFound
from contract.models import Caller, Sandbox
from contract.states import State
from contract.task_states import TaskEvent
from poold.errors import GuestError
from poold.ledger import tasks
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.link import FAR_AWAY, Guest
from poold.tasks.means import Tools

T = TypeVar("T")

REPO = "repo"  # where a repository is cloned to, in the workspace
WORKSPACE = "/workspace"
MAX_ANSWER_BYTES = 4 << 20
OVER = (State.STOPPED, State.ERROR)
HEAD_S = 30.0


class Gone(FaultError):
    """The task's machine is no more. Raised only inside this room."""

    status = 502
    code = "machine_gone"


class Life:
    """Lives on the loop. One runner owns it; others only `wake` it."""

    def __init__(self, tools: Tools, row: Row) -> None:
        self.tools = tools
        self.id = row.id
        self.key = (row.task.created_ms, row.id)
        self.caller = Caller(row.task.owner, None, row.key_network)
        self.changed = asyncio.Event()  # something is to be decided anew
        self.ending = asyncio.Event()  # it is written down how the task ends
        self.turned = asyncio.Event()  # what is done now is given up: its row says something else
        self.awake = asyncio.Event()  # its machine runs
        self.refusals = 0  # rooms that were there, and were given to nobody after all
        self.gone: str | None = None  # why its machine is no more
        self.lost = asyncio.Event()  # it is
        self.to_fetch = asyncio.Event()  # outputs that are to become artifacts
        self.to_deliver = asyncio.Event()  # answers that somebody waits for
        self.wall = Wall(row.task.usage.wall_ms)
        self.workspace = WORKSPACE
        if row.ending is not None:
            self.ended()

    def wake(self) -> None:
        self.changed.set()

    async def row(self) -> Row:
        return await self.tools.read(partial(tasks.get, task_id=self.id))

    async def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        return await self.tools.write(work, durable=durable)

    async def move(self, event: TaskEvent, told: dict[str, Any] | None = None, **changes: Any) -> Row:
        """A change of state, with its event and its audit row."""
        now_ms = self.tools.now_ms()
        changes = {"wall_ms": self.wall.ms, **changes}
        step = partial(tasks.move, task_id=self.id, event=event, now_ms=now_ms, told=told)
        return await self.write(lambda db: step(db, **changes))

    async def tell(self, kind: str, data: dict[str, Any], **changes: Any) -> None:
        """An event of ours, and what changes with it."""
        at_ms = self.tools.now_ms()

        def write(db: Connection) -> None:
            tasks.tell(db, self.id, kind, data, at_ms=at_ms)
            tasks.change(db, self.id, **changes)

        await self.write(write)

    async def end(self, event: TaskEvent, reason: dict[str, Any] | None, *told: tuple[str, dict[str, Any]]) -> None:
        """Write down how the task ends, with the events that say why. The first word counts; a stop always does."""
        at_ms = self.tools.now_ms()

        def write(db: Connection) -> None:
            if tasks.end(db, self.id, {"event": event.value, "reason": reason}):
                for kind, data in told:
                    tasks.tell(db, self.id, kind, data, at_ms=at_ms)

        await self.write(write)
        self.ended()

    def ended(self) -> None:
        """How the task ends is written down: what it does now is given up."""
        self.ending.set()
        self.turned.set()
        self.wake()

    def continued(self) -> None:
        """Its machine is lost and the task goes on in another one: whatever is done now is done for the old one."""
        self.ending.clear()
        self.awake.clear()
        self.turned.set()
        self.wake()

    async def fail(self, code: str, message: str, **figures: Any) -> None:
        await self.end(TaskEvent.FAIL, {"code": code, "message": message, **figures})

    async def sandbox(self, row: Row) -> Sandbox | None:
        """The one that the task has now; None if there is none."""
        if row.task.sandbox is None:
            return None
        try:
            return await self.tools.sandboxes.get(row.task.sandbox)
        except NotFound:
            return None

    @contextlib.asynccontextmanager
    async def inside(self, sandbox_id: str) -> AsyncIterator[Guest]:
        """The guest of the task's machine, which is waited for while it is on disk. Raises `Gone` if it never comes."""
        while not self.awake.is_set():
            self._must_be_there()
            await self.awake.wait()
        self._must_be_there()
        async with self.tools.sandboxes.use(sandbox_id, self.caller) as guest:
            yield guest

    def _must_be_there(self) -> None:
        if self.gone is not None:
            raise Gone(self.gone)

    def lose(self, why: str) -> None:
        """The machine is no more: nobody needs to wait for it."""
        self.gone = why
        self.awake.set()
        self.lost.set()

    @property
    def cwd(self) -> str:
        return f"{self.workspace}/{REPO}"


class Wall:
    """How long a task has worked, without its pauses."""

    def __init__(self, ms: int) -> None:
        self._ms = float(ms)
        self._since: float | None = None

    @property
    def ms(self) -> int:
        running = 0.0 if self._since is None else 1000 * (time.monotonic() - self._since)
        return int(self._ms + running)

    @property
    def is_running(self) -> bool:
        return self._since is not None

    def run(self, is_running: bool) -> None:
        """From now on it counts, or it does not."""
        if is_running and self._since is None:
            self._since = time.monotonic()
        elif not is_running and self._since is not None:
            self._ms, self._since = self.ms, None


async def ask(guest: Guest, method: str, target: str, body: Any = None, *, limit_s: float = HEAD_S) -> dict[str, Any]:
    """One request with JSON both ways, for what may take long: the guest begins to answer when it is done."""
    headers = {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else orjson.dumps(body)
    async with guest.exchange(method, target, headers=headers, body=data, limit_s=limit_s, refusals=FAR_AWAY) as answer:
        try:
            told = orjson.loads(await answer.read(MAX_ANSWER_BYTES) or b"{}")
        except orjson.JSONDecodeError as error:
            raise GuestError(f"the guest's answer is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise GuestError("the guest's answer is not a JSON object")
    return told

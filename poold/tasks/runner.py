"""One task's life: claim, clone, run, finish. Each phase is written down before it is acted on, and may be done again.

Whatever goes wrong in a phase is tried again, for each of them begins by looking how far it is. What ends the task is
in its row (`ending`), and cuts short what it does: from then on only its end is worked on.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from contract.errors import WarrenError
from poold.errors import SandboxPaused
from poold.ledger.tasks import DONE, Row
from poold.lifetimes import finish as finish_all
from poold.tasks.asking import ask_about_hosts
from poold.tasks.checkpointing import keep_checkpoints
from poold.tasks.claim import claim
from poold.tasks.clone import clone
from poold.tasks.deliver import deliver_all
from poold.tasks.fetching import fetch
from poold.tasks.finish import finish
from poold.tasks.life import Gone, Life
from poold.tasks.places import find_workspace
from poold.tasks.restoring import restore
from poold.tasks.running import run
from poold.tasks.steering import Steering, watch

log = logging.getLogger("poold.tasks")

AGAIN_S = 1.0
PAUSED_S = 0.1
MOST_S = 30.0
CALM_S = 60.0  # a phase that worked for so long before it failed has not failed again
PATIENCE = 20  # failures in a row of a machine that is there, before the task is given up

Work = Coroutine[Any, Any, None]
PHASES: dict[str, Callable[[Life], Work]] = {"clone": clone, "restore": restore, "run": run}


async def live(life: Life) -> None:
    """From wherever the task is to its end. Cancelled, it goes on when somebody calls this again."""
    await together(_work(life), Steering(life).steer())


async def _work(life: Life) -> None:
    failures = 0
    while (row := await _looked(life)).task.phase != DONE:
        since = time.monotonic()
        try:
            await _phase(life, row)
            failures = 0
        except SandboxPaused:
            life.wake()
            await asyncio.sleep(PAUSED_S)  # the steering sees it, and the phase goes on when its machine does
        except WarrenError as error:
            failures = in_a_row(failures, time.monotonic() - since)
            await _trouble(life, row, error, failures)


async def _looked(life: Life) -> Row:
    """The row, as it is after whatever has turned the task last."""
    while True:
        life.turned.clear()
        row = await life.row()
        if not life.turned.is_set():
            return row


def in_a_row(before: int, lasted_s: float) -> int:
    """How many failures there were with this one, which came after so long. Each pause of a machine cuts a stream off:
    a task that works for days may have many of them, and works.
    """
    return 1 if lasted_s >= CALM_S else before + 1


async def _phase(life: Life, row: Row) -> None:
    if row.ending is not None or row.task.phase == "finish":
        await _at_the_end(life, row)
    elif row.task.phase == "claim":
        await together(claim(life), _until_turned(life))
    else:
        sandbox_id = row.task.sandbox or ""
        beside: list[Work] = [fetch(life, sandbox_id), deliver_all(life), watch(life, sandbox_id), _until_turned(life)]
        beside.append(keep_checkpoints(life, sandbox_id))
        if row.task.approvals.hosts:
            beside.append(ask_about_hosts(life, sandbox_id))
        await together(_in_machine(life, row), *beside)


async def _in_machine(life: Life, row: Row) -> None:
    await find_workspace(life, row.task.sandbox or "")
    await PHASES[row.task.phase](life)


async def _at_the_end(life: Life, row: Row) -> None:
    if row.task.sandbox is None:
        await finish(life)
        return
    await together(_finished(life, row.task.sandbox), watch(life, row.task.sandbox), _until_continued(life))


async def _finished(life: Life, sandbox_id: str) -> None:
    """Its machine is waited for here, too: one that is lost meanwhile never comes, and the task may go on without."""
    await find_workspace(life, sandbox_id)
    await finish(life)


async def _until_turned(life: Life) -> None:
    """Returns when the task is to end, or to begin once more: what it does is given up then, and undone as far as it
    undoes itself.
    """
    await life.turned.wait()


async def _until_continued(life: Life) -> None:
    """Returns when the task is not to end after all. That it is to end for another reason changes nothing."""
    while life.ending.is_set():
        await life.turned.wait()
        life.turned.clear()


async def together(work: Work, *others: Work) -> None:
    """Do all of these until the first is over, and then none of them. What the first of them came to is raised."""
    tasks = [asyncio.ensure_future(each) for each in (work, *others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
                return
    finally:
        for task in tasks:
            task.cancel()
        await finish_all(asyncio.wait(tasks))
        for task in tasks:
            if not task.cancelled():
                task.exception()  # of what was given up, nobody wants to know


async def _trouble(life: Life, row: Row, error: WarrenError, failures: int) -> None:
    """A phase failed: it is tried again, a little later each time. That a machine is gone, the steering notices."""
    told = {"task": life.id, "phase": row.task.phase, "failures": failures, "why": str(error)}
    log.warning("a task's phase failed", extra=told)
    life.wake()
    if isinstance(error, Gone):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                await life.turned.wait()
    elif failures >= PATIENCE and row.task.phase in PHASES and life.awake.is_set():
        await life.fail("machine", f"its machine does not do its part: {error.message}")
    await asyncio.sleep(min(MOST_S, AGAIN_S * failures))

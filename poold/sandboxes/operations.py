"""The operations of several steps: creating, pausing and resuming. A failure or a cancellation at any step is undone.

The ledger says what is true at every moment, also if the daemon is killed there:

- `starting`: nobody was told of it, or it was paused and its saved state is whole. The next start undoes it.
- `running`: its machine has its process. If it was just resumed, its guest may still have to be told.
- `paused`: its saved state is whole. A process that is still there is superfluous.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from contract.errors import WarrenError, WrongState
from contract.models import Caller, CreateSandbox, Sandbox
from contract.states import Event
from poold.errors import EngineError, SandboxPaused
from poold.ledger import sandboxes
from poold.lifetimes import finish
from poold.link import Guest
from poold.pool import Place
from poold.sandboxes.means import Live, Means
from poold.sandboxes.owed import Owed
from poold.sandboxes.telling import Progress
from poold.steps import Step, Undo, run_steps

log = logging.getLogger("poold.sandboxes")

Fill = Callable[[Guest], Awaitable[None]]


async def create(  # noqa: PLR0917 — what is made, for whom
    means: Means, owed: Owed, sandbox: Sandbox, request: CreateSandbox, caller: Caller, fill: Fill
) -> Live:
    """A running sandbox whose guest has answered and has been filled. If this raises or is cancelled, nothing runs."""
    place = await means.pool.take(sandbox.shape)
    outcome = "restored" if place.machine is None else "warm"
    names = {
        "hostname": sandbox.id,
        "machine_id": means.sources.entropy(16).hex(),
        "env": {**means.network.env, **request.env},
    }
    guests: list[Guest] = []
    done: list[Sandbox] = []

    async def claim() -> None:
        # A machine that no row names is nobody's and is removed by the next start, so the intent may become durable
        # while the machine wakes. Nobody hears of the sandbox before both are done.
        begin = partial(_begin, sandbox=sandbox, machine=place.machine_id, request=caller.request)
        intent = means.ledger.submit(begin)
        identity = partial(means.identity, sandbox.id, 1, **names)
        guests.append(await means.pool.open(place, identity, means.rule_of(sandbox)))
        await asyncio.shield(intent)

    async def ready() -> None:
        # What a loss of power would take back here is that the machine answered; it would take the machine, too.
        done.append(await means.move(sandbox.id, Event.READY, caller, durable=False, generation=1))

    async def write_off(error: BaseException) -> None:
        await owed.move(sandbox.id, Event.FAIL, caller, reason=_reason(error, "creation"))

    steps = [
        Step("place", _nothing, lambda _: means.pool.release(place)),
        Step("claim", claim, write_off),
        Step("fill", lambda: fill(guests[0])),
        Step("ready", ready),
    ]
    await run_steps("create", sandbox.id, steps)
    means.metrics.claims_total.add(outcome=outcome)
    return Live(done[0], place, guests[0], means.sources.now_ms())


async def pause(means: Means, owed: Owed, live: Live, caller: Caller, why: str) -> Sandbox:
    """Save the sandbox's machine and free its memory and its process. If this fails before that is written, it runs on.

    Who calls this waits for its end: what is written down cannot be taken back by a cancellation.
    """
    sandbox, place, engine = live.sandbox, live.place, means.pool.engine
    machine = place.machine
    if not engine.can_save or machine is None:
        raise WrongState(f"the {engine.name} engine of this host cannot pause a sandbox", sandbox=sandbox.id)
    saved: list[int] = []
    done: list[Sandbox] = []
    tell = Progress(means, sandbox.id, "saving")

    async def save() -> None:
        await engine.discard(machine.id)  # of an earlier pause, if it could not be removed then
        saved.append(await engine.save(machine, tell))

    async def write() -> None:
        detail = {"why": why, "bytes": saved[0]}
        done.append(await means.move(sandbox.id, Event.PAUSE, caller, detail=detail))

    async def put_away() -> None:
        await means.pool.put_away(place, SandboxPaused(f"sandbox {sandbox.id} was paused: {why}"))

    give_up = _giving_up(means, owed, sandbox, place, caller, doing="pausing")

    async def thaw(_error: BaseException) -> None:
        try:
            await engine.resume(machine)
        except EngineError as error:
            if not machine.ended.done():  # else its end is told as what it is
                await give_up(error)  # nobody could use it as it is
            raise

    steps = [
        Step("freeze", lambda: engine.pause(machine), thaw),
        Step("save", save, lambda _: engine.discard(machine.id)),
        Step("write", write),
    ]
    await run_steps("pause", sandbox.id, steps)
    await run_steps("pause", sandbox.id, [Step("halt", put_away, give_up)])
    return done[0]


async def resume(means: Means, owed: Owed, sandbox: Sandbox, caller: Caller) -> Live:
    """Bring a paused sandbox back. If this fails before its machine has run, it is paused as before.

    Who calls this waits for its end: what is written down cannot be taken back by a cancellation.
    """
    pool, machine_id = means.pool, sandbox.machine or ""
    place = await pool.take_room(sandbox.shape, machine_id)
    now_ms = means.sources.now_ms()
    generation = sandbox.generation + 1
    done: list[Sandbox] = []

    async def put_back(_error: BaseException) -> None:
        await owed.move(sandbox.id, Event.PUT_BACK, caller)

    async def write() -> None:
        expires_ms = now_ms + 1000 * sandbox.rules.timeout_sec
        detail = {"paused_for_ms": now_ms - (sandbox.paused_ms or now_ms)}
        changes: dict[str, Any] = {"generation": generation, "expires_ms": expires_ms, "detail": detail}
        done.append(await means.move(sandbox.id, Event.READY, caller, **changes))

    steps = [
        Step("place", _nothing, lambda _: pool.put_away(place)),
        Step("intent", lambda: means.move(sandbox.id, Event.RESUME, caller), put_back),
        Step("load", lambda: pool.load(place)),
        # Before the machine runs: from here on its drive may differ from its saved memory, and there is no way back.
        Step("write", write),
    ]
    await run_steps("resume", sandbox.id, steps)
    guest = await _reopen(means, owed, done[0], place, caller)
    return Live(done[0], place, guest, means.sources.now_ms())


async def _reopen(means: Means, owed: Owed, sandbox: Sandbox, place: Place, caller: Caller) -> Guest:
    """Let the machine go on. One that cannot is given up: it may have run, and what was saved is of the past."""
    guests: list[Guest] = []

    async def tell() -> None:
        identity = partial(means.identity, sandbox.id, sandbox.generation)
        guests.append(await means.pool.reopen(place, identity, means.rule_of(sandbox)))

    # From here on its process is the truth, and what was saved may go while it wakes.
    discarding = asyncio.ensure_future(discard(means, place.machine_id))
    try:
        give_up = _giving_up(means, owed, sandbox, place, caller, doing="resuming")
        await run_steps("resume", sandbox.id, [Step("tell", tell, give_up)])
    finally:
        await finish(discarding)
    return guests[0]


def _giving_up(means: Means, owed: Owed, sandbox: Sandbox, place: Place, caller: Caller, *, doing: str) -> Undo:
    """There is no way back and none forward: the sandbox is over, and everything is given back."""

    async def give_up(error: BaseException) -> None:
        await owed.move(sandbox.id, Event.FAIL, caller, reason=_reason(error, doing))
        await means.pool.release(place)

    return give_up


async def discard(means: Means, machine_id: str) -> None:
    """Remove the saved state of a machine that goes on. What is left of it goes with the machine."""
    try:
        await means.pool.engine.discard(machine_id)
    except EngineError as error:
        log.warning("a saved state was not removed", extra={"machine": machine_id, "why": str(error)})


async def _nothing() -> None:
    """The step was done before: only its undo is of interest."""


def _begin(db: Any, sandbox: Sandbox, machine: str, request: str | None) -> None:
    """The intent: the sandbox is being started, in this machine."""
    sandboxes.add(db, sandbox, request=request)
    sandboxes.move(db, sandbox.id, Event.CLAIM, now_ms=sandbox.created_ms, machine=machine, request=request)


def _reason(error: BaseException, doing: str) -> str:
    return error.message if isinstance(error, WarrenError) else f"{doing} was cut short ({type(error).__name__})"

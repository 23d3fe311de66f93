"""Doing what was planned. `clear` comes before there are slots, `take_over` when everything else runs."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from contract.errors import WarrenError, WrongState
from contract.models import Caller, Sandbox
from contract.states import Event
from poold.engines import Engine
from poold.errors import GuestError, MachineDied
from poold.ledger import Ledger, sandboxes
from poold.link import Guest
from poold.reconcile.plan import NO_SLOT, Adopt, Plan
from poold.sandboxes import Live, Means, Sandboxes, files_alone, operations
from poold.slots import Slot

log = logging.getLogger("poold.reconcile")

BY_ITSELF = Caller()
ANSWER_LIMIT_S = 30.0  # for a guest that was paused in the middle of something, on a host that is busy starting

SlotOf = Callable[[int], Slot | None]


@dataclass
class Recovery:
    """What the last start found, for the operator."""

    at_ms: int
    adopted: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        return dict(vars(self))


async def clear(todo: Plan, engine: Engine, ledger: Ledger, *, now_ms: int) -> Recovery:
    """Remove what should not be, and write down what is no more. Afterwards only what is taken over still runs."""
    recovery = Recovery(now_ms)
    for machine_id in todo.remove:
        log.warning("removing a machine that nobody has", extra={"machine": machine_id})
        if await _ended(engine.destroy(machine_id), machine_id):
            recovery.removed.append(machine_id)
    for machine_id in todo.halt:
        await _ended(engine.halt(machine_id), machine_id)
    for sandbox in todo.put_back:
        await _move(ledger, sandbox, Event.PUT_BACK, now_ms)
        recovery.undone.append(sandbox.id)
    for sandbox in todo.give_back:
        await _move(ledger, sandbox, Event.RETURN, now_ms)
        recovery.undone.append(sandbox.id)
    for sandbox, reason in todo.lose:
        log.warning("a sandbox was lost", extra={"sandbox": sandbox.id, "why": reason})
        await _move(ledger, sandbox, Event.FAIL, now_ms, reason=sandbox.lost(reason))
        recovery.lost.append(sandbox.id)
    return recovery


async def _ended(end: Awaitable[None], machine_id: str) -> bool:
    """Whether a machine could be ended. One that cannot (a process that the kernel holds) must not cost the others."""
    try:
        await end
    except WarrenError as error:
        log.error("a machine of a former daemon cannot be ended", extra={"machine": machine_id, "why": str(error)})
        return False
    return True


async def _move(ledger: Ledger, sandbox: Sandbox, event: Event, now_ms: int, **changes: Any) -> Sandbox:
    return await ledger.write(lambda db: sandboxes.move(db, sandbox.id, event, now_ms=now_ms, **changes))


async def take_over(todo: Plan, means: Means, host: Sandboxes, slot_of: SlotOf, recovery: Recovery) -> None:
    """Adopt the machines that run. One that cannot be is given up, and costs its own sandbox only."""
    async with asyncio.TaskGroup() as tasks:
        for action in todo.adopt:
            tasks.create_task(_take_over(action, means, host, slot_of(action.slot), recovery))
    for sandbox in [*todo.paused, *todo.put_back]:
        host.wait_for(await host.get(sandbox.id))
    for sandbox in await host.listed(sandboxes.hibernating):
        host.wait_for(sandbox)
    for what in ("adopted", "undone", "lost", "removed"):
        means.metrics.recovery_total.add(len(getattr(recovery, what)), what=what)
    log.info("recovered", extra={"adopted": len(recovery.adopted), "lost": len(recovery.lost)})


async def _take_over(action: Adopt, means: Means, host: Sandboxes, slot: Slot | None, recovery: Recovery) -> None:
    if slot is None:
        await _give_up(means, action, NO_SLOT, recovery)
        return
    place = means.pool.places.hold(action.sandbox.shape, slot, action.machine_id)
    try:
        guest = await means.pool.adopt(place, means.rule_of(action.sandbox))
        await _tell(means, action.sandbox, guest)
    except WarrenError as error:
        await _ended(means.pool.release(place), place.machine_id)
        await _give_up(means, action, f"its machine could not be taken over: {error.message}", recovery)
    else:
        await operations.discard(means, place.machine_id)  # it may have been brought back from there just now
        host.adopt(Live(action.sandbox, place, guest, means.sources.now_ms()))
        recovery.adopted.append(action.sandbox.id)


async def _tell(means: Means, sandbox: Sandbox, guest: Guest) -> None:
    """See that the guest is who we think. One that was just brought back from disk may not know the time yet.

    A guest that does not answer is none the worse for it: a program may keep its machine busy.
    """
    try:
        health = await guest.call("GET", "/health", limit_s=ANSWER_LIMIT_S)
        if health.get("id") == sandbox.id and health.get("generation") != sandbox.generation:
            identity = means.identity(sandbox.id, sandbox.generation)
            await guest.call("POST", "/identity", identity, limit_s=ANSWER_LIMIT_S)
        if health.get("frozen") is True:  # its files were on their way to the store when the last daemon ended
            await files_alone.thaw(guest)
    except GuestError as error:
        log.warning("an adopted guest does not answer", extra={"sandbox": sandbox.id, "why": str(error)})
        return
    if health.get("id") != sandbox.id:
        raise MachineDied("its guest is somebody else's")


async def _give_up(means: Means, action: Adopt, reason: str, recovery: Recovery) -> None:
    log.warning("a sandbox was lost", extra={"sandbox": action.sandbox.id, "why": reason})
    with contextlib.suppress(WrongState):
        await means.move(action.sandbox.id, Event.FAIL, BY_ITSELF, reason=action.sandbox.lost(reason))
    await _ended(means.pool.remove(action.machine_id), action.machine_id)
    recovery.lost.append(action.sandbox.id)

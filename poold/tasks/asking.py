"""Hosts that a task's machine wants to reach and may not: each becomes a question, once."""

import contextlib
from functools import partial
from typing import Any

from contract.tasks import Waiting
from poold.ledger import questions, tasks
from poold.ledger.driver import Connection
from poold.ledger.events import Event
from poold.tasks.life import Life

WAITS = "egress_waiting"


async def ask_about_hosts(life: Life, sandbox_id: str) -> None:
    """Until it is cancelled. From the beginning of the sandbox's timeline: what was asked before is not asked again."""
    async with contextlib.aclosing(life.tools.ledger.follow(sandbox_id, 0)) as batches:
        async for batch in batches:
            for event in batch:
                # A guest calls its events what it likes: only what we told is to be believed.
                if event.kind == WAITS and event.by == "host":
                    await life.write(partial(_ask, life=life, event=event))
                    life.wake()


def _ask(db: Connection, life: Life, event: Event) -> None:
    arguments: dict[str, Any] = {name: event.data.get(name) for name in ("name", "address", "port")}
    if arguments["name"]:
        arguments["address"] = None  # it may have another one the next time
    row = tasks.get(db, life.id)
    if row.ending is not None or questions.like(db, life.id, "host", arguments):
        return
    number = questions.count(db, life.id, "ho") + 1
    text = f"may it reach {arguments['name'] or arguments['address']}:{arguments['port']}?"
    waiting = Waiting(f"ho-{number}", "host", text, None, arguments, life.tools.now_ms())
    if questions.ask(db, life.id, waiting):
        tasks.tell(db, life.id, "approval.requested", vars(waiting), at_ms=waiting.since_ms)

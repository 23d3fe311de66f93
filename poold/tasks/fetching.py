"""Outputs that were too long for an event, fetched from their machine while there is one. They become artifacts."""

import logging
from functools import partial
from urllib.parse import urlencode

from contract.errors import WarrenError
from poold.errors import GuestRefused
from poold.ledger import artifacts, steps
from poold.ledger.driver import Connection
from poold.tasks.errors import ArtifactTooLarge
from poold.tasks.life import Life

log = logging.getLogger("poold.tasks")

MAX_BYTES = 8 << 20
MAX_KEPT = 1000  # outputs of one task


async def fetch(life: Life, sandbox_id: str) -> None:
    """Fetch what there is, whenever there is something. Until it is cancelled."""
    while True:
        await life.to_fetch.wait()
        life.to_fetch.clear()
        try:
            await fetch_all(life, sandbox_id)
        except WarrenError as error:  # the end of the task tries once more
            log.info("an output was not fetched", extra={"task": life.id, "why": str(error)})


async def fetch_all(life: Life, sandbox_id: str) -> None:
    while wanted := await life.tools.read(partial(steps.to_fetch, task_id=life.id)):
        for number, path in wanted:
            await _fetch(life, sandbox_id, number, path)


async def _fetch(life: Life, sandbox_id: str, number: int, path: str) -> None:
    """One. What the guest does not give, or too much of, is lost."""
    name = f"step-{number}.txt"
    entry = None
    if number <= MAX_KEPT:
        target = f"/files/content?{urlencode({'path': path, 'user': 'root'})}"
        try:
            async with life.inside(sandbox_id) as guest, guest.exchange("GET", target) as answer:
                kept = await life.tools.artifacts.put(life.id, name, answer.chunks(), limit_bytes=MAX_BYTES)
            entry = artifacts.Entry(name, "output", kept.bytes, kept.sha256, life.tools.now_ms())
        except (GuestRefused, ArtifactTooLarge) as error:
            log.info("an output is lost", extra={"task": life.id, "step": number, "why": error.message})
    await life.write(partial(_write, task_id=life.id, number=number, entry=entry), durable=False)


def _write(db: Connection, task_id: str, number: int, entry: artifacts.Entry | None) -> None:
    if entry is not None:
        artifacts.put(db, task_id, entry)
    steps.fetched(db, task_id, number, None if entry is None else entry.name)

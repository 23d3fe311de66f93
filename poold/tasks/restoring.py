"""The workspace of a task that lost its machine, brought into another one."""

import contextlib
from functools import partial

from poold.errors import GuestRefused
from poold.ledger import checkpoints, tasks
from poold.ledger.checkpoints import Checkpoint
from poold.ledger.driver import Connection
from poold.link import Guest
from poold.store.errors import Corrupt, NoObject
from poold.tasks.checkpointing import key_of, unpacked
from poold.tasks.clone import policy_request
from poold.tasks.life import Life, ask

RESTORE_S = 1800.0  # of one checkpoint, once the guest has all of it


async def restore(life: Life) -> None:
    """The agent may go on when this returns, or the task is to end. May be called again at any point."""
    row = await life.row()
    wanted = (row.kept.get("continued") or {}).get("checkpoint")
    found = await life.tools.read(partial(checkpoints.listed, task_id=life.id))
    links = checkpoints.chain([each for each in found if each.number <= (wanted or 0)])
    try:
        if not links:
            raise NoObject(f"checkpoints/{life.id}/{wanted}")
        async with life.inside(row.task.sandbox or "") as guest:
            await ask(guest, "POST", "/git/policy", policy_request(life.tools, row.task.repo))
            for link in links:
                await _put(life, guest, link, is_first=link is links[0], is_last=link is links[-1])
    except (NoObject, Corrupt) as error:  # nothing is deleted: a person may know more
        await life.fail("checkpoint", f"its checkpoint cannot be used: {error.message}")
        return
    except GuestRefused as error:
        await life.fail("checkpoint", f"its new machine refused its checkpoint: {error.message}", error=error.code)
        return
    await life.write(partial(_restored, task_id=life.id))
    life.wake()


def _restored(db: Connection, task_id: str) -> None:
    row = tasks.get(db, task_id)
    told = {**row.kept["continued"], "is_restored": True}
    tasks.change(db, task_id, phase="run", kept={**row.kept, "continued": told})


async def _put(life: Life, guest: Guest, link: Checkpoint, *, is_first: bool, is_last: bool) -> None:
    store = life.tools.store
    entry = await store.head(key_of(life.id, link, "tar.zst"))
    if (entry.sha256, entry.bytes) != (link.sha256, link.bytes):
        raise Corrupt(entry.key, f"it has {entry.bytes} bytes and another hash than was written down")
    target = f"/checkpoint?whole={int(is_first)}&last={int(is_last)}"
    async with (
        contextlib.aclosing(unpacked(store, life.id, link)) as chunks,
        guest.exchange("PUT", target, body=chunks, limit_s=RESTORE_S) as answer,
    ):
        await answer.read(1 << 16)

"""Beside an agent at work: its workspace and its session are kept in the store, whenever it is time.

A checkpoint is a fact when it is there as a whole: the archive first, then its manifest, then its row with the event
that tells of it. What it covers is what the agent has told up to a number, and that is in the ledger before the row is.
There is none of a run whose agent has not said its session.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import orjson

from contract.errors import WarrenError
from contract.tasks import Checkpointing
from poold.archives import archive as archives
from poold.archives.members import CheckpointCensus
from poold.archives.writing import pieces_of
from poold.errors import GuestError, SandboxPaused
from poold.ledger import checkpoints, tasks
from poold.ledger.checkpoints import Checkpoint
from poold.ledger.driver import Connection
from poold.ledger.tasks import Row
from poold.lifetimes import finish
from poold.link import Answer
from poold.store import Content, Store
from poold.tasks.life import Life
from poold.tasks.pacing import Marks, base_for, due_s, rest_s
from poold.tasks.progress import TOKENS, Progress
from poold.tasks.words import number, text_of, usd_of

log = logging.getLogger("poold.tasks")

FEATURE = "checkpoint"
FORMAT = 1  # of manifests
MB = 1 << 20
HOLD_S = 600.0  # an agent does not stand still for longer
HEAD_S = 60.0  # until a guest has made its agent stand still
HEARD_S = 60.0  # until all is written down that a checkpoint covers
COVERED_S = 60.0  # for the replica, before what it must know is done
LEAST_S = 0.05


def key_of(task_id: str, checkpoint: Checkpoint, what: str) -> str:
    """By its content, too: two hosts that both believe to be the task's never write over each other."""
    return f"checkpoints/{task_id}/{checkpoint.number}/{checkpoint.sha256}.{what}"


async def keep_checkpoints(life: Life, sandbox_id: str) -> None:
    """Until it is cancelled. What fails costs nothing but the checkpoint, and is tried again later."""
    row = await life.row()
    if row.task.phase != "run" or not is_wanted(row.task.checkpoint) or not await _is_possible(life, sandbox_id):
        await asyncio.Event().wait()
    began, failures, rested_until = time.monotonic(), 0, 0.0
    while True:
        await asyncio.sleep(max(LEAST_S, rested_until - time.monotonic()))
        if not await _until_due(life, began):
            await asyncio.Event().wait()  # there is nothing more to keep
        start = time.monotonic()
        try:
            await take(life, sandbox_id)
            failures = 0
        except SandboxPaused:
            failures = 0  # nothing happens in it
        except WarrenError as error:
            failures += 1
            log.warning("a task's workspace was not kept", extra={"task": life.id, "why": str(error)})
        began = time.monotonic()
        rested_until = began + rest_s(began - start, failures)


def is_wanted(asked: Checkpointing) -> bool:
    return bool(asked.steps or asked.minutes)


async def _is_possible(life: Life, sandbox_id: str) -> bool:
    """Guests in older snapshots cannot do it, and their tasks work as they did."""
    while True:
        try:
            async with life.inside(sandbox_id) as guest:
                features = (await guest.call("GET", "/health")).get("features")
            return isinstance(features, list) and FEATURE in features
        except WarrenError:
            await asyncio.sleep(1.0)


async def _until_due(life: Life, began: float) -> bool:
    """Returns when it is time for the next one; False if there will be none."""
    async with contextlib.aclosing(life.tools.ledger.changes(life.id)) as changes:
        news = asyncio.ensure_future(anext(changes))
        try:
            while True:
                row, found = await life.tools.read(partial(_known, task_id=life.id))
                progress = Progress.decode(row.progress)
                if row.ending is not None or progress.ended is not None:
                    return False
                kept = Marks.of(found[-1] if found else None)
                since_s = time.monotonic() - began
                wait_s = due_s(kept, Marks.of(progress), row.task.checkpoint, since_s=since_s)
                if wait_s == 0:
                    return True
                await asyncio.wait({news}, timeout=wait_s)
                if news.done():
                    news.result()
                    news = asyncio.ensure_future(anext(changes))
        finally:
            news.cancel()
            await asyncio.wait({news})


def _known(db: Connection, task_id: str) -> tuple[Row, list[Checkpoint]]:
    return tasks.get(db, task_id), checkpoints.listed(db, task_id)


async def take(life: Life, sandbox_id: str) -> Checkpoint:
    """One more checkpoint. If this raises or is cancelled, there is none."""
    row, found = await life.tools.read(partial(_known, task_id=life.id))
    run, next_number = row.task.continued + 1, found[-1].number + 1 if found else 1
    base = base_for(found, run)
    limit = life.tools.config.archive_mb * MB
    asked = {"number": next_number, "limit": limit + MB, "hold_ms": int(HOLD_S * 1000)}
    asked |= {} if base is None else {"base": base.number}
    path = await asyncio.to_thread(life.tools.artifacts.spool, life.id)
    began = time.monotonic()
    try:
        async with (
            life.inside(sandbox_id) as guest,
            guest.exchange("GET", f"/checkpoint?{urlencode(asked)}", limit_s=HEAD_S) as answer,
        ):
            told = _facts(answer)
            kept = await archives.keep(answer.chunks(), path, limit_bytes=limit, census=CheckpointCensus())
        took_ms = int(1000 * (time.monotonic() - began))
        progress = await _heard(life, number(told.get("events")))
        at_ms = life.tools.now_ms()
        new = _checkpoint(told, kept, progress, number_=next_number, base=base, run=run, at_ms=at_ms)
        await _put(life.tools.store, life.id, new, partial(pieces_of, path), [*checkpoints.chain(found), new])
    finally:
        await finish(asyncio.to_thread(path.unlink, missing_ok=True))
    old = await life.write(partial(_write, life=life, new=new, took_ms=took_ms))
    if old and await _is_covered(life):
        await _remove(life.tools.store, life.id, old)
    return new


async def _is_covered(life: Life) -> bool:
    """Whether whoever takes this host over knows what was written here: only then may what it replaces be removed."""
    try:
        async with asyncio.timeout(COVERED_S):
            await life.tools.ledger.covered()
    except TimeoutError:
        log.warning("old checkpoints stay: the replica is behind", extra={"task": life.id})
        return False
    return True


def _facts(answer: Answer) -> dict[str, Any]:
    try:
        told = orjson.loads(answer.headers.get("warren-checkpoint", ""))
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise GuestError("the guest does not say what its checkpoint is of")
    if not told.get("session"):
        raise GuestError("the agent has not said its session yet: nobody could go on from this")
    return told


async def _heard(life: Life, seq: int) -> Progress:
    """What is known when all is written down that the agent had told. One that tells it never has no checkpoint."""
    try:
        async with asyncio.timeout(HEARD_S), contextlib.aclosing(life.tools.ledger.changes(life.id)) as changes:
            async for _ in changes:
                progress = Progress.decode((await life.row()).progress)
                if progress.seq >= seq:
                    return progress
    except TimeoutError:
        pass
    raise GuestError("what a checkpoint covers was not told in time")


def _checkpoint(
    told: dict[str, Any],
    kept: archives.Archive,
    progress: Progress,
    *,
    number_: int,
    base: Checkpoint | None,
    run: int,
    at_ms: int,
) -> Checkpoint:
    """What a guest says of one, as far as it is to be believed."""
    said = told.get("used")
    used: dict[str, Any] = said if isinstance(said, dict) else {}
    covered = {name: min(number(used.get(name)), progress.used.get(name, 0)) for name in TOKENS}
    return Checkpoint(
        number=number_,
        base=base.number if base is not None and told.get("base") == base.number else None,
        run=run,
        guest_seq=number(told.get("events")),
        steps=progress.steps,
        commits=progress.commits,
        session=text_of(told.get("session"), 200),
        used={**covered, "usd": usd_of(used.get("usd"))},
        files=kept.files,
        bytes=kept.bytes,
        sha256=kept.sha256,
        at_ms=at_ms,
    )


async def _put(store: Store, task_id: str, new: Checkpoint, chunks: Any, links: list[Checkpoint]) -> None:
    """The archive, and beside it what is needed to go on from it if there were nothing else."""
    content = Content(chunks, new.bytes, new.sha256)
    await store.write(key_of(task_id, new, "tar.zst"), content)
    needed = checkpoints.chain(links)
    told = {
        "format": FORMAT,
        "task": task_id,
        "chain": [{"number": each.number, "sha256": each.sha256, "bytes": each.bytes} for each in needed],
        **{name: getattr(new, name) for name in ("number", "base", "run", "guest_seq", "session", "used", "at_ms")},
    }
    await store.put(key_of(task_id, new, "json"), orjson.dumps(told))


def _write(db: Connection, life: Life, new: Checkpoint, took_ms: int) -> list[Checkpoint]:
    old = checkpoints.add(db, life.id, new)
    told = {name: getattr(new, name) for name in ("number", "base", "steps", "files", "bytes")}
    tasks.tell(db, life.id, "task.checkpoint", {**told, "events": new.guest_seq, "took_ms": took_ms}, at_ms=new.at_ms)
    return old


async def _remove(store: Store, task_id: str, old: list[Checkpoint]) -> None:
    """What fails is removed with all others at the task's end."""
    try:
        for each in old:
            for what in ("json", "tar.zst"):
                await store.delete(key_of(task_id, each, what))
    except WarrenError as error:
        log.warning("old checkpoints were not removed", extra={"task": task_id, "why": str(error)})


async def remove_all(store: Store, task_id: str) -> None:
    """Every trace of a task's checkpoints in the store, also of those that never became one."""
    async for entry in store.list(f"checkpoints/{task_id}/"):
        await store.delete(entry.key)


async def forget_all(life: Life) -> None:
    """Of a task whose work is kept. If the store is away, what is left goes when the task is forgotten."""
    await life.write(partial(checkpoints.forget, task_id=life.id))
    if not await _is_covered(life):
        return
    try:
        await remove_all(life.tools.store, life.id)
    except WarrenError as error:
        log.warning("checkpoints were not removed", extra={"task": life.id, "why": str(error)})


async def unpacked(store: Store, task_id: str, checkpoint: Checkpoint) -> AsyncGenerator[bytes, None]:
    """The tar stream of one. Its end raises `Corrupt` if it is not what was written down."""
    async with (
        store.read(key_of(task_id, checkpoint, "tar.zst")) as reading,
        contextlib.aclosing(archives.unpacked(reading.chunks)) as chunks,
    ):
        async for chunk in chunks:
            yield chunk

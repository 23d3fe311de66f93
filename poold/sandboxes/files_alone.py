"""Hibernation of files alone: the machine ends, and what it has besides its image goes on in another one.

- Until the commit that says `hibernated` the machine is there, frozen: whatever fails, it goes on, without what ran.
- From then on the store has the files, read back; the machine is superfluous.
- Until the commit that says `running` again the store has them, and a machine that is being given them is nobody's.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from contract.errors import WarrenError, WrongState
from contract.models import FILES, Caller, Hibernated, Sandbox
from contract.states import Event, State
from poold.archives.errors import ArchiveTooLarge
from poold.archives.members import LayerCensus
from poold.archives.tar import Tar
from poold.errors import GuestError, GuestRefused, HostFault, SandboxPaused
from poold.hibernate import Depot
from poold.ledger import events, leftovers, sandboxes
from poold.lifetimes import finish
from poold.link import Guest
from poold.sandboxes.means import Live, Means
from poold.sandboxes.owed import Owed
from poold.sandboxes.telling import Progress
from poold.steps import Step, run_steps

FEATURE = "layer"
GRACE_MS = 5000  # for programs to end by themselves
FREEZE_S = 120.0
THAW_S = 30.0
RESTORE_S = 1800.0  # once the guest has all of it
MB = 1 << 20
PIECE = 1 << 20


async def put(means: Means, depot: Depot, live: Live, caller: Caller, why: str) -> Sandbox:
    """End the sandbox's machine and have its files in the store. If this fails before that is written, it runs on.

    What ran in it is gone then, too. Who calls this waits for its end.
    """
    sandbox, place, machine = live.sandbox, live.place, live.place.machine
    if machine is None:
        raise WrongState(f"sandbox {sandbox.id} has no machine", sandbox=sandbox.id)
    await _must_be_able(live.guest, sandbox.id)
    build = await means.pool.engine.build_of(machine)
    prefix, at_ms = depot.new_place(sandbox), means.sources.now_ms()
    found: list[Hibernated] = []
    done: list[Sandbox] = []

    async def freeze() -> None:
        live.guest = means.pool.redial(place, _asleep(sandbox.id, why))
        asked = {"grace_ms": GRACE_MS, "env": dict(means.network.env)}
        await live.guest.call("POST", "/layer/freeze", asked, limit_s=FREEZE_S)

    async def keep() -> None:
        async with depot.spool() as path:
            await _receive(live.guest, path, limit=2 * sandbox.shape.disk_mb * MB)
            tell = Progress(means, sandbox.id, "hibernating")
            found.append(await depot.put_files(sandbox, prefix, path, at_ms=at_ms, build=build, progress=tell))

    async def write() -> None:
        detail = {"why": why, "bytes": found[0].bytes, "kind": FILES}
        try:
            done.append(await means.move(sandbox.id, Event.HIBERNATE, caller, hibernated=found[0], detail=detail))
        except WarrenError:
            after = await means.ledger.read(partial(sandboxes.get, sandbox_id=sandbox.id))
            if after.hibernated != found[0]:  # else it counts, whatever went wrong after it
                raise
            done.append(after)

    note = partial(leftovers.add, prefix=prefix, now_ms=at_ms)
    steps = [
        Step("note", lambda: means.ledger.write(note)),
        Step("freeze", freeze, lambda _: thaw(live.guest)),
        Step("keep", keep),
        Step("write", write),
    ]
    with depot.writing(prefix):
        await run_steps("hibernate", sandbox.id, steps)
    return done[0]


async def thaw(guest: Guest) -> None:
    """It came to nothing: the machine may be used again."""
    await guest.call("POST", "/layer/thaw", {}, limit_s=THAW_S)


async def bring_back(means: Means, owed: Owed, depot: Depot, sandbox: Sandbox, caller: Caller) -> Live:
    """A machine with the sandbox's files, under the same name. If this fails, they are in the store as they were."""
    if sandbox.hibernated is None:
        raise WrongState(f"sandbox {sandbox.id} is not in the store", sandbox=sandbox.id)
    async with depot.files(sandbox, sandbox.hibernated, Progress(means, sandbox.id, "fetching")) as path:
        return await _claim(means, owed, sandbox, caller, path)


async def _claim(means: Means, owed: Owed, sandbox: Sandbox, caller: Caller, archive: Path) -> Live:
    place = await means.pool.take(sandbox.shape)
    now_ms, generation = means.sources.now_ms(), sandbox.generation + 1
    names = {"hostname": sandbox.id, "machine_id": means.sources.entropy(16).hex(), "env": dict(means.network.env)}
    guests: list[Guest] = []
    done: list[Sandbox] = []

    async def give_back(_error: BaseException) -> None:
        """Not what is written down as running: then it has the files, and the store is about to lose them."""
        await owed.move(sandbox.id, Event.RETURN, caller)
        after = await means.ledger.read(partial(sandboxes.get, sandbox_id=sandbox.id))
        if after.state is not State.RUNNING:
            await means.pool.release(place)

    async def unpack() -> None:
        identity = partial(means.identity, sandbox.id, generation, **names)
        guests.append(await means.pool.open(place, identity, means.rule_of(sandbox)))
        last = await means.ledger.read(partial(events.last_guest_seq, stream=sandbox.id))
        await _send(guests[0], archive, last)

    async def write() -> None:
        expires_ms = now_ms + 1000 * sandbox.rules.timeout_sec
        detail = {"paused_for_ms": now_ms - (sandbox.paused_ms or now_ms), "kind": FILES}
        changes: dict[str, Any] = {"generation": generation, "expires_ms": expires_ms, "detail": detail}
        done.append(await means.move(sandbox.id, Event.READY, caller, **changes))

    steps = [
        Step("intent", lambda: means.move(sandbox.id, Event.RESUME, caller, machine=place.machine_id), give_back),
        Step("unpack", unpack),
        # Only now may the store forget them.
        Step("write", write),
    ]
    await run_steps("resume", sandbox.id, steps)
    return Live(done[0], place, guests[0], means.sources.now_ms())


async def _must_be_able(guest: Guest, sandbox_id: str) -> None:
    features = (await guest.call("GET", "/health")).get("features")
    if not isinstance(features, list) or FEATURE not in features:
        problem = f"the guest of sandbox {sandbox_id} is an older one that cannot tell its files: hibernate all of it"
        raise WrongState(problem, sandbox=sandbox_id)


def _asleep(sandbox_id: str, why: str) -> SandboxPaused:
    return SandboxPaused(f"sandbox {sandbox_id} was put into the store, its files alone: {why}")


async def _receive(guest: Guest, path: Path, *, limit: int) -> None:
    """The guest's archive, checked member by member, at `path`. What is left of it if this fails is the caller's."""
    tar = Tar(LayerCensus().judge)
    query = urlencode({"limit": limit})
    async with guest.exchange("GET", f"/layer?{query}", limit_s=FREEZE_S) as answer:
        with _writing(path) as fd:
            read = 0
            async for chunk in answer.chunks():
                read += len(chunk)
                if read > limit + MB:
                    raise ArchiveTooLarge(f"its files are more than {limit} bytes", limit_bytes=limit)
                await finish(asyncio.to_thread(_take, tar, fd, chunk))
    tar.end()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise HostFault("writing", str(path), hint=str(error)) from error


def _take(tar: Tar, fd: int, chunk: bytes) -> None:
    """What is kept of a piece of the stream goes to the file. Blocks."""
    view = memoryview(tar.feed(chunk))
    while view:
        view = view[os.write(fd, view) :]


async def _send(guest: Guest, archive: Path, events_told: int) -> None:
    body = _pieces(archive)
    try:
        query = urlencode({"events": events_told})
        async with (
            contextlib.aclosing(body),
            guest.exchange("PUT", f"/layer?{query}", body=body, limit_s=RESTORE_S) as answer,
        ):
            await answer.read(1 << 16)
    except GuestRefused as error:  # it is nobody's request: the new machine does not take them
        raise GuestError(f"the new machine does not take the files: {error.message}") from error


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(path.open, "rb", 0) as file:
        while piece := await finish(asyncio.to_thread(file.read, PIECE)):
            yield piece

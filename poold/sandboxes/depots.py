"""Where machines of this host hibernate: in the store that hosts share, or in one of its own."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from poold.engines import Engine
from poold.hibernate import Depot, Notes
from poold.images import Images
from poold.ledger import Ledger, leftovers
from poold.lifetimes import finish
from poold.sandboxes.means import Sources
from poold.store.folder import open_folder
from poold.store.opening import Shared

ALONE = "alone"  # the cluster of a host that shares nothing


@contextlib.asynccontextmanager
async def open_depot(
    state_dir: Path,
    shared: Shared | None,
    engine: Engine,
    images: Images,
    *,
    ledger: Ledger,
    sources: Sources,
) -> AsyncIterator[Depot]:
    """The depot during the block. Golden memories are kept where machines are: they are linked, not copied."""
    async with contextlib.AsyncExitStack() as stack:
        if shared is not None:
            store, cluster = shared.store, shared.cluster
        else:
            store, cluster = await stack.enter_async_context(open_folder(state_dir / "store")), ALONE
        # Of a daemon that was killed: an archive that was on its way.
        await finish(asyncio.to_thread(shutil.rmtree, state_dir / "spools", ignore_errors=True))
        notes = notes_in(ledger, sources.now_ms)
        yield Depot(store, engine, images, state_dir / "goldens", cluster=cluster, notes=notes, entropy=sources.entropy)


def notes_in(ledger: Ledger, now_ms: Callable[[], int]) -> Notes:
    """What may be left over in the store is written down in `ledger`."""

    async def add(prefix: str) -> None:
        await ledger.write(partial(leftovers.add, prefix=prefix, now_ms=now_ms()))

    async def drop(prefix: str) -> None:
        await ledger.write(partial(leftovers.drop, prefix=prefix), durable=False)

    return Notes(add, drop)

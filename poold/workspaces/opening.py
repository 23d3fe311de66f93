"""Where workspaces of this host are: in the store or the folder that hosts share, or in a folder of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from poold.store.folder import open_folder
from poold.store.opening import Shared, cluster_of
from poold.workspace_config import WorkspacesConfig
from poold.workspaces.shelf import Shelf


@contextlib.asynccontextmanager
async def open_shelf(
    config: WorkspacesConfig, state_dir: Path, shared: Shared | None, now_ms: Callable[[], int]
) -> AsyncIterator[Shelf]:
    async with contextlib.AsyncExitStack() as stack:
        if shared is not None and config.folder is None:
            store, cluster = shared.store, shared.cluster
        else:
            store = await stack.enter_async_context(open_folder(config.folder or state_dir / "store"))
            cluster = await cluster_of(store)
        shelf = Shelf(store, cluster, config, state_dir / "workspaces", now_ms)
        await asyncio.to_thread(shelf.clear)
        yield shelf

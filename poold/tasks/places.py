"""Where in its machine a task works."""

from poold.errors import GuestError
from poold.tasks.life import WORKSPACE, Life
from poold.tasks.words import text_of


async def find_workspace(life: Life, sandbox_id: str) -> None:
    """A machine has its workspace at a place of its own only where it is none: with the local engine."""
    if life.tools.means.pool.engine.isolates or life.gone is not None:
        return
    async with life.inside(sandbox_id) as guest:
        told = text_of((await guest.call("GET", "/health")).get("workspace"), 4096)
    if told is not None and not told.startswith("/"):
        raise GuestError("the guest's workspace is no absolute path")
    life.workspace = told or WORKSPACE

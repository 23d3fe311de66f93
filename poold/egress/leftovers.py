"""What former daemons left: proxies of machines that nobody takes over. They end, and what they tell is kept."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from contract.egress import Row
from contract.errors import WarrenError
from poold import processes
from poold.egress.channel import Channel
from poold.egress.traces import end_all_of, name_of
from poold.errors import NetError

log = logging.getLogger("poold.egress")

LAST_WORDS_S = 2.0

Written = Callable[[str, list[Row]], Awaitable[None]]


async def sweep(folder: Path, keep: Collection[int], written: Written) -> None:
    """End every proxy that a former daemon left in a slot that is not to be kept, also one that does not answer."""
    for path in await asyncio.to_thread(lambda: sorted(folder.glob("*.sock"))):
        if path.stem.isdecimal() and int(path.stem) not in keep:
            try:
                await end(path, written)
            except (WarrenError, OSError) as error:  # it must not cost the others
                log.error("a proxy cannot be ended", extra={"path": str(path), "why": str(error)})


async def end(path: Path, written: Written) -> None:
    """End the proxy that is, or was, reached by this file."""
    with contextlib.suppress(FileNotFoundError):
        uid = (await asyncio.to_thread(path.stat)).st_uid
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await _hear_out(path, uid, written)
        except (TimeoutError, OSError, NetError, ValueError) as error:
            log.info("a proxy of a former daemon says nothing", extra={"path": str(path), "why": str(error)})
        await end_all_of(uid)
    await asyncio.to_thread(path.unlink, missing_ok=True)


async def _hear_out(path: Path, uid: int, written: Written) -> None:
    """Have the proxy end, and the rows that it still has be written down."""
    with contextlib.closing(await Channel.open(path)) as channel:
        hello = await channel.first()
        pid, sandbox = hello.get("pid"), hello.get("sandbox")
        if type(pid) is not int or processes.owner(pid) != uid:
            raise ValueError(f"another answers there: {hello!r:.100}")
        name = name_of(pid)
        await channel.say({"do": "end"})
        async for batch in channel.told():
            rows = [Row.read(told) for told in batch if told.get("told") == "row"]
            # What was told before is told again, and known to the ledger by its number.
            if rows := [row for row in rows if row.number and row.sandbox in (None, sandbox)]:
                await written(name, rows)

"""The proxy of one slot as a process: what it is given, and how it ends."""

import asyncio
import os
import resource
import socket
from typing import Any

from poold.egress.proxy.control import Control
from poold.egress.proxy.dial import Dialer, HostResolver, connect, is_own
from poold.egress.proxy.door import Door, Sockets, original_destination
from poold.egress.proxy.words import say

__all__ = ["Sockets", "run"]


def run(sockets: Sockets, control: socket.socket, slot: int) -> None:
    """Serve the guest of `slot` until poold says on `control`, a listening socket, that it is over."""
    # Names are meant as they are said: nothing of the host's own domain is put behind them.
    os.environ["LOCALDOMAIN"] = ""
    os.environ["RES_OPTIONS"] = "ndots:1 timeout:3 attempts:2"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every connection has two
    asyncio.run(serve(sockets, control, slot))


async def serve(sockets: Sockets, listener: socket.socket, slot: int) -> None:
    """Nothing passes before poold has given the first rule: a proxy begins with the policy that denies everything."""
    asyncio.get_running_loop().set_exception_handler(_log)
    resolver = HostResolver()
    over = asyncio.Event()

    def end() -> None:
        door.end()
        over.set()

    control = Control(listener, slot, os.getpid(), end)
    door = Door(sockets, control.gate, Dialer(resolver.resolve, connect, is_own), original_destination)
    control.start()
    try:
        async with door:
            await over.wait()
        await control.flushed()
    finally:
        control.stop()
        resolver.close()


def _log(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong where nobody waits for it: one line."""
    say(f"{context.get('message')}: {context.get('exception')!r}")

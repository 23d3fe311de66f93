"""The servers of the daemon: one on a loopback port for clients, one on a unix socket for the operator."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from granian.constants import Interfaces
from granian.server.embed import Server
from starlette.applications import Starlette

from poold.api.app import make_app
from poold.api.services import Services
from poold.config import Config
from poold.lifetimes import finish

log = logging.getLogger("poold")

# Granian counts open streams as requests under way, and lets the next request hang when there are too many.
STREAMS_AT_ONCE = 10_000
FINISH_S = 2.0  # for requests under way when the daemon is stopped
CONNECT_S = 0.01


@contextlib.asynccontextmanager
async def serving(found: Services, config: Config) -> AsyncIterator[None]:
    """Answer requests during the block. A server that ends by itself ends the daemon.

    At the end of the block, requests under way have a moment to finish. Then we let go of the sandboxes that streams
    tell of, and those have a moment to say so.
    """
    socket = config.socket
    socket.unlink(missing_ok=True)  # of a daemon that was killed; the lock says that it is not running
    servers = [
        _server(make_app(found), address=config.host, port=config.port),
        _server(make_app(found, for_operator=True), uds=socket),
    ]
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    try:
        await _until(tasks, lambda: asyncio.open_connection(config.host, config.port))
        await _until(tasks, lambda: asyncio.open_unix_connection(socket))
        socket.chmod(0o600)
        yield
    finally:
        for server in servers:
            server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait(tasks, timeout=FINISH_S)
        await finish(found.sandboxes.stop())
        await asyncio.wait(tasks, timeout=FINISH_S)
        socket.unlink(missing_ok=True)
    for task in tasks:
        if task.done():
            task.result()
        else:
            log.warning("some clients did not read their replies to the end")


def _server(app: Starlette, *, address: str = "", port: int = 0, uds: Path | None = None) -> Server:
    return Server(
        app,
        address=address,
        port=port,
        uds=uds,
        interface=Interfaces.ASGINL,
        backpressure=STREAMS_AT_ONCE,
        log_enabled=False,
    )


async def _until(
    tasks: "list[asyncio.Task[None]]",
    connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
) -> None:
    """Wait until a server answers, or raise what ended one."""
    while True:
        for task in tasks:
            if task.done():
                task.result()
        try:
            _, writer = await connect()
        except OSError:
            await asyncio.sleep(CONNECT_S)
        else:
            writer.close()
            return

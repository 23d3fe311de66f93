"""The servers of the daemon: one for gateways and their clients, one on a unix socket for the operator.

On loopback the first is the HTTP server itself. With certificates it is the front, which ends TLS, and behind it two
HTTP servers: one that answers everything, and one for those who have nothing but an attach ticket.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from granian.constants import Interfaces
from granian.server.embed import Server
from starlette.applications import Starlette

from poold.api.app import ATTACH_ROUTES, make_app, make_operators_app
from poold.api.services import Services
from poold.config import Config
from poold.errors import HostFault
from poold.front import Certificates, Doors, Front
from poold.lifetimes import beside, finish

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
    async with contextlib.AsyncExitStack() as stack:
        doors = stack.enter_context(_doors(config))
        front = None
        if config.is_tls and config.pki is not None:
            front = Front(Certificates(config.pki, config.name), doors)
        if front is not None:
            await stack.enter_async_context(front.carrying())  # until the servers behind it are done
        tasks = await stack.enter_async_context(_running(found, _servers(found, config, doors)))
        for socket in (config.socket, *([doors.gateways, doors.anyone] if front else [])):
            await _until(tasks, partial(asyncio.open_unix_connection, socket))
            socket.chmod(0o600)
        if front is not None:
            await stack.enter_async_context(front.accepting(config.host, config.port))
        else:
            await _until(tasks, partial(asyncio.open_connection, config.host, config.port))
        await stack.enter_async_context(beside(_first_end(tasks)))
        yield


@contextlib.contextmanager
def _doors(config: Config) -> Iterator[Doors]:
    """Places for the sockets during the block. What a killed daemon left is removed: the lock says that it is gone."""
    doors = Doors(config.front_dir / "gateways.sock", config.front_dir / "anyone.sock")
    sockets = (config.socket, doors.gateways, doors.anyone)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    if config.is_tls:
        config.front_dir.mkdir(mode=0o700, exist_ok=True)
        config.front_dir.chmod(0o700)
    try:
        yield doors
    finally:
        for socket in sockets:
            socket.unlink(missing_ok=True)
        if config.front_dir.is_dir():
            config.front_dir.rmdir()


def _servers(found: Services, config: Config, doors: Doors) -> list[Server]:
    operators = _server(make_operators_app(found), uds=config.socket)
    if not config.is_tls:
        return [operators, _server(make_app(found), address=config.host, port=config.port)]
    gateways = _server(make_app(found), uds=doors.gateways)
    return [operators, gateways, _server(make_app(found, ATTACH_ROUTES), uds=doors.anyone)]


@contextlib.asynccontextmanager
async def _running(found: Services, servers: list[Server]) -> "AsyncIterator[list[asyncio.Task[None]]]":
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    try:
        yield tasks
    finally:
        for server in servers:
            server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait(tasks, timeout=FINISH_S)
        await finish(found.sandboxes.stop())
        await asyncio.wait(tasks, timeout=FINISH_S)
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


async def _first_end(tasks: "list[asyncio.Task[None]]") -> None:
    """Raise as soon as a server ends by itself."""
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    raise HostFault("serving", "requests", hint="a server ended by itself")


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

"""The parts of a gateway put together, and Granian in front of them."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from gateway.app import App
from gateway.audit import Refusals
from gateway.auth import Auth
from gateway.background import Background
from gateway.config import Config
from gateway.creation import Creation
from gateway.hosts import Hosts
from gateway.logs import AccessLog
from gateway.metrics import Metrics
from gateway.passes import Passes
from gateway.preview import Kept, Previews
from gateway.quotas import Quotas
from gateway.registry import Registry
from gateway.services import Services
from gateway.tickets import Tickets
from gateway.tls import HostTls
from gateway.tunnel import Tunnels
from gateway.upstream import Upstream
from gateway.watching import Watch

log = logging.getLogger("gateway")

# Granian counts open streams as requests under way, and lets the next request hang when there are too many.
STREAMS_AT_ONCE = 10_000
BACKLOG = 1024
HEAD_S = 10  # for the head of a request
MAX_HEAD_BYTES = 65_536
FINISH_S = 5.0  # for requests under way when the gateway is stopped


@dataclass(frozen=True)
class Sources:
    """Clock and randomness."""

    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]


async def run(config: Config, sources: Sources, *, stop: asyncio.Event) -> None:
    """Serve until `stop`. Then requests under way have a moment to finish, and what was begun is ended or undone."""
    access_log = AccessLog()
    async with _parts(config, sources) as services, _previews(services) as previews, _kept(services, access_log):
        server = _server(App(services, access_log, [previews.branch]), config)
        serving = asyncio.create_task(server.serve())
        stopping = asyncio.create_task(stop.wait())
        log.info("serving", extra={"address": config.host, "port": config.port, "hosts": len(services.hosts.names())})
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            server.stop()  # type: ignore[no-untyped-call]
            await asyncio.wait({serving}, timeout=FINISH_S)
            await services.background.close(FINISH_S)
        if serving.done():
            serving.result()


@contextlib.asynccontextmanager
async def _parts(config: Config, sources: Sources) -> AsyncIterator[Services]:
    """Everything that a request needs; hosts have been looked at once."""
    tls = HostTls(config.pki)
    tickets = Tickets(config.pki.tickets_key, now_ms=sources.now_ms, nonce=lambda: secrets.token_hex(12))
    hosts = Hosts(tickets, lambda address: Upstream(address, tls=tls if address.startswith("https:") else None))
    auth, registry, background = Auth(now_ms=sources.now_ms), Registry(config.registry), Background()
    quotas = Quotas(hosts)
    passes = Passes(config.pki.folder, now_ms=sources.now_ms, nonce=lambda: secrets.token_hex(12))
    refreshes = (tls.refresh, tickets.refresh, passes.refresh)
    services = Services(
        config=config,
        registry=registry,
        watch=Watch(registry, auth, hosts, listed=config.hosts, refreshes=refreshes),
        auth=auth,
        tickets=tickets,
        passes=passes,
        hosts=hosts,
        quotas=quotas,
        creation=Creation(hosts, quotas, background, entropy=sources.entropy),
        refusals=Refusals(hosts, gateway=config.name, now_ms=sources.now_ms),
        background=background,
        metrics=Metrics(),
        now_ms=sources.now_ms,
        entropy=sources.entropy,
    )
    try:
        await services.watch.look()
        yield services
    finally:
        await hosts.close()


@contextlib.asynccontextmanager
async def _previews(services: Services) -> AsyncIterator[Previews]:
    tunnels = Tunnels(services.hosts, services.tickets)
    previews = Previews(services.config.domain, services.auth, services.passes, Kept(tunnels))
    try:
        yield previews
    finally:
        await previews.close()
        await tunnels.close()


@contextlib.asynccontextmanager
async def _kept(services: Services, access_log: AccessLog) -> AsyncIterator[None]:
    """What goes on beside requests. If one of these ends by an error, so does the gateway."""
    loops = (services.watch.keep, services.refusals.keep, access_log.keep)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop()) for loop in loops]
            yield
            for task in tasks:
                task.cancel()
    except* asyncio.CancelledError:
        raise asyncio.CancelledError from None


def _server(app: App, config: Config) -> Server:
    return Server(
        app,
        address=config.host,
        port=config.port,
        interface=Interfaces.ASGINL,
        backlog=BACKLOG,
        backpressure=STREAMS_AT_ONCE,
        http1_settings=HTTP1Settings(header_read_timeout=HEAD_S * 1000, max_buffer_size=MAX_HEAD_BYTES),
        log_enabled=False,
        ssl_cert=config.tls_certificate,
        ssl_key=config.tls_key,
    )

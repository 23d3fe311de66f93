"""The parts of a gateway put together, and the server in front of them."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from gateway.app import App
from gateway.audit import Refusals
from gateway.auth import Auth
from gateway.background import Background
from gateway.config import Config
from gateway.creation import Creation
from gateway.errors import ConfigError
from gateway.hosts import Hosts
from gateway.logs import AccessLog
from gateway.metrics import Metrics
from gateway.passes import Passes
from gateway.preview import Kept, Previews
from gateway.quotas import Quotas
from gateway.registry import Registry, open_registry
from gateway.server import Server
from gateway.services import Services
from gateway.tickets import Tickets
from gateway.tls import ClientTls, HostTls
from gateway.tunnel import Tunnels
from gateway.upstream import Upstream
from gateway.watching import Watch

log = logging.getLogger("gateway")

FINISH_S = 5.0  # for requests under way when the gateway is stopped


@dataclass(frozen=True)
class Sources:
    """Clock and randomness."""

    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]


async def run(config: Config, sources: Sources, *, stop: asyncio.Event) -> None:
    """Serve until `stop`. Then requests under way have a moment to finish, and what was begun is ended or undone."""
    access_log = AccessLog()
    tls = _client_tls(config)
    async with (
        open_registry(config.registry) as registry,
        _parts(config, sources, registry, tls) as services,
        _previews(services) as previews,
    ):
        app = App(services, access_log if config.access_log else None, [previews.branch])
        server = Server(app, app.refused, app.shortcut)
        with _told_about_the_port(config):
            context = None if tls is None else tls.context
            await server.listen(config.host, config.port, context, is_shared=config.workers > 1)
        async with _kept(services, access_log):
            served = {"address": config.host, "port": config.port, "hosts": len(services.hosts.names())}
            log.info("serving", extra=served)
            try:
                await stop.wait()
            finally:
                await server.close(FINISH_S)
                await services.background.close(FINISH_S)


def must_be_free(config: Config) -> None:
    """Raise `ConfigError` if somebody listens on the port. Workers share theirs, and would share it with anybody."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with _told_about_the_port(config):
        socket.create_server((config.host, config.port), family=family).close()


@contextlib.contextmanager
def _told_about_the_port(config: Config) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        told = f"GATEWAY_LISTEN={config.host}:{config.port} cannot be listened on: {why}"
        raise ConfigError(f"{told}; set it to another address or port") from error


@contextlib.asynccontextmanager
async def _parts(
    config: Config, sources: Sources, registry: Registry, shown: ClientTls | None
) -> AsyncIterator[Services]:
    """Everything that a request needs; hosts have been looked at once."""
    tls = HostTls(config.pki)
    tickets = Tickets(config.pki.tickets_key, now_ms=sources.now_ms, nonce=lambda: secrets.token_hex(12))
    hosts = Hosts(tickets, lambda name, address: Upstream(address, host=name, tls=tls))
    auth = Auth(now_ms=sources.now_ms, visitor_rate=config.preview_rate)
    background = Background()
    quotas = Quotas(hosts)
    passes = Passes(config.pki.folder, now_ms=sources.now_ms, nonce=lambda: secrets.token_hex(12))
    refreshes = tuple(each.refresh for each in (tls, tickets, passes, shown) if each is not None)
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


def _client_tls(config: Config) -> ClientTls | None:
    if config.tls_certificate is None or config.tls_key is None:
        return None
    return ClientTls(config.tls_certificate, config.tls_key)

"""The route of tunnels: from a request to a connection to a port."""

import asyncio
import re
import socket

from warren_guest import tunnels
from warren_guest.errors import RefusedError
from warren_guest.fields import bad_field
from warren_guest.guest import Guest
from warren_guest.server import Request, Upgrade
from warren_guest.wire import Head

# The guest's own, in a machine. What is behind it is for the host alone.
LINK_PORT = 1024
_PORT = re.compile(r"[1-9][0-9]{0,4}")


async def connect(guest: Guest, request: Request, asked: str) -> Upgrade:
    """The connection becomes one to the port that is asked for."""
    port = _port(asked)
    _check_upgrade(request.head)
    if guest.tunnels >= tunnels.TUNNEL_LIMIT:
        raise RefusedError("too_many_tunnels", f"{tunnels.TUNNEL_LIMIT} connections to ports are open")
    guest.tunnels += 1
    try:
        sock = await tunnels.dial(port)
    except BaseException:
        guest.tunnels -= 1
        raise
    return _upgrade(guest, sock)


def _upgrade(guest: Guest, sock: socket.socket) -> Upgrade:
    async def carry(link: asyncio.Transport, arrived: bytes) -> None:
        await tunnels.carry(link, arrived, sock)

    def close() -> None:
        guest.tunnels -= 1
        sock.close()

    return Upgrade(tunnels.PROTOCOL, carry, close)


def _port(asked: str) -> int:
    port = int(asked) if _PORT.fullmatch(asked) else 0
    if not 1 <= port <= 65_535:
        raise bad_field("port", f"must be a number from 1 to 65535, got {ascii(asked)[:60]}")
    if port == LINK_PORT:
        raise bad_field("port", f"{LINK_PORT} is the guest's own")
    return port


def _check_upgrade(head: Head) -> None:
    named = {token.strip() for token in head.headers.get("connection", "").lower().split(",")}
    if "upgrade" not in named or head.headers.get("upgrade", "").lower() != tunnels.PROTOCOL:
        raise RefusedError("bad_request", "a tunnel needs the headers Connection: Upgrade and Upgrade: tcp")
    if head.length != 0:
        raise RefusedError("bad_request", "a request for a tunnel has no body")

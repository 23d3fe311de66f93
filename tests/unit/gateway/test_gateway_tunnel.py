"""Tunnels to hosts that are not there: it is the host that cannot be reached, and never the service behind it."""

import asyncio
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from contract.hosts import Host
from gateway.hosts import Hosts
from gateway.liveness import MAX_FAILURES
from gateway.tickets import Tickets
from gateway.tunnel import NoTunnel, Tunnels
from gateway.upstream import Upstream
from tests.ports import free_port

SANDBOX = "sb-abcdefghijklmn23"


@pytest.fixture
def tickets(tmp_path: Path) -> Tickets:
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "tickets.key").write_bytes(key)
    return Tickets(tmp_path / "tickets.key", now_ms=lambda: 1_000_000, nonce=lambda: "n")


async def test_a_host_where_nobody_listens_cannot_be_reached_and_is_dead_after_three_tries(tickets: Tickets) -> None:
    hosts = Hosts(tickets, lambda name, address: Upstream(address, host=name))
    record = Host("h", f"http://127.0.0.1:{free_port()}")
    hosts.know({"h": record}, beats=False)
    hosts.heard("h", record)
    tunnels = Tunnels(hosts, tickets)
    async with asyncio.timeout(10):
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(NoTunnel) as caught:
                await tunnels.open(SANDBOX, 80, "red")
            assert (caught.value.status, caught.value.code, caught.value.sent) == (503, "host_unreachable", False)
        assert not hosts.alive()
        await tunnels.close()
        await hosts.close()

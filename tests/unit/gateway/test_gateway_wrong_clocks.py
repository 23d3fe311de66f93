"""A host whose clock is wrong refuses every ticket: no client is told that its key is bad."""

from typing import Any, cast

import pytest

from contract.hosts import Host
from contract.tickets import Access
from gateway.errors import HostUnreachable
from gateway.hosts import Hosts
from gateway.tickets import Tickets
from gateway.upstream import Upstream
from tests.unit.gateway.flow_hosts import always, scripted_host


class AnyTicket:
    def get(self, *_: Any, **__: Any) -> str:
        return "t"


def refusal(code: bytes) -> bytes:
    told = b'{"error": {"code": "%s", "message": "no"}}' % code
    head = b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(told)
    return head + told


async def asked(code: bytes) -> int:
    """The status of an answer to a create, of a host that refuses it so."""
    async with scripted_host(always(refusal(code))) as host:
        hosts = Hosts(cast(Tickets, AnyTicket()), lambda name, address: Upstream(address, host=name))
        record = Host("h", host.address)
        hosts.know({"h": record}, beats=False)
        hosts.heard("h", record)
        try:
            return (await hosts.ask("h", "POST", "/v1/tasks", Access.WRITE, "red", value={})).status
        finally:
            await hosts.close()


async def test_a_host_that_refuses_tickets_has_done_nothing_and_another_may() -> None:
    with pytest.raises(HostUnreachable, match="clocks") as caught:
        await asked(b"bad_ticket")
    assert not caught.value.sent


async def test_another_refusal_is_passed_on() -> None:
    assert await asked(b"bad_key") == 401

"""The whole of it: the daemon's servers behind the front, for gateways and for who has no certificate."""

import asyncio
import ssl
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from contract.tickets import HEADER, Access
from tests.unit.poold.poold_certificates import ADDRESS, GATEWAY, Authority
from tests.unit.poold.poold_host import Host, open_host


async def request(host: Host, tls: ssl.SSLContext, method: str, target: str, **headers: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(ADDRESS, host.port, ssl=tls)
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{''.join(lines)}\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_gateways_reach_the_api_and_others_a_terminal_with_an_attach_ticket(
    tmp_path: Path, authority: Authority
) -> None:
    async with open_host(tmp_path, certificates=authority.write_host) as host:
        gateway, anyone = authority.client(tmp_path, GATEWAY), authority.client(tmp_path)
        status, body = await request(
            host, gateway, "POST", "/v1/sandboxes", **host.gateway.headers("POST", "/v1/sandboxes")
        )
        assert status == 201
        path = f"/v1/sandboxes/{orjson.loads(body)['id']}"
        ticket = host.gateway.headers("GET", path)
        assert (await request(host, gateway, "GET", path, **ticket))[0] == 200
        assert (await request(host, gateway, "GET", path))[0] == 401  # a certificate is no ticket

        assert (await request(host, anyone, "GET", "/healthz"))[0] == 200
        assert (await request(host, anyone, "GET", path))[0] == 401
        assert (await request(host, anyone, "GET", path, **ticket))[0] == 404  # a ticket is no certificate
        await terminals(host, anyone, path)
        folder = tmp_path / "front"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert not folder.exists()


async def terminals(host: Host, tls: ssl.SSLContext, path: str) -> None:
    """An attach ticket opens a terminal, once; no other ticket does."""
    url = f"wss://{ADDRESS}:{host.port}{path}/terminal"
    sandbox = path.rpartition("/")[2]
    attach = host.gateway.sign("local", Access.ATTACH, sandbox)
    async with connect(f"{url}?ticket={attach}", proxy=None, ssl=tls) as shell:
        assert orjson.loads(await shell.recv())["type"] == "start"
        assert await shell.recv() == b"$ "
        await shell.send(b"through the front\n")
        assert await shell.recv() == b"through the front\n"
    write = host.gateway.sign("local", Access.WRITE, sandbox)
    for asked, headers in ((f"{url}?ticket={attach}", {}), (url, {}), (url, {HEADER: write})):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(asked, proxy=None, ssl=tls, additional_headers=headers):
                pass
        assert refused.value.response.status_code == (403 if headers else 401)

"""A daemon that answers nobody any more ends, so that it is started again."""

from pathlib import Path

import pytest
from granian.server.embed import Server

import poold.serving
from poold.errors import HostFault
from tests.unit.poold.poold_host import open_host


async def test_a_server_that_ends_by_itself_ends_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Server] = []
    make = poold.serving._servers

    def remember(*given: object) -> list[Server]:
        servers.extend(make(*given))  # type: ignore[arg-type]
        return servers

    monkeypatch.setattr("poold.serving._servers", remember)

    async def serve() -> None:
        async with open_host(tmp_path) as host:
            assert (await host.ask("GET", "/healthz")).status == 200
            servers[0].stop()  # type: ignore[no-untyped-call]
            await host.until(lambda: False)

    with pytest.raises(ExceptionGroup) as caught:
        await serve()
    assert caught.group_contains(HostFault, match="a server ended by itself")

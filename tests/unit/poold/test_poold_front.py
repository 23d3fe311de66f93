"""The front ends TLS and carries bytes: gateways to one server, who has no certificate to another, others nowhere."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from poold import front as front_module
from poold.config import Pki
from poold.errors import ConfigError
from poold.front import Certificates, Doors, Front
from tests.ports import free_port
from tests.unit.poold.poold_certificates import ADDRESS, GATEWAY, Authority

LIMIT_S = 15.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Port:
    """A front with two servers behind it, each of which says its name and then serves."""

    number: int
    front: Front
    folder: Path
    authority: Authority

    async def dial(self, uri: str | None, **more: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self.authority.client(self.folder, uri, **more)
        return await asyncio.open_connection(ADDRESS, self.number, ssl=tls, server_hostname=ADDRESS)

    async def says(self, uri: str | None, **more: int) -> bytes:
        """What a client reads, up to the end; b"" if it is let in nowhere."""
        reader, writer = await self.dial(uri, **more)
        try:
            writer.write(b"end\n")
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()

    async def until_carrying(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(self.front._tasks) != count:
                await asyncio.sleep(0.005)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (line := await reader.readline()) and line != b"end\n":
        writer.write(line)
        await writer.drain()


@contextlib.asynccontextmanager
async def opened(folder: Path, authority: Authority, serve: Serve = echo) -> AsyncIterator[Port]:
    pki = folder / "pki"
    pki.mkdir()
    authority.write_host(pki)
    doors = Doors(folder / "gateways.sock", folder / "anyone.sock")

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        writer.write(f"{name}\n".encode())
        with contextlib.suppress(OSError):
            await serve(reader, writer)
        writer.close()

    front, port = Front(Certificates(Pki(pki), "here"), doors), free_port()
    async with asyncio.timeout(LIMIT_S), contextlib.AsyncExitStack() as stack:
        for name, path in vars(doors).items():
            server = await asyncio.start_unix_server(lambda r, w, name=name: run(r, w, name), path)
            stack.callback(server.close)
        async with front.carrying(), front.accepting(ADDRESS, port):
            yield Port(port, front, folder, authority)
        assert not front._tasks


def open_files() -> int:
    """The sockets of this process."""
    found = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(name.startswith("socket:") for name in found)


# Who gets where.


async def test_a_gateway_and_one_without_a_certificate_reach_each_their_own(
    tmp_path: Path, authority: Authority
) -> None:
    async with opened(tmp_path, authority) as port:
        assert await port.says(GATEWAY) == b"gateways\n"
        assert await port.says(None) == b"anyone\n"


OTHERS = [
    "spiffe://warren/host/here",
    "spiffe://warren/gateway/",
    "spiffe://other/gateway/one",
    "https://warren/gateway/one",
    f"{GATEWAY} spiffe://warren/host/here",
    "",
]


@pytest.mark.parametrize("uri", OTHERS)
async def test_any_other_certificate_is_refused(tmp_path: Path, authority: Authority, uri: str) -> None:
    async with opened(tmp_path, authority) as port:
        assert await port.says(uri) == b""
        await port.until_carrying(0)


async def test_a_certificate_of_another_ca_and_one_that_is_over_are_refused(
    tmp_path: Path, authority: Authority
) -> None:
    async with opened(tmp_path, authority) as port:
        assert await port.says(GATEWAY, days=-1) == b""
        stranger = Authority().client(tmp_path, GATEWAY)
        stranger.load_verify_locations(cadata=authority.pem.decode())
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(ADDRESS, port.number, ssl=stranger)
            assert await reader.read() == b""
            writer.close()
        await port.until_carrying(0)


async def test_only_tls_1_3_is_spoken(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, authority) as port:
        old = authority.client(tmp_path)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection(ADDRESS, port.number, ssl=old)
        reader, writer = await asyncio.open_connection(ADDRESS, port.number)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        with contextlib.suppress(OSError):
            assert b"HTTP" not in await reader.read()
        writer.close()
        await port.until_carrying(0)


# Bytes.


async def test_bytes_go_both_ways_and_arrive_as_they_were(tmp_path: Path, authority: Authority) -> None:
    sent = os.urandom(1 << 20).replace(b"\n", b"x") + b"\n"

    async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(4):
            writer.write(await reader.readexactly(len(sent)))
            await writer.drain()

    async with opened(tmp_path, authority, back) as port:
        reader, writer = await port.dial(GATEWAY)
        assert await reader.readline() == b"gateways\n"
        for _ in range(4):
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
        assert await reader.read() == b""  # a proper end: TLS would tell of a cut
        writer.close()
        await port.until_carrying(0)


async def test_what_the_host_said_before_its_end_arrives_also_at_a_slow_client(
    tmp_path: Path, authority: Authority
) -> None:
    size = 8 << 20

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        await writer.drain()

    async with opened(tmp_path, authority, tell) as port:
        reader, writer = await port.dial(GATEWAY)
        assert await reader.readline() == b"gateways\n"
        read = 0
        while data := await reader.read(1 << 16):
            read += len(data)
            await asyncio.sleep(0.001)
        assert read == size
        writer.close()


async def test_one_who_does_not_read_stops_the_other(tmp_path: Path, authority: Authority) -> None:
    written = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16

    async with opened(tmp_path, authority, flood) as port:
        _, writer = await port.dial(GATEWAY)
        writer.transport.pause_reading()
        before = -1
        while written != before:  # until nothing more is taken
            before = written
            await asyncio.sleep(0.3)
        assert written < 64 << 20
        writer.transport.abort()
        await port.until_carrying(0)


async def test_a_client_that_leaves_ends_the_hosts_side(tmp_path: Path, authority: Authority) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with opened(tmp_path, authority, wait) as port:
        for leave in (asyncio.StreamWriter.close, lambda writer: writer.transport.abort()):
            ended.clear()
            reader, writer = await port.dial(GATEWAY)
            await reader.readline()
            leave(writer)
            await ended.wait()
            await port.until_carrying(0)


# Limits and ends.


async def test_a_handshake_that_is_not_finished_is_given_up(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "HANDSHAKE_S", 0.2)
    async with opened(tmp_path, authority) as port:
        before = open_files()
        slow = [await asyncio.open_connection(ADDRESS, port.number) for _ in range(5)]
        await port.until_carrying(5)
        assert await port.says(GATEWAY) == b"gateways\n"  # others are not held up
        for reader, writer in slow:
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
            writer.close()
        await port.until_carrying(0)
        await until_files(before)


async def until_files(count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while open_files() > count:
            await asyncio.sleep(0.01)


async def test_nothing_stays_open_of_a_hundred_connections(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, authority) as port:
        await port.says(GATEWAY)
        await port.until_carrying(0)
        before = open_files()
        for _ in range(20):
            await asyncio.gather(*(port.says(None) for _ in range(4)))
            knocked = socket.create_connection((ADDRESS, port.number))
            knocked.send(b"nonsense")
            knocked.close()
        await port.until_carrying(0)
        await until_files(before)


async def test_those_without_a_certificate_cannot_take_all_the_room(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "ANONYMOUS", 2)
    monkeypatch.setattr(front_module, "CONNECTIONS", 4)
    async with opened(tmp_path, authority) as port:
        kept = [await port.dial(None) for _ in range(2)]
        for reader, _ in kept:
            assert await reader.readline() == b"anyone\n"
        assert await port.says(None) == b""
        assert await port.says(GATEWAY) == b"gateways\n"
        kept += [await port.dial(GATEWAY) for _ in range(2)]
        with pytest.raises(OSError, match=r".*"):
            await port.dial(GATEWAY)
        for _, writer in kept:
            writer.close()
        await port.until_carrying(0)
        assert await port.says(None) == b"anyone\n"


async def test_at_the_end_every_connection_is_closed(tmp_path: Path, authority: Authority) -> None:
    before = open_files() + 1  # what marks its port as taken
    async with opened(tmp_path, authority) as port:
        clients = [await port.dial(GATEWAY), await port.dial(None)]
        half_open = await asyncio.open_connection(ADDRESS, port.number)
        for reader, _ in clients:
            await reader.readline()
        await port.until_carrying(3)
    for reader, writer in [*clients, half_open]:
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
    await until_files(before)


# Certificates that are replaced.


async def test_new_certificates_are_shown_to_the_next_connection(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, authority) as port:
        reader, writer = await port.dial(GATEWAY)
        await reader.readline()
        first = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        (tmp_path / "pki" / "host.pem").write_bytes(b"half of it")  # changes nothing
        port.authority = Authority()
        port.authority.write_host(tmp_path / "pki")

        async def shown() -> bytes | None:
            with contextlib.suppress(ssl.SSLError):
                _, other = await port.dial(GATEWAY)
                other.close()
                seen: bytes = other.get_extra_info("ssl_object").getpeercert(binary_form=True)
                return seen
            return None

        while (seen := await shown()) is None:  # the client believes the new CA only
            await asyncio.sleep(0.1)
        assert seen != first
        writer.write(b"still\n")  # what there was goes on
        assert await reader.readline() == b"still\n"
        writer.close()
        port.authority = authority
        with contextlib.suppress(ssl.SSLError):
            assert await port.says(GATEWAY) == b""


def test_certificates_that_make_no_sense_are_refused_at_the_start(tmp_path: Path, authority: Authority) -> None:
    authority.write_host(tmp_path)
    Certificates(Pki(tmp_path), "here")
    (tmp_path / "host.key").write_bytes(authority.issue("spiffe://warren/host/here")[1])  # of another certificate
    with pytest.raises(ConfigError, match="POOLD_PKI"):
        Certificates(Pki(tmp_path), "here")


@pytest.mark.parametrize("uri", ["spiffe://warren/host/there", "spiffe://warren/gateway/here", ""])
def test_the_certificate_of_somebody_else_is_refused_at_the_start(
    tmp_path: Path, authority: Authority, uri: str
) -> None:
    authority.write_host(tmp_path)
    certificate, key = authority.issue(uri)
    (tmp_path / "host.pem").write_bytes(certificate)
    (tmp_path / "host.key").write_bytes(key)
    with pytest.raises(ConfigError, match="and this is host here"):
        Certificates(Pki(tmp_path), "here")

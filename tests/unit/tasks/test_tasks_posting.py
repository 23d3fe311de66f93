"""A request goes to an address that was looked at, or nowhere; and whatever answers, it ends."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.network import HostRule, NetRule
from poold.egress.addresses import Address
from poold.tasks import posting
from poold.tasks.posting import Unreached, post
from poold.tasks.urls import read_url
from tests.egress.certificates import make_certificates
from tests.unit.tasks.tasks_receiver import PUBLIC, Receiver, receiving, request

URL = "http://hooks.example.com/told?of=it"
LIMIT_S = 60.0


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def sent(receiver: Receiver, url: str = URL, body: bytes = b"{}", **told: object) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await post(receiver.ways(**told), read_url(url, "url"), {"X-Own": "1"}, body)


async def test_a_request_arrives_as_a_whole(receiver: Receiver) -> None:
    body = b"x" * 300_000
    assert await sent(receiver, body=body) == 204
    [(line, headers, got)] = receiver.requests
    assert line == "POST /told?of=it HTTP/1.1"
    assert got == body
    assert headers == {
        "Host": "hooks.example.com",
        "Content-Length": "300000",
        "Connection": "close",
        "X-Own": "1",
    }
    assert receiver.dialled == [f"{PUBLIC}:80"]


async def test_the_port_and_the_path_are_those_of_the_address(receiver: Receiver) -> None:
    await sent(receiver, "http://hooks.example.com:8080")
    await sent(receiver, "http://hooks.example.com:8080?a")
    await sent(receiver, "http://93.184.216.34/b")
    assert [line.split()[1] for line, _, _ in receiver.requests] == ["/", "/?a", "/b"]
    assert [headers["Host"] for _, headers, _ in receiver.requests] == ["hooks.example.com:8080"] * 2 + [
        "93.184.216.34"
    ]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n", 202),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", 302),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\ncut", 500),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 1_000_000, 200),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense", 200),
    ],
)
async def test_the_status_is_what_counts(receiver: Receiver, answer: bytes, status: int) -> None:
    receiver.answer = answer
    assert await sent(receiver) == status
    assert len(receiver.dialled) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "no answer"),
        (b"SSH-2.0-OpenSSH\r\n", "none of HTTP"),
        (b"HTTP/1.1 2", "none of HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "none of HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "none of HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100_000, "none of HTTP"),
    ],
)
async def test_what_is_no_answer_is_told(receiver: Receiver, answer: bytes, said: str) -> None:
    receiver.answer = answer
    with pytest.raises(Unreached, match=said):
        await sent(receiver)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "169.254.169.254", "0.0.0.0"),
        *("::1", "fd00::1", "fe80::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "224.0.0.1"),
    ],
)
async def test_an_address_that_is_not_public_is_not_dialled(receiver: Receiver, address: str) -> None:
    receiver.names["hooks.example.com"] = [address]
    with pytest.raises(Unreached, match="not public") as caught:
        await sent(receiver)
    assert receiver.dialled == []
    assert address not in str(caught.value)
    written = f"[{address}]" if ":" in address else address
    with pytest.raises(Unreached, match="not public"):
        await sent(receiver, f"http://{written}/")
    assert receiver.dialled == []


async def test_of_several_addresses_only_those_that_are_allowed_are_dialled(receiver: Receiver) -> None:
    receiver.names["hooks.example.com"] = ["10.0.0.1", "93.184.216.35", str(PUBLIC), "127.0.0.1"]
    receiver.dead.add("93.184.216.35")
    assert await sent(receiver) == 204
    assert receiver.dialled == ["93.184.216.35:80", f"{PUBLIC}:80"]


async def test_what_the_operator_allows_may_be_private(receiver: Receiver) -> None:
    receiver.names["hooks.example.com"] = ["10.0.0.1"]
    for told in (
        {"private_hosts": (HostRule("hooks.example.com", (80,)),)},
        {"private_nets": (NetRule("10.0.0.0/8", 80),)},
    ):
        assert await sent(receiver, **told) == 204
    for told in (
        {"private_hosts": (HostRule("hooks.example.com", (443,)),)},
        {"private_nets": (NetRule("10.0.0.0/8", 81),)},
    ):
        with pytest.raises(Unreached):
            await sent(receiver, **told)
    assert await sent(receiver, "http://10.0.0.1/", private_nets=(NetRule("10.0.0.0/8", 80),)) == 204


async def test_this_host_itself_is_reached_only_where_the_operator_says_so(receiver: Receiver) -> None:
    with pytest.raises(Unreached, match="this host itself"):
        await sent(receiver, is_own=lambda _: True)
    assert receiver.dialled == []
    receiver.names["hooks.example.com"] = ["10.0.0.1"]
    assert await sent(receiver, is_own=lambda _: True, private_nets=(NetRule("10.0.0.0/8", 80),)) == 204


async def test_a_name_that_leads_nowhere_is_told(receiver: Receiver) -> None:
    with pytest.raises(Unreached, match="cannot be resolved"):
        await sent(receiver, "http://nobody.example.com/")
    receiver.names["empty.example.com"] = []
    with pytest.raises(Unreached, match="has no address"):
        await sent(receiver, "http://empty.example.com/")
    receiver.dead.add(str(PUBLIC))
    with pytest.raises(Unreached, match="Connection refused") as caught:
        await sent(receiver)
    assert str(PUBLIC) not in str(caught.value)


async def test_a_resolver_that_never_answers_is_left_in_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "RESOLVE_S", 0.1)

    async def silent(_: str) -> list[Address]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unreached, match=r"was not resolved within 0\.1 s"):
        await sent(receiver, resolve=silent)


async def test_who_never_answers_is_left_in_time(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "POST_S", 0.2)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()

    receiver.answer = silent
    with pytest.raises(Unreached, match=r"did not answer within 0\.2 s"):
        await sent(receiver)


async def test_who_answers_and_never_ends_has_answered(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "REST_S", 0.1)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        await reader.read()

    receiver.answer = endless
    assert await sent(receiver) == 200


async def test_a_cancellation_hangs_up(receiver: Receiver) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await request(reader)
        begun.set()
        try:
            await reader.read()
        finally:
            left.set()

    receiver.answer = silent
    task = asyncio.create_task(sent(receiver))
    await begun.wait()
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await left.wait()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_certificates_are_verified_for_the_name(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ("hooks.example.com",))
    trusted = ssl.create_default_context(cafile=str(made.ca))
    async with receiving(made.server) as receiver:
        receiver.names["other.example.com"] = [str(PUBLIC)]
        assert await sent(receiver, "https://hooks.example.com/", tls=trusted) == 204
        assert receiver.dialled == [f"{PUBLIC}:443"]
        with pytest.raises(Unreached, match="certificate is not good"):
            await sent(receiver, "https://other.example.com/", tls=trusted)
        with pytest.raises(Unreached, match="certificate is not good"):
            await sent(receiver, "https://hooks.example.com/")
        with pytest.raises(Unreached, match="certificate is not good"):
            await sent(receiver, "https://93.184.216.34/", tls=trusted)
        assert len(receiver.requests) == 1


async def test_a_server_without_tls_is_told_as_such(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    receiver.answer = plain
    with pytest.raises(Unreached, match="TLS failed"):
        await sent(receiver, "https://hooks.example.com/")

"""A guest is hostile: whatever bytes it sends become an error of the link, and cost one connection."""

import asyncio
import contextlib
import random

import pytest

from contract.errors import WarrenError
from poold.errors import GuestError, GuestRefused
from poold.link import guest as link_guest
from poold.link import http as link_http
from tests.unit.poold.poold_hostile import answer, answering, hostile, read_head, read_request, silence

NOT_HTTP = {
    "garbage": b"\x00\xff\x13 this is not HTTP\r\n\r\n" * 3,
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a request instead of an answer": b"GET / HTTP/1.1\r\nHost: host\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "a length that no file has": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    "both kinds of length": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "a chunk size that is no number": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a chunk size beyond all numbers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}",
    "a chunk that is longer than it says": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n"
    ),
    "100 and then an answer": b"HTTP/1.1 100 Continue\r\n\r\n" + answer(),
    "103 and then an answer": b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" + answer(),
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "a body that is no JSON": answer(b"{'a': 1}"),
    "a list": answer(b"[1, 2]"),
    "a number": answer(b"7"),
    "null": answer(b"null"),
    "no body": answer(b""),
    "a lone surrogate": answer(b'{"a": "\\ud800"}'),
    "a number too many": answer(b'{"a": 1e}'),
    "deep JSON": answer(b"[" * 100_000),
}


@pytest.mark.parametrize("said", NOT_HTTP.values(), ids=NOT_HTTP.keys())
async def test_an_answer_that_is_not_one_is_a_guest_error(said: bytes) -> None:
    async with hostile(answering(said, then_close=True)) as guest:
        with pytest.raises(GuestError):
            await guest.link.call("GET", "/health", limit_s=5)


@pytest.mark.parametrize("said", NOT_HTTP.values(), ids=NOT_HTTP.keys())
async def test_after_a_bad_answer_the_next_call_is_served(said: bytes) -> None:
    first = True

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        while not reader.at_eof():
            await read_request(reader)
            writer.write(said if first else answer(b'{"ok":1}'))
            first = False

    async with hostile(script) as guest:
        with pytest.raises(GuestError):
            await guest.link.call("GET", "/health", limit_s=5)
        assert await guest.link.call("GET", "/health") == {"ok": 1}


ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Header: value\r\n" * 64),
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1024),
    "a status line": (b"HTTP/1.1 200 ", b"OK" * 512),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: value\r\n" * 64),
    "one trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A" * 1024),
    "a chunk extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a" * 1024),
    "leading zeros of a chunk size": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0" * 1024),
    "empty lines": (b"", b"\r\n" * 512),
}


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_an_endless_head_is_cut_off(start: bytes, more: bytes) -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(start)
        while sent < 64 << 20:
            writer.write(more)
            sent += len(more)
            await writer.drain()

    async with hostile(script) as guest:
        with pytest.raises(GuestError):
            await guest.link.call("GET", "/health", limit_s=8)
        await guest.hung_up.wait()
        assert sent < 2 << 20  # what was on its way in buffers, and no more


async def test_an_answer_may_come_in_pieces_of_one_byte() -> None:
    said = b'HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    async with hostile(answering(*(bytes([byte]) for byte in said))) as guest:
        assert await guest.link.call("GET", "/health") == {"a": 1}
        assert await guest.link.call("GET", "/health") == {"a": 1}
        assert guest.accepted == 1


async def test_a_body_longer_than_a_call_reads_is_refused() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            await writer.drain()

    async with hostile(script) as guest:
        with pytest.raises(GuestError, match="longer than"):
            await guest.link.call("GET", "/processes", limit_s=8)
        await guest.hung_up.wait()


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n{"],
    ids=["nothing", "half a head", "a huge length and one byte"],
)
async def test_a_guest_that_goes_silent_is_given_up_within_the_limit(said: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(said)
        await silence(reader, writer)

    async with hostile(script) as guest:
        with pytest.raises(GuestError, match=r"did not answer GET /x within 0\.05 s"):
            await guest.link.call("GET", "/x?secret=1", limit_s=0.05)
        await guest.hung_up.wait()


async def test_a_refusal_without_its_body_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_http, "READ_LIMIT_S", 0.05)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n")
        await silence(reader, writer)

    async with hostile(script) as guest:
        with pytest.raises(GuestError, match="did not end within"):
            async with guest.link.exchange("POST", "/processes", body=b"{}"):
                pass


async def test_an_exchange_whose_head_never_comes_has_a_limit() -> None:
    async with hostile(silence) as guest:
        with pytest.raises(GuestError, match="did not answer"):
            async with guest.link.exchange("GET", "/files/content?path=a", limit_s=0.05):
                pass


async def test_a_guest_that_cannot_be_dialled_in_time_is_a_guest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_guest, "ANSWER_LIMIT_S", 0.05)
    never = asyncio.get_running_loop().create_future()
    link = link_guest.Guest(lambda: never, asyncio.get_running_loop().create_future())
    with pytest.raises(GuestError, match="cannot be reached"):
        await link.call("GET", "/health")
    link.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n{}"],
    ids=["before", "in the head", "in the body", "a body without a length"],
)
async def test_a_guest_that_hangs_up_within_its_answer_is_a_guest_error(said: bytes) -> None:
    async with hostile(answering(said, then_close=True)) as guest:
        with pytest.raises(GuestError, match="hung up"):
            await guest.link.call("GET", "/health")


async def test_a_cut_body_is_not_taken_for_a_whole_one() -> None:
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    async with hostile(answering(said, then_close=True)) as guest, guest.link.exchange("GET", "/f") as reply:
        chunks = reply.chunks()
        assert await anext(chunks) == b"abc"
        with pytest.raises(GuestError):
            await anext(chunks)


@pytest.mark.parametrize("status", ["500 Oops", "301 Moved", "418 Teapot", "999 Odd", "599 Odd"])
async def test_a_refusal_with_an_odd_status_is_the_guests_fault(status: str) -> None:
    said = answer(b'{"error": {"code": "not_found", "message": "no"}}', status)
    async with hostile(answering(said)) as guest:
        with pytest.raises(GuestError, match=status[:3]) as caught:
            await guest.link.call("GET", "/health")
        assert caught.value.status == 502


@pytest.mark.parametrize("status", sorted(link_guest.CALLERS_FAULT))
async def test_a_refusal_reaches_the_caller_as_the_guest_said_it(status: int) -> None:
    said = answer(b'{"error": {"code": "disk_full", "message": "no room"}}', f"{status} No")
    async with hostile(answering(said)) as guest:
        with pytest.raises(GuestRefused, match="no room") as caught:
            await guest.link.call("GET", "/health")
        assert (caught.value.status, caught.value.code) == (status, "disk_full")


NO_REASON = [
    b"",
    b"no",
    b"[]",
    b"{}",
    b'{"error": null}',
    b'{"error": "no"}',
    b'{"error": []}',
    b'{"error": {"code": "x"}}',
    b'{"error": {"message": "x"}}',
    b'{"error": {"code": "Not A Code\\r\\n", "message": "x"}}',
    b'{"error": {"code": "' + b"a" * 65 + b'", "message": "x"}}',
    b'{"error": {"code": "", "message": "x"}}',
]


@pytest.mark.parametrize("body", NO_REASON)
async def test_a_refusal_without_a_reason_is_a_guest_error(body: bytes) -> None:
    async with hostile(answering(answer(body, "404 Not Found"))) as guest:
        with pytest.raises(GuestError):
            await guest.link.call("GET", "/health")


async def test_a_huge_message_of_a_refusal_is_cut() -> None:
    said = answer(b'{"error": {"code": "bad_path", "message": "' + b"m" * 1_000_000 + b'"}}', "400 No")
    async with hostile(answering(said)) as guest:
        with pytest.raises(GuestRefused) as caught:
            await guest.link.call("GET", "/health")
        assert len(caught.value.message) <= 1000


async def test_every_error_of_the_link_is_one_of_ours() -> None:
    """Answers with bytes changed at random: nothing but `WarrenError` leaves the link."""
    dice = random.Random(7)
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{"a":1}\r\n0\r\n\r\n'
    for _ in range(200):
        said = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            said[dice.randrange(len(said))] = dice.randrange(256)
        async with hostile(answering(bytes(said), then_close=True)) as guest:
            with contextlib.suppress(WarrenError):
                await guest.link.call("GET", "/health", limit_s=5)


async def test_an_early_refusal_of_an_upload_arrives_and_stops_the_upload() -> None:
    taken = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        said = answer(b'{"error": {"code": "disk_full", "message": "no room"}}', "507 Full")
        writer.write(said[:-10])
        await writer.drain()
        for _ in range(4):  # a refused upload is read on, and the rest of the refusal comes late
            await reader.read(1 << 16)
        writer.write(said[-10:])
        await silence(reader, writer)

    async def endless() -> object:
        nonlocal taken
        while True:
            taken += 1 << 16
            yield bytes(1 << 16)

    async with hostile(script) as guest:
        with pytest.raises(GuestRefused, match="no room") as caught:
            async with guest.link.exchange("PUT", "/files/content", body=endless()):
                pass
        assert caught.value.code == "disk_full"
        assert taken < 8 << 20
        await guest.hung_up.wait()


async def test_a_refusal_arrives_also_from_a_guest_that_takes_nothing_more() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.transport.pause_reading()
        for _ in range(50):  # until the sender waits for room
            await asyncio.sleep(0)
        writer.write(answer(b'{"error": {"code": "disk_full", "message": "no room"}}', "507 Full"))
        await guest.hung_up.wait()

    async def endless() -> object:
        while True:
            yield bytes(1 << 16)

    async with hostile(script) as guest:
        with pytest.raises(GuestRefused, match="no room"):
            async with guest.link.exchange("PUT", "/files/content", body=endless()):
                pass
        guest.hung_up.set()

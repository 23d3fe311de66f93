"""A request means the same however its bytes are split, and what is not a request is refused."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warren_guest.wire import DONE, Head, Parser, WireError

REQUESTS = (
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    b"PUT /files/content?path=%2Ftmp%2Fx&user=r HTTP/1.1\r\nContent-Length: 11\r\n\r\nhello world"
    b"POST /processes/1/stdin?eof=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;a=b\r\n \r\nA\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n"
    b"POST /identity HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)

Read = list[tuple[Head, bytes]]


def read_all(pieces: list[bytes]) -> Read:
    """Every complete request in `pieces`."""
    parser, requests = Parser(), []
    head, body = None, b""
    for piece in pieces:
        parser.feed(piece)
        while (part := parser.next()) is not None:
            if isinstance(part, Head):
                head, body = part, b""
            elif part is DONE:
                assert head is not None
                requests.append((head, body))
            else:
                assert isinstance(part, bytes)
                body += part
    return requests


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_any_split_gives_the_same_requests(cuts: list[int]) -> None:
    whole = read_all([REQUESTS])
    assert read_all(split(REQUESTS, cuts)) == whole
    assert [body for _, body in whole] == [b"", b"hello world", b"hello 0123456789", b""]


def test_requests_fed_byte_by_byte_are_the_same() -> None:
    assert read_all([bytes([byte]) for byte in REQUESTS]) == read_all([REQUESTS])


def test_a_head_is_read_into_its_parts() -> None:
    (_, (put, _), _, (last, _)) = read_all([REQUESTS])
    assert (put.method, put.path, put.query) == ("PUT", "/files/content", {"path": "/tmp/x", "user": "r"})
    assert put.length == 11
    assert put.keeps_alive
    assert not last.keeps_alive


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=300)
def test_garbage_is_refused_or_waited_for_and_nothing_else(data: bytes, cuts: list[int]) -> None:
    with contextlib.suppress(WireError):
        read_all(split(data, cuts))


@given(st.integers(0, len(REQUESTS) - 1), st.integers(0, 255))
@settings(max_examples=300)
def test_one_wrong_byte_is_refused_or_read_and_nothing_else(at: int, byte: int) -> None:
    with contextlib.suppress(WireError):
        read_all([REQUESTS[:at] + bytes([byte]) + REQUESTS[at + 1 :]])


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET health HTTP/1.1\r\n\r\n",
        b"get /health HTTP/1.1\r\n\r\n",
        b"GET  /health HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET /?a=%ff HTTP/1.1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300,
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nbad trailer\r\n\r\n",
        b"GET /" + b"a" * 40_000,
        b"GET / HTTP/1.1\r\nA: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
def test_what_two_readers_might_read_differently_is_refused(request_bytes: bytes) -> None:
    with pytest.raises(WireError):
        read_all([request_bytes])

"""What the proxy decides without doing anything: heads, chunks, first bytes, rows, limits."""

import io
from http.client import parse_headers
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.network import Limits
from poold.egress.proxy import rows as rows_
from poold.egress.proxy.chunks import BadChunk, Chunks
from poold.egress.proxy.firsts import First, read_first
from poold.egress.proxy.heads import Answer, BadHead, read_answer, read_request
from poold.egress.proxy.limits import Bucket, Meter
from poold.egress.proxy.refusals import Refusal, answer
from poold.egress.proxy.rows import Row, Rows, shown

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_!#$%&'*+.^`|~", min_size=1, max_size=20)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
PATH = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40)
SPECIAL = {"host", "content-length", "transfer-encoding", "expect", "connection", "upgrade", "http2-settings"}
HEADERS = st.lists(st.tuples(TOKEN.filter(lambda name: name.lower() not in SPECIAL), VALUE), max_size=8)
_DROPPED = {"keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te", "trailer"}


@given(TOKEN.filter(lambda method: method != "CONNECT"), PATH, HEADERS, st.integers(0, 10**12) | st.none())
def test_what_is_written_means_what_was_read(
    method: str, path: str, headers: list[tuple[str, str]], length: int | None
) -> None:
    lines = [f"{method} /{path} HTTP/1.1", "Host: a.example"] + [f"{name}: {value}" for name, value in headers]
    lines += [] if length is None else [f"Content-Length: {length}"]
    request = read_request(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    written = request.written("a.example")
    assert written == read_request(written).written("a.example")
    first, _, rest = written.partition(b"\r\n")
    assert first == f"{method} /{path} HTTP/1.1".encode()
    parsed = parse_headers(io.BytesIO(rest))
    assert parsed["Host"] == "a.example"
    assert parsed["Content-Length"] == (None if length is None else str(length))
    kept = [(name, value.strip(" \t")) for name, value in headers if name.lower() not in _DROPPED]
    for name, value in kept:
        assert value in parsed.get_all(name, [])
    assert len(parsed) == len(kept) + 1 + (length is not None)


@given(
    st.binary(max_size=200) | st.builds(lambda a, b: b"GET / HTTP/1.1\r\n" + a + b"\r\n" + b, st.binary(), st.binary())
)
def test_any_head_is_read_or_refused(data: bytes) -> None:
    try:
        request = read_request(data + b"\r\n\r\n")
    except BadHead:
        return
    written = request.written("a.example")
    assert written.count(b"\r\n\r\n") == 1
    assert b"\n" not in written.replace(b"\r\n", b"")
    assert b"\r" not in written.replace(b"\r\n", b"")


@given(st.binary(max_size=300))
def test_any_answer_is_read(data: bytes) -> None:
    assert isinstance(read_answer(data + b"\r\n\r\n", "GET"), Answer)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.integers(1, 50), st.binary(max_size=10))
def test_chunks_are_read_alike_however_they_come(pieces: list[bytes], step: int, more: bytes) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nA: b\r\n\r\n"
    chunks, got, used = Chunks(), b"", 0
    data = body + more
    for at in range(0, len(data), step):
        found, count = chunks.feed(data[at : at + step])
        got += b"".join(found)
        used += count
    assert (got, used, chunks.is_done) == (b"".join(pieces), len(body), True)


@given(st.binary(max_size=100))
def test_any_bytes_are_chunks_or_not(data: bytes) -> None:
    chunks = Chunks()
    try:
        pieces, used = chunks.feed(data)
    except BadChunk:
        return
    assert used == len(data) or chunks.is_done
    assert sum(map(len, pieces)) <= used


def test_what_follows_chunks_is_limited() -> None:
    chunks = Chunks()
    with pytest.raises(BadChunk):
        chunks.feed(b"0\r\n" + b"A: b\r\n" * 10_000)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b"", First.UNCLEAR),
        (b"\x16", First.UNCLEAR),
        (b"\x16\x03", First.TLS),
        (b"\x16\x02", First.OTHER),
        (b"\x00\x00\x00\x08", First.OTHER),
        (b"G", First.UNCLEAR),
        (b"GET /", First.UNCLEAR),
        (b"GET / HTTP/", First.UNCLEAR),
        (b"GET / HTTP/1.1\r\n", First.HTTP),
        (b"get\t/ http/1.1\r\n", First.HTTP),
        (b"\r\n\r\n GET / HTTP/1.1", First.HTTP),
        (b"GET /x y z HTTP/1.1", First.HTTP),
        (b"G\xc3\xa9T / HTTP/1.1", First.OTHER),
        (b"PRI * HTTP/2.0\r\n", First.H2C),
        (b"SSH-2.0-OpenSSH\r\n", First.OTHER),
        (b"EHLO me\r\n", First.OTHER),
        (b"0032git-upload-pack /x\x00host=y\x00", First.OTHER),
        (b"AMQP\x00\x00\x09\x01", First.OTHER),
        (b"a" * 70_000, First.OTHER),
    ],
)
def test_first_bytes_say_what_follows(data: bytes, first: First) -> None:
    assert read_first(data) is first


HTTP_LIKE = st.lists(
    st.sampled_from([b"GET", b" ", b"\t", b"\r", b"\n", b"/", b"HTTP/1", b"\x01", b"\xff"]), max_size=10
)


@given(st.binary(max_size=100) | HTTP_LIKE.map(b"".join), st.integers(0, 100))
def test_what_was_clear_stays_so(data: bytes, at: int) -> None:
    before = read_first(data[:at])
    assert before is First.UNCLEAR or before is read_first(data) or read_first(data) is First.H2C


def test_a_bucket_lets_twice_as_many_pass_at_once() -> None:
    bucket = Bucket(10, 0.0)
    assert [bucket.has_one(0.0) for _ in range(21)].count(True) == 20
    assert [bucket.has_one(0.5) for _ in range(9)].count(True) == 5
    assert [bucket.has_one(100.0) for _ in range(50)].count(True) == 20


def test_a_meter_without_limits_is_never_over() -> None:
    meter = Meter(up=10**15, down=10**15)
    meter.limit(Limits())
    assert not meter.is_over
    meter.limit(Limits(down_mb=1))
    assert meter.is_over


def row(name: str = "a.example", verdict: str = "refused", **more: Any) -> Row:
    return Row("sb-a", 1, verdict, "connect", name, **more)


def test_no_more_rows_are_made_in_a_second_than_are_promised() -> None:
    rows = Rows(lambda: None)
    for index in range(1000):
        rows.refuse(row(f"n{index}.example", why="policy"))
    rows.flush()
    told = list(rows.next())
    assert len(told) == rows_.MAX_REFUSALS_AT_ONCE + 1
    assert sum(each["times"] for each in told) == 1000
    assert (told[-1]["why"], told[-1]["times"]) == ("too_fast", 800)


@pytest.mark.parametrize("verdict", ["refused", "allowed"])
def test_no_more_rows_are_kept_than_are_promised_and_none_is_forgotten(verdict: str) -> None:
    rows = Rows(lambda: None)
    count = 3 * rows_.MAX_KEPT
    for index in range(count):
        rows.add(row(f"n{index}.example", verdict, up=1))
    told = []
    while batch := list(rows.next()):
        told += batch
        rows.taken(told[-1]["number"])
    assert len(told) <= rows_.MAX_KEPT
    assert [each["number"] for each in told] == list(range(1, len(told) + 1))
    assert (sum(each["times"] for each in told), sum(each["up"] for each in told)) == (count, count)


def test_connections_are_kept_longer_than_refusals() -> None:
    rows = Rows(lambda: None)
    for index in range(rows_.MAX_KEPT + 1):
        rows.add(row(f"n{index}.example", "allowed" if index % 100 == 0 else "refused"))
    told = list(rows.rest())
    assert sum(each["verdict"] == "allowed" for each in told) == rows_.MAX_KEPT // 100 + 1
    assert sum(each["times"] for each in told) == rows_.MAX_KEPT + 1


def test_only_so_many_rows_are_sent_before_some_are_taken() -> None:
    rows = Rows(lambda: None)
    for _ in range(rows_.MAX_SENT + 5):
        rows.add(row())
    assert len(list(rows.next())) == rows_.MAX_SENT
    assert list(rows.next()) == []
    rows.taken(3)
    assert [each["number"] for each in rows.next()] == [rows_.MAX_SENT + 1, rows_.MAX_SENT + 2, rows_.MAX_SENT + 3]
    assert [each["number"] for each in rows.again()][:2] == [4, 5]


@given(st.text(max_size=400))
def test_names_are_shown_without_danger(text: str) -> None:
    safe = shown(text)
    assert safe is not None
    assert len(safe) <= 253
    assert safe.isascii()
    assert safe.isprintable()


@given(st.text(max_size=100))
def test_a_refusal_is_one_line_whatever_is_in_it(text: str) -> None:
    said = answer(Refusal("policy", text))
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert body.count(b"\n") == 1
    assert body.endswith(b"\n")

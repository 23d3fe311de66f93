"""Hellos of real clients are read whatever way they arrive; what could be read in two ways is not TLS."""

import shutil
import socket
import ssl
import struct
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.egress.wire.hello import MAX_HELLO_BYTES, MAX_RECORDS, Hello, NotTls, read_hello

NAME = "api.example.com"
LIMIT_S = 10.0


def real_hello(
    name: str | None = NAME, *, least: ssl.TLSVersion | None = None, most: ssl.TLSVersion | None = None
) -> bytes:
    """What the `ssl` module says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.set_alpn_protocols(["h2", "http/1.1"])
    if least is not None:
        context.minimum_version = least
    if most is not None:
        context.maximum_version = most
    said = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def vector(data: bytes, size: int) -> bytes:
    return len(data).to_bytes(size) + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(data, 2)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(b"".join(bytes([kind]) + vector(name, 2) for name in names), 2))


def body(
    extensions: bytes | None,
    *,
    version: bytes = b"\x03\x03",
    session_id: bytes = b"",
    ciphers: bytes = b"\x13\x01",
    compressions: bytes = b"\0",
) -> bytes:
    said = version + bytes(32) + vector(session_id, 1) + vector(ciphers, 2) + vector(compressions, 1)
    return said if extensions is None else said + vector(extensions, 2)


def message(extensions: bytes | None, **fields: bytes) -> bytes:
    return b"\x01" + vector(body(extensions, **fields), 3)


def record(data: bytes, *, kind: int = 22, version: bytes = b"\x03\x01") -> bytes:
    return bytes([kind]) + version + vector(data, 2)


def hello(extensions: bytes | None, **fields: bytes) -> bytes:
    return record(message(extensions, **fields))


def outcome(data: bytes) -> Hello | str | None:
    try:
        return read_hello(data)
    except NotTls:
        return "not tls"


@pytest.mark.parametrize("name", [NAME, "a.b", "x" * 63 + ".example.com"])
@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_in_a_real_hello_is_found(name: str, most: ssl.TLSVersion) -> None:
    assert read_hello(real_hello(name, most=most)) == Hello(name, has_ech=False)


CLIENTS = {
    "openssl": ["openssl", "s_client", "-servername", NAME, "-connect"],
    "openssl-old": ["openssl", "s_client", "-tls1_2", "-alpn", "h2", "-servername", NAME, "-connect"],
    "curl": [
        "curl",
        "--silent",
        "--insecure",
        "--noproxy",
        "*",
        "--resolve",
        f"{NAME}:PORT:127.0.0.1",
        f"https://{NAME}:PORT/#",
    ],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_name_in_the_hello_of_another_program_is_found(client: str) -> None:
    argv = CLIENTS[client]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"needs {argv[0]}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        port = str(server.getsockname()[1])
        argv = [each.replace("PORT", port) for each in argv] + ([f"127.0.0.1:{port}"] if argv[0] == "openssl" else [])
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(argv, **quiet) as program:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                said = b""
                while (found := read_hello(said)) is None:
                    said += connection.recv(100) or pytest.fail("it hung up")
            program.wait(LIMIT_S)
    assert found == Hello(NAME, has_ech=False)


def test_a_real_hello_without_a_name_has_none() -> None:
    assert read_hello(real_hello(None)) == Hello(None, has_ech=False)
    assert read_hello(real_hello("192.0.2.1")) == Hello(None, has_ech=False)


def test_a_hello_without_extensions_has_no_name() -> None:
    assert read_hello(hello(None)) == Hello(None, has_ech=False)
    assert read_hello(hello(b"")) == Hello(None, has_ech=False)


def test_a_real_hello_is_complete_with_its_last_byte_and_not_before() -> None:
    said = real_hello()
    assert {outcome(said[:size]) for size in range(len(said))} == {None}
    assert read_hello(said) == Hello(NAME, has_ech=False)
    assert read_hello(said + b"\x14\x03\x03\x00\x01\x01") == Hello(NAME, has_ech=False)  # what comes next is not ours


@given(cuts=st.lists(st.integers(1, 400), max_size=MAX_RECORDS - 1), after=st.binary(max_size=20))
def test_records_may_be_cut_anywhere(cuts: list[int], after: bytes) -> None:
    said = real_hello()[5:]
    edges = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    records = b"".join(record(said[begin:end]) for begin, end in pairwise(edges))
    assert read_hello(records + after) == Hello(NAME, has_ech=False)
    assert {outcome(records[:size]) for size in range(len(records))} == {None}


@given(st.one_of(st.binary(max_size=400), st.binary(max_size=400).map(record), st.binary(max_size=300).map(hello)))
def test_whatever_comes_it_is_tls_or_not_and_more_bytes_never_change_that(data: bytes) -> None:
    seen = [outcome(data[:size]) for size in range(len(data) + 1)]
    decided = [each for each in seen if each is not None]
    assert len(set(decided)) <= 1
    assert seen == [None] * (len(seen) - len(decided)) + decided


@given(st.data())
def test_a_real_hello_with_one_byte_changed_raises_nothing_else(data: st.DataObject) -> None:
    said = bytearray(real_hello())
    said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(outcome(bytes(said)), Hello | str | None)


def test_the_same_hello_is_refused_however_it_is_cut_if_more_is_in_its_record() -> None:
    said = record(message(server_name(NAME.encode())) + b"\x01")
    assert outcome(said) == "not tls"
    assert "not tls" in {outcome(said[:size]) for size in range(len(said))}
    assert {outcome(said[:size]) for size in range(len(said))} <= {None, "not tls"}


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x",
        b"\x80\x2e\x01\x03\x01",  # a hello of SSL 2
        b"\x15\x03\x01",
        b"\x16\x02",
        b"\x16\x03\x00",  # SSL 3
        b"\x16\x03\x04",
        record(b""),
        b"\x16\x03\x01\x40\x01",  # one byte too long
        record(b"\x02"),  # a server's
        record(b"\x01\0\0\0"),
        record(b"\x01\xff\xff\xff"),
        record(message(b"")[:20]) + record(b"\x01", kind=20) + record(message(b"")[20:]),
        record(message(b"")[:20]) + record(b"") + record(message(b"")[20:]),
    ],
)
def test_what_is_no_hello_is_refused_from_its_first_wrong_byte_on(said: bytes) -> None:
    assert outcome(said) == "not tls"


@pytest.mark.parametrize(
    "said",
    [
        hello(server_name(b"a.example.com") + server_name(b"b.example.com")),
        hello(server_name(b"a.example.com", b"b.example.com")),
        hello(server_name(b"a.example.com", kind=1)),
        hello(server_name(b"")),
        hello(server_name()),
        hello(extension(0, b"")),
        hello(server_name(b"a\0.example.com")),
        hello(server_name("ä.example.com".encode())),
        hello(server_name(b"a b.example.com")),
        hello(extension(0, vector(b"\0" + vector(b"a.example.com", 2), 2) + b"\0")),  # behind the list
        hello(extension(0, vector(b"\0" + vector(b"a.example.com", 2) + b"\0", 2))),  # behind the name
        hello(extension(0, vector(b"\0\0\x20a.example.com", 2))),  # the name is longer than its list
        hello(extension(16, b"") + extension(16, b"")),
        hello(b"\0"),
        hello(b"\0\0\0\x09a"),
        hello(b"", version=b"\x03\x00"),
        hello(b"", version=b"\x02\x03"),
        hello(b"", session_id=bytes(33)),
        hello(b"", ciphers=b""),
        hello(b"", ciphers=b"\x13\x01\x13"),
        hello(b"", compressions=b""),
        record(b"\x01" + vector(body(b"") + b"\0", 3)),  # behind the extensions
        record(b"\x01" + vector(body(None) + b"\0", 3)),
        record(b"\x01" + vector(body(None)[:30], 3)),
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(said: bytes) -> None:
    assert outcome(said) == "not tls"


@pytest.mark.parametrize("kind", [0xFE0D, 0xFD00, 0xFFCE, 0xFE0A])
def test_an_encrypted_hello_is_seen(kind: int) -> None:
    outer = extension(kind, b"\0\0\x01\0\x01\x07" + vector(bytes(32), 2) + vector(bytes(64), 2))
    assert read_hello(hello(server_name(NAME.encode()) + outer)) == Hello(NAME, has_ech=True)
    assert read_hello(hello(extension(kind, b"\x01"))) == Hello(None, has_ech=True)  # inside: one byte


def test_a_hello_has_an_end() -> None:
    padded = message(server_name(NAME.encode()) + extension(21, bytes(40_000)))
    records = b"".join(record(padded[at : at + 16_384]) for at in range(0, len(padded), 16_384))
    assert read_hello(records) == Hello(NAME, has_ech=False)

    tiny = b"".join(record(bytes([each])) for each in message(server_name(NAME.encode()) + extension(21, bytes(200))))
    assert outcome(tiny) == "not tls"
    assert outcome(tiny[: 6 * MAX_RECORDS]) is None

    # The message would fit, but not with the heads of its records.
    longest = b"\x01" + (MAX_HELLO_BYTES - 9).to_bytes(3)
    data = record(longest + bytes(16_380)) + record(bytes(16_384)) * 2 + record(bytes(16_379))
    assert outcome(data[: MAX_HELLO_BYTES - 1]) is None
    assert outcome(data[:MAX_HELLO_BYTES]) == "not tls"

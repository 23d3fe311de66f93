"""Questions are read if resolvers ask them so, and resolvers understand the answers."""

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.egress.wire import dns
from poold.egress.wire.dns import BadQuestion, Question, answer, form_error, read_question, refuse

ROOT = Path(__file__).parents[3]
RD = 0x0100
OPT = b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)


def name(*labels: bytes) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


EXAMPLE = name(b"api", b"Example", b"com")


def packet(
    asked: bytes = EXAMPLE,
    kind: int = dns.KIND_A,
    klass: int = 1,
    *,
    flags: int = RD,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    rest: bytes = b"",
) -> bytes:
    return struct.pack("!HHHHHH", 7, flags, *counts) + asked + struct.pack("!HH", kind, klass) + rest


def edns(rest: bytes = OPT, **fields: int) -> bytes:
    return packet(counts=(1, 0, 0, 1), rest=rest, **fields)


def heads(reply: bytes) -> tuple[int, ...]:
    return struct.unpack_from("!HHHHHH", reply)


def test_a_question_is_read_and_keeps_its_letters() -> None:
    read = read_question(packet())
    assert read == Question(7, True, "api.example.com", dns.KIND_A, 1, False, EXAMPLE + b"\0\1\0\1")
    assert not read_question(packet(flags=0)).is_recursive
    assert read_question(packet(flags=RD | 0x30)).name == "api.example.com"  # about DNSSEC
    assert read_question(packet(name(), dns.KIND_NS)).name == ""


def test_edns_is_seen() -> None:
    assert read_question(edns()).has_edns
    cookie = struct.pack("!HH", 10, 8) + bytes(8)
    assert read_question(edns(b"\0" + struct.pack("!HHIH", 41, 1232, 0x8000, len(cookie)) + cookie)).has_edns


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        packet()[:11],
        packet()[:-1],
        packet()[:14],
        packet(flags=0x8000),
        packet(flags=0x2800),  # an update
        packet(flags=0x0200),
        packet(flags=0x0001),
        packet(counts=(0, 0, 0, 0)),
        packet(counts=(2, 0, 0, 0), rest=EXAMPLE + b"\0\1\0\1"),
        packet(counts=(1, 1, 0, 0)),
        packet(counts=(1, 0, 1, 0)),
        packet(counts=(1, 0, 0, 2), rest=OPT + OPT),
        packet(rest=b"\0"),
        packet(b"\x03api\xc0\x0c"),
        packet(b"\x41" + b"a" * 65 + b"\0"),
        packet(name(b"a.b", b"com")),
        packet(name(b"a\0b", b"com")),
        packet(name("ä".encode(), b"com")),
        packet(name(b"a b", b"com")),
        packet(name(*[b"a" * 63] * 4)),
        edns(OPT + b"\0"),
        edns(OPT[:-1]),
        edns(b"\1" + OPT[1:]),
        edns(b"\0" + struct.pack("!HHIH", 250, 1232, 0, 0)),  # a signature
        edns(b"\0" + struct.pack("!HHIH", 41, 1232, 0x10000, 0)),  # EDNS 1
        edns(b"\0" + struct.pack("!HHIH", 41, 1232, 0, 4)),
        edns(b"\0" + struct.pack("!HHIH", 41, 1232, 0, 5000) + bytes(5000)),
    ],
)
def test_what_no_resolver_asks_is_refused(bad: bytes) -> None:
    with pytest.raises(BadQuestion):
        read_question(bad)


def test_the_longest_name_is_read() -> None:
    labels = [b"a" * 63, b"b" * 63, b"c" * 63, b"d" * 61]
    assert len(name(*labels)) == 255
    assert read_question(packet(name(*labels))).name == b".".join(labels).decode()
    with pytest.raises(BadQuestion):
        read_question(packet(name(*labels[:3], b"d" * 62)))


@given(
    st.one_of(
        st.binary(max_size=600), st.binary(max_size=60).map(lambda rest: packet(rest=rest)), st.binary(max_size=99)
    )
)
def test_whatever_comes_is_a_question_or_a_bad_one(data: bytes) -> None:
    try:
        read = read_question(data)
    except BadQuestion:
        reply = form_error(data)
        assert reply is None or len(reply) == 12
    else:
        assert data[12:].startswith(read.raw)
        for reply in (answer(read, "198.18.0.1", 1), answer(read, None, 1), refuse(read)):
            assert reply[:2] == data[:2]
            assert reply[12:].startswith(read.raw)


labels = st.binary(min_size=1, max_size=20).map(lambda some: bytes(0x61 + byte % 26 for byte in some))


@given(st.lists(labels, min_size=1, max_size=10))
def test_a_name_is_its_labels(some: list[bytes]) -> None:
    assert read_question(packet(name(*some))).name == b".".join(some).decode()
    assert read_question(packet(name(*(label.upper() for label in some)))).name == b".".join(some).decode()


def test_an_answer_has_the_address() -> None:
    reply = answer(read_question(packet()), "198.18.0.9", 5)
    assert heads(reply) == (7, 0x8180, 1, 1, 0, 0)
    assert reply[12:] == EXAMPLE + b"\0\1\0\1" + b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton("198.18.0.9")
    six = answer(read_question(packet(kind=dns.KIND_AAAA)), "2001:db8::1", 5)
    assert six.endswith(b"\0\x10" + socket.inet_pton(socket.AF_INET6, "2001:db8::1"))
    assert heads(answer(read_question(packet(kind=dns.KIND_ANY)), "198.18.0.9", 5))[3] == 1


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        (packet(), None),
        (packet(), "2001:db8::1"),
        (packet(kind=dns.KIND_AAAA), "198.18.0.9"),
        (packet(kind=dns.KIND_HTTPS), "198.18.0.9"),
        (packet(klass=3), "198.18.0.9"),
    ],
)
def test_a_name_has_no_address_of_another_kind(asked: bytes, address: str | None) -> None:
    reply = answer(read_question(asked), address, 5)
    assert heads(reply) == (7, 0x8180, 1, 0, 0, 0)
    assert reply[12:] == asked[12:]


def test_a_refusal_says_why_to_whoever_speaks_edns() -> None:
    assert heads(refuse(read_question(packet(flags=0)))) == (7, 0x8083, 1, 0, 0, 0)
    reply = refuse(read_question(edns()))
    assert heads(reply) == (7, 0x8183, 1, 0, 0, 1)
    size, option, length, code = struct.unpack_from("!HHHH", reply, len(packet()) + 9)
    assert (option, code) == (15, 15)
    assert size == length + 4
    assert reply[len(packet()) + 17 :].startswith(b"not allowed")
    assert heads(answer(read_question(edns()), "198.18.0.9", 5)) == (7, 0x8180, 1, 1, 0, 1)


def test_an_error_is_no_answer_to_an_answer() -> None:
    assert form_error(packet()[:11]) is None
    assert form_error(packet(flags=0x8000)) is None
    assert heads(form_error(packet(rest=b"\0")) or b"") == (7, 0x8181, 0, 0, 0, 0)
    assert heads(form_error(packet(flags=0x2800)) or b"") == (7, 0xA884, 0, 0, 0, 0)


PROGRAM = """
import socket, subprocess, sys, threading
from poold.egress.wire.dns import answer, read_question, refuse

def serve(server):
    while True:
        said, client = server.recvfrom(4096)
        question = read_question(said)
        is_known = question.name == "api.example.com"
        server.sendto(answer(question, "198.18.0.9", 1) if is_known else refuse(question), client)

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
threading.Thread(target=serve, args=[server], daemon=True).start()
for name in ("api.example.com", "API.example.com", "other.example.com"):
    try:
        print(sorted({end[0] for *_, end in socket.getaddrinfo(name, 443)}))
    except socket.gaierror as error:
        print(error.errno == socket.EAI_NONAME)
shown = subprocess.run(["busybox", "nslookup", "api.example.com"], capture_output=True, text=True)
print(shown.returncode, "198.18.0.9" in shown.stdout)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("busybox") is None, reason="asks with busybox, too")
@pytest.mark.parametrize("options", ["", "options edns0\n"])
def test_the_systems_own_resolvers_take_the_answers(tmp_path: Path, options: str) -> None:
    """In a namespace of its own, where nothing but our server can be asked."""
    settings = tmp_path / "resolv.conf"
    settings.write_text(f"nameserver 127.0.0.1\n{options}")
    away = ["unshare", "--net", "--mount", sys.executable, "-c", PROGRAM, str(settings)]
    done = subprocess.run(away, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["['198.18.0.9']", "['198.18.0.9']", "True", "0 True"]

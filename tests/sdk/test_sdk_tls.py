"""A TLS connection that two threads share, which OpenSSL alone does not allow."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contract.identity import Identity, Kind
from poold.pki import Authority, new_authority
from warren.shared_tls import SharedTls

LIMIT_S = 30.0
PIECE = bytes(range(256)) * 256
PIECES = 64


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[SharedTls, ssl.SSLSocket]]:
    """Ours, and that of a server that sends session tickets behind its handshake."""
    now = datetime.now(UTC)
    authority = new_authority(now)
    pair = Authority(authority).issue(Identity(Kind.GATEWAY, "g"), ["127.0.0.1"], now)
    for name, content in (("ca", authority.certificate), ("certificate", pair.certificate), ("key", pair.key)):
        (tmp_path / name).write_bytes(content)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    assert serving.num_tickets > 0
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        raw = socket.create_connection(listener.getsockname(), LIMIT_S)
        accepted, _ = listener.accept()
        accepted.settimeout(LIMIT_S)
        theirs: list[ssl.SSLSocket] = []
        shaking = threading.Thread(target=lambda: theirs.append(serving.wrap_socket(accepted, server_side=True)))
        shaking.start()
        ours = ssl.create_default_context(cafile=str(tmp_path / "ca")).wrap_socket(raw, server_hostname="127.0.0.1")
        shaking.join()
        shared = SharedTls(ours)
        stack.callback(shared.close)
        yield shared, stack.enter_context(theirs[0])


def in_thread(work: threading.Thread) -> threading.Thread:
    work.daemon = True
    work.start()
    return work


def test_much_goes_both_ways_at_once_and_arrives_unchanged(ends: tuple[SharedTls, ssl.SSLSocket]) -> None:
    ours, theirs = ends
    got = bytearray()

    def echo() -> None:
        with contextlib.suppress(OSError):  # the end may come as one
            while piece := theirs.recv(1 << 16):
                theirs.sendall(piece)

    def read() -> None:
        while len(got) < PIECES * len(PIECE):
            got.extend(ours.recv(1 << 16))

    echoing = in_thread(threading.Thread(target=echo))
    reading = in_thread(threading.Thread(target=read))
    for _ in range(PIECES):
        ours.sendall(PIECE)
    reading.join(LIMIT_S)
    assert bytes(got) == PIECE * PIECES
    ours.close()
    echoing.join(LIMIT_S)
    assert not echoing.is_alive()


def test_who_reads_sees_an_end_when_another_closes(ends: tuple[SharedTls, ssl.SSLSocket]) -> None:
    ours, _ = ends
    ended = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            assert ours.recv(1) == b""
        ended.set()

    in_thread(threading.Thread(target=read))
    assert not ended.wait(0.3)
    ours.close()
    assert ended.wait(LIMIT_S)


def test_a_limit_of_time_holds(ends: tuple[SharedTls, ssl.SSLSocket]) -> None:
    ours, _ = ends
    ours.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ours.recv(1)


@pytest.mark.parametrize("how", [socket.SHUT_RD, socket.SHUT_WR])
def test_half_a_connection_never_speaks_in_the_clear(ends: tuple[SharedTls, ssl.SSLSocket], how: int) -> None:
    ours, theirs = ends
    ours.settimeout(LIMIT_S)
    ours.shutdown(how)
    if how == socket.SHUT_RD:
        ours.sendall(b"secret")
        assert theirs.recv(100) == b"secret"
    else:
        theirs.sendall(b"secret")
        assert ours.recv(100) == b"secret"


def test_who_reads_sees_an_end_when_another_shuts_it_down(ends: tuple[SharedTls, ssl.SSLSocket]) -> None:
    ours, _ = ends
    ended = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            assert ours.recv(1) == b""
        ended.set()

    in_thread(threading.Thread(target=read))
    assert not ended.wait(0.3)
    ours.shutdown(socket.SHUT_RDWR)
    assert ended.wait(LIMIT_S)
    with pytest.raises((BrokenPipeError, ssl.SSLError)):
        ours.sendall(b"late")


class Busy(socket.socket):
    """A connection of which one write takes until it is let go."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.is_in, self.go_on = threading.Event(), threading.Event()
        self.was_open = False

    def send(self, data: Any, flags: int = 0) -> int:
        self.is_in.set()
        self.go_on.wait(LIMIT_S)
        self.was_open = self.fileno() >= 0
        return len(data)


def test_nobody_closes_while_another_writes() -> None:
    near, far = socket.socketpair()
    busy: Any = Busy(near.detach())
    shared = SharedTls(busy)
    with far:
        writing = in_thread(threading.Thread(target=shared.sendall, args=(b"secret",)))
        assert busy.is_in.wait(LIMIT_S)
        closing = in_thread(threading.Thread(target=shared.close))
        far.settimeout(LIMIT_S)
        assert far.recv(1) == b""  # shut down at once
        closing.join(0.3)
        busy.go_on.set()
        for thread in (writing, closing):
            thread.join(LIMIT_S)
    assert busy.was_open
    assert busy.fileno() < 0

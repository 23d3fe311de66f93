"""A server and clients for the egress benchmark. Each is a process of its own, in a network namespace of its own.

    egress_load serve                                  answers on port 443 of every address
    egress_load download PROXY NAME MB                 one connection, so many MB: says MB/s
    egress_load connect PROXY NAME SECONDS CLIENTS     connections with a few bytes each: says how many a second, p50 ms

PROXY is ADDRESS:PORT, or - for none; NAME is an address then. What is said looks like TLS to whoever looks, and is not:
it is the way through a proxy that is measured, and not the work of a cipher.
"""

import contextlib
import ctypes
import os
import signal
import socket
import statistics
import sys
import time

from tests.egress.hellos import hello

PORT = 443
PR_SET_PDEATHSIG = 1
WORKERS = 8
SMALL = bytes(200)
BIG_MARK, SMALL_NAME = b"big.example.com", "web.example.com"
BIG_BYTES = 512 << 20
PIECE_BYTES = 1 << 20


def serve() -> None:
    """Until it is killed."""
    content = os.memfd_create("content")
    os.truncate(content, BIG_BYTES)
    listener = socket.create_server(("0.0.0.0", PORT), backlog=1024)
    for _ in range(WORKERS - 1):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # they end with the first
            break
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            _answer(connection, content)


def _answer(connection: socket.socket, content: int) -> None:
    asked = connection.recv(4096)
    if BIG_MARK in asked:
        at = 0
        while at < BIG_BYTES and (sent := os.sendfile(connection.fileno(), content, at, BIG_BYTES - at)):
            at += sent
    else:
        connection.sendall(SMALL)
        connection.recv(1)  # the client closes first


def opened(proxy: str, name: str) -> socket.socket:
    """A way to the server."""
    if proxy == "-":
        return socket.create_connection((name, PORT), 10)
    address, _, port = proxy.partition(":")
    sock = socket.create_connection((address, int(port)), 10)
    sock.sendall(f"CONNECT {name}:{PORT} HTTP/1.1\r\nHost: {name}:{PORT}\r\n\r\n".encode())
    answer = sock.recv(4096)
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        sys.exit(f"the proxy {proxy} says {answer!r}")
    return sock


def download(proxy: str, name: str, mb: int) -> None:
    with opened(proxy, name) as sock:
        began, got, buffer = time.perf_counter(), 0, bytearray(PIECE_BYTES)
        sock.sendall(hello(BIG_MARK.decode()))
        while got < mb << 20:
            if (count := sock.recv_into(buffer)) == 0:
                sys.exit(f"the download ended after {got} bytes")
            got += count
        print(got / (1 << 20) / (time.perf_counter() - began))


def connect(proxy: str, name: str, seconds: float, clients: int) -> None:
    """Each client is a process: one after the other it opens a connection, asks, is answered, and closes."""
    pipes = []
    for _ in range(clients):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            took = _connects(proxy, name, seconds)
            os.write(theirs, f"{len(took)} {statistics.median(took)}".encode())
            os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    said = [os.read(pipe, 100).split() for pipe in pipes]
    for _ in pipes:
        os.wait()
    if not all(said):
        sys.exit("a client failed")
    print(sum(int(count) for count, _ in said) / seconds, statistics.median(float(took) for _, took in said))


def _connects(proxy: str, name: str, seconds: float) -> list[float]:
    words, took, end = hello(SMALL_NAME), [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        with opened(proxy, name) as sock:
            sock.sendall(words)
            if len(sock.recv(4096)) < len(SMALL):
                sys.exit("the answer was cut")
        took.append((time.perf_counter() - began) * 1e3)
    return took


def main(what: str, *words: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if what == "serve":
        serve()
    elif what == "download":
        download(words[0], words[1], int(words[2]))
    else:
        connect(words[0], words[1], float(words[2]), int(words[3]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs inside a machine as root, in the place of its guest: answers in every way that a guest must not.

The request's path says how: the tests ask for a file of that name.
"""

import contextlib
import os
import socket
import threading

OK = b"HTTP/1.1 200 OK\r\n"
FRAMES = OK + b"Content-Type: application/vnd.warren.frames\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b"x" * 65_536

# What is sent: once, and then again and again until poold hangs up.
ANSWERS = {
    "ready": (OK + b"Content-Length: 5\r\n\r\nready", b""),
    "garbage": (b"\x16\x03\x01" + os.urandom(4096), b""),
    "endless-head": (OK, b"X-Filler: " + PIECE[:1000] + b"\r\n"),
    "endless-line": (b"HTTP/1.1 200 ", PIECE),
    "endless-refusal": (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n"),
    "odd-status": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 2\r\n\r\n{}", b""),
    "hang-up": (b"", b""),
    "cut": (OK + b"Content-Length: 1000\r\n\r\nonly this", b""),
    "frames": (FRAMES + b"5\r\n\xff\xff\xff\xff\xff\r\n0\r\n\r\n", b""),
}


def serve(connection: socket.socket) -> None:
    with connection:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := connection.recv(65_536)):
                return
            head += data
        target = head.split(b" ")[1].decode()
        wanted = "frames" if target == "/processes" else target.rpartition("%2F")[2]
        if wanted == "never":
            threading.Event().wait()
        once, again = ANSWERS[wanted]
        with contextlib.suppress(OSError):
            connection.sendall(once)
            while again:
                connection.sendall(again)


if __name__ == "__main__":
    with socket.create_server(("172.16.0.2", 1024)) as server:
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

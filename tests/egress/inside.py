"""Runs in a guest, as root, and tries what it is told to. It says what came of each, and judges nothing.

It is copied into the machine: it imports nothing of ours. Bytes are in JSON as characters of the same number.
"""

import contextlib
import json
import os
import re
import select
import socket
import ssl
import struct
import subprocess
import sys
import time

PROXY = ("172.16.0.1", 3128)
GUEST_PORT = 1024  # by which the host speaks to the machine
CONNECT_S = 5.0
SILENCE_S = 3.0
LISTEN_S = 0.3
MAX_HEARD = 1 << 16
ETH_P_ALL = 3


def talk(steps, at=PROXY):
    """Say the steps to a server one after the other, each when the one before was answered."""
    with socket.create_connection(tuple(at), CONNECT_S) as sock:
        heard = b""
        for step in steps:
            sock.sendall(step.encode("latin-1"))
            said, ended = listen(sock)
            heard += said
            if ended != "answered":
                break
        return heard, ended


def listen(sock):
    """What is heard until an answer is whole, or until it ends."""
    sock.settimeout(SILENCE_S)
    heard = b""
    while len(heard) < MAX_HEARD:
        try:
            piece = sock.recv(65536)
        except TimeoutError:
            return heard, "silent"
        except OSError as error:
            return heard, type(error).__name__
        if not piece:
            return heard, "closed"
        heard += piece
        if is_whole(heard):
            return heard, "answered"
    return heard, "endless"


def is_whole(heard):
    """Whether this is an answer of HTTP that ends here."""
    head, found, body = heard.partition(b"\r\n\r\n")
    if not found or not head.startswith(b"HTTP/1."):
        return False
    if re.match(rb"HTTP/1\.\d 200", head) and b"content-length" not in head.lower():
        return True  # a tunnel
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return length is not None and len(body) >= int(length[1])


def tls(sni, request, at=PROXY, target=None):
    """Speak TLS to a server, or through the proxy to a target. No certificate is looked at."""
    context = ssl._create_unverified_context()
    with socket.create_connection(tuple(at), CONNECT_S) as sock:
        if target:
            sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
            heard, ended = listen(sock)
            if not heard.startswith(b"HTTP/1.1 200"):
                return heard, ended
        sock.settimeout(SILENCE_S)
        with context.wrap_socket(sock, server_hostname=sni) as safe:
            safe.sendall(request.encode("latin-1"))
            heard, ended = listen(safe)
            return b"handshake\n" + heard, ended


def datagram(at, data):
    with socket.socket(socket.AF_INET6 if ":" in at[0] else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.settimeout(SILENCE_S)
        sock.connect(tuple(at))
        sock.send(data.encode("latin-1"))
        return sock.recv(65536), "answered"


def question(at, data):
    """Ask for a name over TCP."""
    with socket.create_connection(tuple(at), CONNECT_S) as sock:
        sock.settimeout(SILENCE_S)
        sock.sendall(data.encode("latin-1"))
        return sock.recv(65536), "answered"


def frames(frames):
    """Put frames on the wire, and say what comes back that is not of the host's own business."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire:
        wire.bind(("eth0", ETH_P_ALL))
        for frame in frames:
            wire.send(frame.encode("latin-1"))
        heard, end = [], time.monotonic() + LISTEN_S
        while (left := end - time.monotonic()) > 0:
            if select.select([wire], [], [], left)[0]:
                frame, (_, _, direction, *_) = wire.recvfrom(65536)
                if direction != 4:  # our own
                    heard.append(described(frame))
        return "\n".join(filter(None, heard)).encode(), "heard"


def described(frame):
    """What came back. Refusals, and the host's connection to this machine, are nothing."""
    kind = struct.unpack_from("!H", frame, 12)[0]
    if kind != 0x0800:
        return "" if kind == 0x0806 else f"frame {kind:#06x}"
    rest = frame[14 + (frame[14] & 15) * 4 :]
    source = socket.inet_ntoa(frame[26:30])
    if frame[23] == 6:
        ports = struct.unpack_from("!HH", rest)
        is_reset = bool(rest[13] & 4)
        # With the proxy a connection can be opened, whoever it is meant for: it is what the proxy is for.
        is_opened = source != "172.16.0.2" and rest[13] & 18 == 18
        return "" if GUEST_PORT in ports or is_reset or is_opened else f"tcp {source}:{ports[0]}"
    if frame[23] == 1:
        return "" if rest[0] in (3, 5, 11, 12) else f"icmp {rest[0]} {source}"
    return f"protocol {frame[23]} {source}"


def shell(command):
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=30)
    return done.stdout + done.stderr, f"exit {done.returncode}"


def crowd(at, count, say=""):
    """Open many connections, hold them all, and hear each."""
    with contextlib.ExitStack() as stack:
        socks = []
        ended = []
        for _ in range(count):
            try:
                sock = stack.enter_context(socket.create_connection(tuple(at), CONNECT_S))
                sock.sendall(say.encode("latin-1"))
                socks.append(sock)
            except OSError as error:
                ended.append(type(error).__name__)
        heard = b""
        for sock in socks:
            said, end = listen(sock)
            heard += said
            ended.append(end)
        return heard, " ".join(ended)


WAYS = {each.__name__: each for each in (talk, tls, datagram, question, frames, shell, crowd)}


def tried(way, arguments):
    began, at_ms = time.monotonic(), time.time() * 1000
    try:
        heard, ended = WAYS[way](**arguments)
    except TimeoutError:
        heard, ended = b"", "silent"
    except (OSError, subprocess.SubprocessError) as error:
        heard, ended = str(error).encode("latin-1", "replace"), type(error).__name__
    seconds = round(time.monotonic() - began, 3)
    return {"heard": heard[:4000].decode("latin-1"), "ended": ended, "at_ms": at_ms, "seconds": seconds}


def main():
    with open(sys.argv[1]) as file:
        told = json.load(file)
    os.environ["LC_ALL"] = "C"
    print(json.dumps({name: tried(way, arguments) for name, way, arguments in told}))


if __name__ == "__main__":
    main()

"""Runs in a guest: a client of WebSockets, by hand. It says what came back of the words that it was told to send.

guest_socket.py ws|wss HOST WORDS [PROXY-HOST PROXY-PORT]
"""

import base64
import os
import socket
import ssl
import struct
import sys


def opened(scheme, host, proxy):
    port = 443 if scheme == "wss" else 80
    sock = socket.create_connection(proxy or (host, port), 20)
    if proxy:
        sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = until(sock, b"\r\n\r\n")
        assert b" 200 " in answer.partition(b"\r\n")[0], answer
    return ssl.create_default_context().wrap_socket(sock, server_hostname=host) if scheme == "wss" else sock


def until(sock, end):
    heard = b""
    while not heard.endswith(end):
        piece = sock.recv(1)
        assert piece, heard
        heard += piece
    return heard


def exactly(sock, count):
    heard = b""
    while len(heard) < count:
        heard += sock.recv(count - len(heard))
    return heard


def main(scheme, host, words, *proxy):
    with opened(scheme, host, (proxy[0], int(proxy[1])) if proxy else None) as sock:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""]
        sock.sendall("\r\n".join(lines).encode())
        assert b" 101 " in until(sock, b"\r\n\r\n")
        for word in words.split(","):
            data, mask = word.encode(), os.urandom(4)
            hidden = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            sock.sendall(struct.pack("!BB", 0x81, 0x80 | len(data)) + mask + hidden)
            _, length = exactly(sock, 2)
            print(exactly(sock, length).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])

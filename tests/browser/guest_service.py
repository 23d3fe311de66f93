"""A service for a sandbox, of the standard library alone: a page, a WebSocket that echoes, and a stream of events.

Started inside a machine as `python3 guest_service.py PORT`; it listens on 127.0.0.1 only.
"""

import base64
import hashlib
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
EVENTS = 5
PAGE = """<!doctype html><title>live</title><h1>live</h1><script>
window.seen = {events: [], echo: null, errors: []};
const events = new EventSource("events");
events.onmessage = event => { seen.events.push(event.data); if (seen.events.length == 5) events.close(); };
events.onerror = () => { seen.errors.push("events"); events.close(); };
const address = new URL("echo", location.href);
address.protocol = address.protocol.replace("http", "ws");
const socket = new WebSocket(address);
socket.onopen = () => socket.send("over the tunnel: \\u00fc");
socket.onmessage = message => { seen.echo = message.data; socket.close(); };
socket.onerror = () => seen.errors.push("socket");
</script>"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/":
                self._say(PAGE.encode(), "text/html; charset=utf-8")
            case "/events":
                self._tell_events()
            case "/echo":
                self._echo()
            case _:
                self.send_error(404)

    def _say(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _tell_events(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(EVENTS):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
            time.sleep(0.05)

    def _echo(self) -> None:
        self.close_connection = True
        key = self.headers["Sec-WebSocket-Key"] + MAGIC
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while (frame := self._frame())[0] != 8:
            self._send(*frame)
        self._send(*frame)

    def _frame(self) -> tuple[int, bytes]:
        first, second = self._exactly(2)
        length = second & 127
        if length >= 126:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
        mask = self._exactly(4)
        data = self._exactly(length)
        return first & 15, bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))

    def _send(self, kind: int, data: bytes) -> None:
        size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        self.wfile.write(bytes([0x80 | kind]) + size + data)

    def _exactly(self, count: int) -> bytes:
        data = self.rfile.read(count)
        if len(data) < count:
            raise ConnectionResetError
        return data


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

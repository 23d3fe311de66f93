"""What tasks change in the world outside: objects of the store that can be made once each, with put-if-absent.

Every attempt is remembered. A machine has no way to the store and no right to it: it asks a small server, which asks
the store itself, and not the proxy before it that loses replies.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFIX = "effects/"


@dataclass(frozen=True)
class Attempt:
    at: float  # monotonic
    name: str
    text: str
    address: str  # of the host whose machine tried
    is_made: bool  # by this attempt


class Effects:
    """In `bucket`, below `effects/`, by a client whose calls block."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket
        self._turn = threading.Lock()
        self.attempts: list[Attempt] = []

    def make(self, name: str, text: str, address: str) -> bool:
        from botocore.exceptions import ClientError

        with self._turn:  # in the order of the store's answers
            try:
                self._client.put_object(Bucket=self._bucket, Key=f"{PREFIX}{name}", Body=text.encode(), IfNoneMatch="*")
                is_made = True
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 412:
                    raise
                is_made = False
            self.attempts.append(Attempt(time.monotonic(), name, text, address, is_made))
            return is_made

    def made(self) -> dict[str, str]:
        """What the store has."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=PREFIX)
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return {key.removeprefix(PREFIX): self._read(key) for key in keys}

    def _read(self, key: str) -> str:
        found: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return found.decode()


@contextlib.contextmanager
def open_effects(listener: socket.socket, client: Any, bucket: str) -> Iterator[Effects]:
    """The world, behind `listener` during the block."""
    effects = Effects(client, bucket)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            assert self.headers["If-None-Match"] == "*"
            is_made = effects.make(self.path.lstrip("/"), text, self.client_address[0])
            self.send_response(201 if is_made else 412)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: it is all in `attempts`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield effects
        finally:
            server.shutdown()
            thread.join()

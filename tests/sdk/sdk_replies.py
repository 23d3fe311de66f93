"""What a gateway says, for tests: the row of a sandbox, and events as bytes."""

import base64
import json
from typing import Any

ID = "sb-2zkqmnb5wc7hxv3a"
KEY = "wrn_" + "0123456789" * 4
ROW = {
    "id": ID,
    "state": "running",
    "image": "python",
    "vcpus": 1,
    "memory_mb": 512,
    "disk_mb": 4096,
    "created_ms": 1,
    "from_the_future": {"x": 1},
}


def sse(kind: str, data: Any, number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def out(kind: str, data: bytes) -> bytes:
    return sse(kind, {"data": base64.b64encode(data).decode()})

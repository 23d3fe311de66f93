"""What schemathesis is told about our API beside its document. It is a program of its own, and loads this file.

Most requests go to sandboxes that there are. Machines stay small, few and of one shape, and commands end soon: a fuzzer
that waits finds nothing. What makes a request wrong is left as it is.
"""

import json
import os
import random
import re
import urllib.request
from collections import deque
from typing import Any

import schemathesis

URL = os.environ["WARREN_FUZZ_URL"]
KEY = os.environ["WARREN_FUZZ_KEY"]
OWN_KEY_ID = os.environ["WARREN_FUZZ_KEY_ID"]  # whoever revokes this one has nothing left to try
KEPT = 2  # sandboxes at a time
SANDBOX = re.compile(r"sb-[a-z2-7]{16}")
SIZES = ("vcpus", "memory_mb", "disk_mb")

living: deque[str] = deque()
keys: deque[str] = deque(maxlen=20)


@schemathesis.hook
def map_path_parameters(_context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ids that have the right form become ids that there are, mostly."""
    if not path_parameters:
        return path_parameters
    mapped = dict(path_parameters)
    if SANDBOX.fullmatch(str(mapped.get("sandbox_id"))) and living and random.random() < 0.9:
        mapped["sandbox_id"] = random.choice(living)
    if re.fullmatch(r"[0-9a-f]{64}", str(mapped.get("key_id"))) and keys and random.random() < 0.9:
        mapped["key_id"] = random.choice(keys)
    return mapped


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    name = context.operation.definition.raw.get("operationId")
    if name == "create_sandbox":
        return _small(body)
    if name == "run_command" and isinstance(body.get("timeout_sec"), int | None):
        return {**body, "timeout_sec": min(body.get("timeout_sec") or 2, 2)}
    if name == "create_key" and isinstance(body.get("expires_ms"), int) and body["expires_ms"] > 0:
        return {**body, "expires_ms": None}
    return body


def _small(body: dict[str, Any]) -> dict[str, Any]:
    """Sizes and images that are right are those that there are; the rest stays as it is."""
    good_sizes = [name for name in SIZES if isinstance(body.get(name), int) and body[name] > 0 and body[name] % 64 == 0]
    if isinstance(body.get("vcpus"), int) and 1 <= body["vcpus"] <= 64:
        good_sizes.append("vcpus")
    body = {name: value for name, value in body.items() if name not in good_sizes}
    image = body.get("image")
    if isinstance(image, str) and len(image) <= 64 and "\0" not in image:
        body["image"] = "minimal"
    if isinstance(body.get("timeout_sec"), int) and 1 <= body["timeout_sec"] <= 2_592_000:
        body["timeout_sec"] = max(body["timeout_sec"], 60)
    return body


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    return (case.path_parameters or {}).get("key_id") != OWN_KEY_ID


@schemathesis.hook
def after_call(_context: Any, case: Any, response: Any) -> None:
    """Keep the newest sandboxes, and destroy the others."""
    name = case.operation.definition.raw.get("operationId")
    if response.status_code == 201 and name == "create_sandbox":
        living.append(json.loads(response.content)["id"])
        while len(living) > KEPT:
            _destroy(living.popleft())
    elif response.status_code == 201 and name == "create_key":
        keys.append(json.loads(response.content)["id"])


def _destroy(sandbox_id: str) -> None:
    request = urllib.request.Request(f"{URL}/v1/sandboxes/{sandbox_id}", method="DELETE")
    request.add_header("Authorization", f"Bearer {KEY}")
    with urllib.request.urlopen(request, timeout=60):
        pass

"""What schemathesis is told about our API beside its document. It is a program of its own, and loads this file.

Most requests go to sandboxes and tasks that there are. Machines stay small, few and of one shape, and commands and
tasks end soon: a fuzzer that waits finds nothing. What makes a request wrong is left as it is.
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
KEPT_TASKS = 1  # and tasks that may not have ended
SANDBOX = re.compile(r"sb-[a-z2-7]{16}")
TASK = re.compile(r"tk-[a-z2-7]{16}")
KEY_ID = re.compile(r"[0-9a-f]{64}")
REAL = 0.9
LARGE = {"maxLength": 300, "maxItems": 40, "maxProperties": 10}
LARGE_NETWORK = 1000  # bytes of a key's policy, some defaults added; a schema cannot say how many there may be
CHANGING = ("create_sandbox", "destroy_sandbox", "pause_sandbox", "create_key", "rotate_key")
MAKING_TASKS = ("create_task", "retry_task", "create_job")
# Of a task that is right: work that is over soon, in a small machine, by the agent that every machine has.
SOON = {"agent": "mock", "caps": {"steps": 5, "wall_sec": 5}, "keep_minutes": 0, "image": "minimal"}
TIMES = ("timeout_sec", "idle_sec", "hibernate_sec", "paused_sec")
SIZES = ("memory_mb", "disk_mb")

living: deque[str] = deque([os.environ["WARREN_FUZZ_SANDBOX"]])
keys: deque[str] = deque(maxlen=20)
tasks: deque[str] = deque(maxlen=20)
begun: deque[str] = deque()  # of these, those that were not stopped


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Without limits that take long to reach. Unit tests try them, on both sides."""
    _without_large_limits(raw_schema["paths"])


def _without_large_limits(value: Any) -> None:
    if isinstance(value, dict):
        for name, most in LARGE.items():
            if isinstance(value.get(name), int) and value[name] > most:
                del value[name]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _without_large_limits(inner)


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Ids that have the right form become ids that there are, mostly; what would take long is made short."""
    asked = case.path_parameters or {}
    if SANDBOX.fullmatch(str(asked.get("sandbox_id"))) and living and random.random() < REAL:
        asked["sandbox_id"] = random.choice(living)
    for name in ("task_id", "job_id"):
        if TASK.fullmatch(str(asked.get(name))) and tasks and random.random() < REAL:
            asked[name] = random.choice(tasks)
    if KEY_ID.fullmatch(str(asked.get("key_id"))) and keys and random.random() < REAL:
        asked["key_id"] = random.choice(keys)
    if isinstance(case.body, dict):
        case.body = _bounded(_name(case), case.body)


def _name(case: Any) -> str:
    return str(case.operation.definition.raw["operationId"])


def _bounded(name: str, body: dict[str, Any]) -> dict[str, Any]:
    if name == "create_sandbox":
        return _small(body)
    if name in MAKING_TASKS:
        return _short(name, body)
    if name == "create_key" and len(json.dumps(body.get("network"))) > LARGE_NETWORK:
        return {field: value for field, value in body.items() if field != "network"}
    if name == "run_command" and isinstance(body.get("timeout_sec", 2), int):
        return {**body, "timeout_sec": min(body.get("timeout_sec", 2), 2)}
    return body


def _small(body: dict[str, Any]) -> dict[str, Any]:
    """Sizes, images and times that are right become those that we want; what is wrong stays as it is."""
    sized = {name for name in SIZES if isinstance(body.get(name), int) and body[name] >= 128 and body[name] % 64 == 0}
    if isinstance(body.get("vcpus"), int) and body["vcpus"] in range(1, 65):
        sized.add("vcpus")
    body = {name: value for name, value in body.items() if name not in sized}
    image = body.get("image")
    if isinstance(image, str) and len(image) <= 64 and "\0" not in image:
        body["image"] = "minimal"
    for name in TIMES:
        if isinstance(body.get(name), int) and body[name] in range(1, 2_592_001):
            body[name] = max(body[name], 600)
    return body


def _short(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Fields that are right become those that we want, and those that are not there too; what is wrong stays."""
    body = _small(body)
    wanted = {"agent": "mock"} if name == "create_job" else SOON
    if name == "retry_task":  # what is not said is as it was the first time: short
        wanted = {field: value for field, value in wanted.items() if field in body}
    return body | {field: value for field, value in wanted.items() if _is_right(field, body.get(field))}


def _is_right(field: str, value: Any) -> bool:
    """Whether a field of a task may stand as it is, as far as that matters here."""
    match field:
        case "agent":
            return value in ("mock", "claude", "codex", "cursor")
        case "caps":
            return value in (None, {})
        case "keep_minutes":
            return value is None or (isinstance(value, int) and value in range(10_081))
        case _:
            return value is None or value == "minimal"


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    return (case.path_parameters or {}).get("key_id") != OWN_KEY_ID


@schemathesis.hook
def filter_failure(_context: Any, failure: Any, _case: Any, _response: Any) -> bool:
    """Who tries many wrong keys is told to wait, and no longer that they are wrong."""
    return not ("invalid credentials" in failure.message and "got `429 " in failure.message)


@schemathesis.hook
def after_call(_context: Any, case: Any, response: Any) -> None:
    """Keep the newest sandboxes, and mostly running: what is paused or stopped refuses nearly everything."""
    name = _name(case)
    made = json.loads(response.content) if response.status_code in (200, 201) and name in CHANGING else {}
    if name in ("create_key", "rotate_key") and made:
        keys.append(made["id"])
    elif name == "create_sandbox" and made:
        living.append(made["id"])
    elif name == "destroy_sandbox" and made.get("id") in living:
        living.remove(made["id"])
    elif name == "pause_sandbox" and made and random.random() < REAL:
        _ask("POST", f"/v1/sandboxes/{made['id']}/resume")
    if name in MAKING_TASKS and response.status_code == 202:
        told = json.loads(response.content)
        tasks.append(told.get("id") or told["jobId"])
        begun.append(tasks[-1])
    while len(living) > KEPT:
        _ask("DELETE", f"/v1/sandboxes/{living.popleft()}")
    while len(begun) > KEPT_TASKS:
        _ask("POST", f"/api/v1/tasks/{begun.popleft()}/stop")
    if not living:
        living.append(_ask("POST", "/v1/sandboxes")["id"])


def _ask(method: str, path: str) -> Any:
    """Raises unless it is done."""
    request = urllib.request.Request(f"{URL}{path}", method=method)
    request.add_header("Authorization", f"Bearer {KEY}")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())

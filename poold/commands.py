"""Commands in a sandbox: what a guest's frame stream means, as plain events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import orjson

from contract.errors import CallerError, WarrenError
from contract.models import Exec
from poold.errors import GuestError
from poold.link import Answer, Guest
from poold.link.frames import Kind, read_frames

FRAMES = "application/vnd.warren.frames"
MAX_NUMBER = 1 << 53
MAX_EXIT_CODE = 255


class DeadlinePassed(CallerError):
    """The command did not end within the time that the caller gave it, and was killed."""

    status = 408
    code = "deadline_passed"


@dataclass(frozen=True)
class Started:
    pid: int


@dataclass(frozen=True)
class Output:
    stream: str  # "stdout", "stderr" or "pty"
    data: bytes


@dataclass(frozen=True)
class Ended:
    """Exactly one of the two is there. An exit code is never invented."""

    exit_code: int | None
    signal: str | None
    duration_ms: int


Said = Started | Output | Ended
STREAMS = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr", Kind.PTY: "pty"}


async def run(guest: Guest, command: Exec) -> AsyncGenerator[Said, None]:
    """Run `command` and tell what happens: `Started`, `Output`s, `Ended`. Leaving early does not end the command.

    Raises `DeadlinePassed` when its time is up, `GuestRefused` when it cannot be started.
    """
    request = {
        "cmd": command.argv[0],
        "args": command.argv[1:],
        "env": command.env,
        "cwd": command.cwd,
        "user": command.user,
        "stdin": command.stdin is not None,
        "timeout_ms": command.timeout_ms,
    }
    feeding: asyncio.Task[None] | None = None
    async with start(guest, "/processes", request) as answer:
        try:
            async for said in follow(answer):
                if isinstance(said, Output) and said.stream == "pty":
                    raise GuestError("the guest told of a terminal that nobody asked for")
                if isinstance(said, Started) and command.stdin is not None and feeding is None:
                    feeding = asyncio.create_task(_feed(guest, said.pid, command.stdin))
                yield said
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait([feeding])


def start(guest: Guest, target: str, request: dict[str, Any]) -> contextlib.AbstractAsyncContextManager[Answer]:
    """Ask the guest to start a process; its frame stream is the answer. Fields that are None are left out."""
    body = orjson.dumps({name: value for name, value in request.items() if value is not None})
    return guest.exchange("POST", target, headers={"Content-Type": "application/json"}, body=body)


async def follow(answer: Answer) -> AsyncGenerator[Said, None]:
    """What a process says, from an answer that is a frame stream."""
    if answer.headers.get("content-type") != FRAMES:
        raise GuestError("the guest's answer is not a frame stream")
    async for kind, payload in read_frames(answer.chunks()):
        if kind in STREAMS:
            yield Output(STREAMS[kind], payload)
        elif kind is Kind.START:
            yield Started(_number(_facts(payload), "pid"))
        elif kind is Kind.END:
            yield _ended(_facts(payload))
        elif kind is Kind.DEADLINE:
            raise DeadlinePassed("the command was killed: it did not end within timeout_sec")


async def _feed(guest: Guest, pid: int, data: bytes) -> None:
    """Give the process its standard input. One that ends without reading all of it has done nothing wrong."""
    with contextlib.suppress(WarrenError):
        target = f"/processes/{pid}/stdin?eof=1"
        async with guest.exchange("POST", target, body=data, limit_s=None) as answer:
            await answer.read(1 << 16)


def _ended(facts: dict[str, Any]) -> Ended:
    duration_ms = _number(facts, "duration_ms")
    if isinstance(facts.get("signal"), str):
        return Ended(None, facts["signal"][:32], duration_ms)
    return Ended(_number(facts, "exit_code", most=MAX_EXIT_CODE), None, duration_ms)


def _facts(payload: bytes) -> dict[str, Any]:
    try:
        facts = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise GuestError(f"a frame of the guest is not JSON: {error}") from None
    if not isinstance(facts, dict):
        raise GuestError("a frame of the guest is not a JSON object")
    return facts


def _number(facts: dict[str, Any], name: str, *, most: int = MAX_NUMBER) -> int:
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise GuestError(f"a frame of the guest has no number {name!r}")
    return value

"""The use of a sandbox: its guest during a block, written down before and after."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from contract.errors import WarrenError
from poold.api.services import asked_id, caller_of, services
from poold.ledger import audit
from poold.link import Guest

KEPT_CHARS = 500  # of a command line or a path in the audit


@dataclass
class Use:
    """A guest in use, and what came of it."""

    guest: Guest
    exit_code: int | None = None
    bytes: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def using(connection: HTTPConnection, action: str, **detail: str) -> AsyncIterator[Use]:
    """The guest of the sandbox in the path. What is done is written down before it begins, and how it ended after that.

    If it cannot be written down, it is not done. Raises what says why there is no guest.
    """
    found, caller, sandbox_id = services(connection), caller_of(connection), asked_id(connection)
    shown = {name: value if len(value) <= KEPT_CHARS else value[:KEPT_CHARS] + "…" for name, value in detail.items()}
    now_ms = found.sandboxes.now_ms
    entry = audit.Entry(now_ms(), action, owner=caller.owner, sandbox=sandbox_id, request=caller.request, detail=shown)
    began = time.monotonic()
    async with found.sandboxes.use(sandbox_id, caller) as guest:
        await found.ledger.write(partial(audit.add, entry=entry), durable=False)
        use = Use(guest)
        try:
            yield use
        except BaseException as error:
            if (code := _code(error)) is not None:
                use.detail["error"] = code
            raise
        finally:
            ended = replace(
                entry,
                at_ms=now_ms(),
                action=f"{action}.end",
                detail=use.detail,
                exit_code=use.exit_code,
                bytes=use.bytes,
                duration_ms=int((time.monotonic() - began) * 1000),
            )
            with contextlib.suppress(WarrenError):  # the ledger was closed; that it began is written down
                found.ledger.submit(partial(audit.add, entry=ended), durable=False)


def _code(error: BaseException) -> str | None:
    """What went wrong, if it is one of ours. Tasks that work together fail as a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.code if isinstance(error, WarrenError) else None


class StreamedReply(StreamingResponse):
    """A reply whose body is told as it happens. What it needs is closed at its end, even if nobody read a byte."""

    def __init__(self, body: AsyncIterator[bytes], rest: contextlib.AsyncExitStack, **more: Any) -> None:
        super().__init__(body, **more)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._rest:
            await super().__call__(scope, receive, send)

"""Commands in a sandbox: one JSON reply at the end, or a stream of server-sent events as things happen."""

import base64
import codecs
import contextlib
import shlex
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.asked import output_encoding
from contract.errors import WarrenError
from contract.models import Exec
from poold.api.audited import Use, using
from poold.api.listing import read_query
from poold.api.replies import json_reply, read_body
from poold.api.streams import EVENT_STREAM, event_stream, sse
from poold.commands import Ended, Output, Said, Started, run

KEPT_OUTPUT_BYTES = 1 << 20  # of each stream in a JSON reply; a longer one is for the event stream


async def execute(request: Request) -> Response:
    command = Exec.parse(await read_body(request))
    encode = _Encoder() if read_query(request, output_encoding) == "text" else _Base64()
    async with contextlib.AsyncExitStack() as stack:
        use = await stack.enter_async_context(using(request, "exec", cmd=shlex.join(command.argv)))
        said = await stack.enter_async_context(contextlib.aclosing(run(use.guest, command)))
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return json_reply(await _whole(said, use))
        first = await anext(said)  # what cannot be started is refused with a status, not in the stream
        rest = stack.pop_all()
    return event_stream(_events(first, said, encode, use), rest)


async def _whole(said: AsyncGenerator[Said, None], use: Use) -> dict[str, Any]:
    """All that a command said, once it has ended. What exceeds the limit is read and dropped, and the reply says so."""
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    total = {"stdout": 0, "stderr": 0}
    reply: dict[str, Any] = {}
    async for event in said:
        match event:
            case Output(stream, data) if stream in kept:  # a guest may send anything
                total[stream] += len(data)
                kept[stream] += data[: max(0, KEPT_OUTPUT_BYTES - len(kept[stream]))]
            case Ended():
                reply = _ended(event)
                use.exit_code = event.exit_code
    use.bytes = sum(total.values())
    for stream, output in kept.items():
        reply[stream] = output.decode("utf-8", "replace")
        reply[f"{stream}_truncated"] = total[stream] > len(output)
    return reply


async def _events(first: Said, said: AsyncGenerator[Said, None], encode: "_Encoder", use: Use) -> AsyncIterator[bytes]:
    """Server-sent events: `start`, `stdout` and `stderr`, then `exit`, or `error` if there will be no exit."""
    use.bytes = 0
    yield _event(first, encode)
    try:
        async for event in said:
            match event:
                case Output(_, data):
                    use.bytes += len(data)
                case Ended(exit_code):
                    use.exit_code = exit_code
                    if rest := encode.rest():
                        yield rest
            if line := _event(event, encode):
                yield line
    except WarrenError as error:
        use.detail["error"] = error.code
        yield sse("error", error.body()["error"])


def _event(said: Said, encode: "_Encoder") -> bytes:
    match said:
        case Started(pid):
            return sse("start", {"pid": pid})
        case Output(stream, data):
            text = encode(stream, data)
            return sse(stream, {"data": text}) if text else b""
        case Ended():
            return sse("exit", _ended(said))


def _ended(ended: Ended) -> dict[str, Any]:
    return {"exit_code": ended.exit_code, "signal": ended.signal, "duration_ms": ended.duration_ms}


class _Encoder:
    """Output as text in JSON. A character that is split between two pieces is put together again."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in ("stdout", "stderr", "pty")}

    def __call__(self, stream: str, data: bytes) -> str:
        return self._decoders[stream].decode(data)

    def rest(self) -> bytes:
        """What is left at the end: a character that was never completed."""
        texts = {stream: decoder.decode(b"", final=True) for stream, decoder in self._decoders.items()}
        return b"".join(sse(stream, {"data": text}) for stream, text in texts.items() if text)


class _Base64(_Encoder):
    """Output byte for byte."""

    def __call__(self, stream: str, data: bytes) -> str:
        return base64.b64encode(data).decode()

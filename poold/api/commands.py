"""Commands in a sandbox: one JSON reply at the end, or a stream of server-sent events as things happen."""

import base64
import codecs
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from contract.errors import BadField, WarrenError
from contract.models import Exec
from poold.api.replies import json_reply, read_body
from poold.api.sandboxes import guest_of
from poold.commands import Ended, Output, Said, Started, run

KEPT_OUTPUT_BYTES = 1 << 20  # of each stream in a JSON reply; a longer one is for the event stream
EVENT_STREAM = "text/event-stream"


async def execute(request: Request) -> Response:
    command = Exec.parse(await read_body(request))
    guest = await guest_of(request)
    if EVENT_STREAM not in request.headers.get("accept", ""):
        return json_reply(await _whole(run(guest, command)))
    encode = _encoder(request.query_params.get("encoding", "text"))
    said = run(guest, command)
    first = await anext(said)  # what cannot be started is refused with a status, not in the stream
    return StreamingResponse(
        _events(first, said, encode), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"}
    )


async def _whole(said: AsyncGenerator[Said, None]) -> dict[str, Any]:
    """All that a command said, once it has ended. What exceeds the limit is read and dropped, and the reply says so."""
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    total = {"stdout": 0, "stderr": 0}
    reply: dict[str, Any] = {}
    async with contextlib.aclosing(said) as events:
        async for event in events:
            match event:
                case Output(stream, data) if stream in kept:  # a guest may send anything
                    total[stream] += len(data)
                    kept[stream] += data[: max(0, KEPT_OUTPUT_BYTES - len(kept[stream]))]
                case Ended():
                    reply = _ended(event)
    for stream, output in kept.items():
        reply[stream] = output.decode("utf-8", "replace")
        reply[f"{stream}_truncated"] = total[stream] > len(output)
    return reply


async def _events(first: Said, said: AsyncGenerator[Said, None], encode: "_Encoder") -> AsyncIterator[bytes]:
    """Server-sent events: `start`, `stdout` and `stderr`, then `exit`, or `error` if there will be no exit."""
    async with contextlib.aclosing(said) as events:
        yield _event(first, encode)
        try:
            async for event in events:
                if isinstance(event, Ended) and (rest := encode.rest()):
                    yield rest
                if line := _event(event, encode):
                    yield line
        except WarrenError as error:
            yield _sse("error", error.body()["error"])


def _event(said: Said, encode: "_Encoder") -> bytes:
    match said:
        case Started(pid):
            return _sse("start", {"pid": pid})
        case Output(stream, data):
            text = encode(stream, data)
            return _sse(stream, {"data": text}) if text else b""
        case Ended():
            return _sse("exit", _ended(said))


def _ended(ended: Ended) -> dict[str, Any]:
    return {"exit_code": ended.exit_code, "signal": ended.signal, "duration_ms": ended.duration_ms}


def _sse(kind: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


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
        return b"".join(_sse(stream, {"data": text}) for stream, text in texts.items() if text)


class _Base64(_Encoder):
    """Output byte for byte."""

    def __call__(self, stream: str, data: bytes) -> str:
        return base64.b64encode(data).decode()


def _encoder(name: str) -> _Encoder:
    if name not in ("text", "base64"):
        raise BadField("encoding", name, "must be text or base64")
    return _Encoder() if name == "text" else _Base64()

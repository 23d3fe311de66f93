"""A scripted model that speaks Anthropic's Messages API, as Claude Code uses it (`ANTHROPIC_BASE_URL` = `url()`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.models.script import Call, ScriptedModel, Turn, sse


class AnthropicModel(ScriptedModel):
    """`POST /v1/messages`, answered as a stream."""

    answers_at = "/v1/messages"

    def stream(self, turn: Turn, number: int, asked: Mapping[str, Any]) -> bytes:
        parts = [sse("message_start", {"type": "message_start", "message": _begun(turn, number, asked)})]
        for index, (block, delta) in enumerate(_blocks(turn, number)):
            at = {"index": index}
            parts.append(
                sse("content_block_start", {"type": "content_block_start", **at, "content_block": block}),
            )
            parts.append(sse("content_block_delta", {"type": "content_block_delta", **at, "delta": delta}))
            parts.append(sse("content_block_stop", {"type": "content_block_stop", **at}))
        ended = {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None}
        usage = {"output_tokens": turn.usage.output_tokens}
        parts.append(sse("message_delta", {"type": "message_delta", "delta": ended, "usage": usage}))
        parts.append(sse("message_stop", {"type": "message_stop"}))
        return b"".join(parts)

    def other(self, method: str, path: str) -> tuple[int, Any]:
        if path.startswith("/v1/messages/count_tokens"):
            return 200, {"input_tokens": 1}
        return (200, {}) if method == "HEAD" else super().other(method, path)


def _begun(turn: Turn, number: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    usage = {
        "input_tokens": turn.usage.input_tokens,
        "output_tokens": 1,
        "cache_read_input_tokens": turn.usage.cache_read_tokens,
        "cache_creation_input_tokens": turn.usage.cache_write_tokens,
    }
    said: dict[str, Any] = {
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return {"id": f"msg_{number:04}", "type": "message", "model": asked.get("model", "scripted"), **said}


def _blocks(turn: Turn, number: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each content block as it starts, and all of its content in one piece."""
    if turn.thought:
        yield (
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": turn.thought},
        )
    if turn.text:
        yield {"type": "text", "text": ""}, {"type": "text_delta", "text": turn.text}
    for index, call in enumerate(turn.calls):
        begun = {"type": "tool_use", "id": f"toolu_{number:04}_{index}", "name": call.tool, "input": {}}
        yield begun, {"type": "input_json_delta", "partial_json": json.dumps(_arguments(call))}


def _arguments(call: Call) -> Mapping[str, Any]:
    if isinstance(call.arguments, str):
        raise TypeError(f"{call.tool}: tools of this API take objects, not a text")
    return call.arguments

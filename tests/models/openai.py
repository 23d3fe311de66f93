"""A scripted model that speaks OpenAI's Responses API, as Codex uses it (`OPENAI_BASE_URL` = `url()` + `/v1`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.models.script import Call, ScriptedModel, Turn, sse


class OpenAIModel(ScriptedModel):
    """`POST /v1/responses`, answered as a stream."""

    answers_at = "/responses"

    def stream(self, turn: Turn, number: int, asked: Mapping[str, Any]) -> bytes:
        response = {"id": f"resp_{number:04}", "object": "response", "model": asked.get("model", "scripted")}
        parts = [_event("response.created", response={**response, "status": "in_progress"})]
        items = list(_items(turn, number))
        for index, item in enumerate(items):
            parts.append(_event("response.output_item.added", output_index=index, item=item))
            parts.append(_event("response.output_item.done", output_index=index, item=item))
        ended = {**response, "status": "completed", "output": items, "usage": _usage(turn)}
        parts.append(_event("response.completed", response=ended))
        return b"".join(parts)

    def other(self, method: str, path: str) -> tuple[int, Any]:
        if path.split("?", maxsplit=1)[0].endswith("/models"):
            return 200, {"object": "list", "data": [], "models": []}
        return super().other(method, path)


def _event(kind: str, **data: Any) -> bytes:
    return sse(kind, {"type": kind, **data})


def _usage(turn: Turn) -> dict[str, Any]:
    """Here the cached tokens are part of the input."""
    cached, written = turn.usage.cache_read_tokens, turn.usage.cache_write_tokens
    total_in = turn.usage.input_tokens + cached + written
    return {
        "input_tokens": total_in,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": turn.usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total_in + turn.usage.output_tokens,
    }


def _items(turn: Turn, number: int) -> Iterator[dict[str, Any]]:
    if turn.thought:
        told = [{"type": "summary_text", "text": turn.thought}]
        yield {"type": "reasoning", "id": f"rs_{number:04}", "summary": told}
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        yield {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "content": content}
    for index, call in enumerate(turn.calls):
        yield _call(call, f"call_{number:04}_{index}")


def _call(call: Call, name: str) -> dict[str, Any]:
    named = {"id": f"i{name}", "call_id": name, "name": call.tool, "status": "completed"}
    if isinstance(call.arguments, str):
        return {"type": "custom_tool_call", **named, "input": call.arguments}
    return {"type": "function_call", **named, "arguments": json.dumps(call.arguments)}

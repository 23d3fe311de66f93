"""What replies about tasks and jobs look like, as JSON Schema."""

from contract.ids import TASK
from contract.schema import Schema, closed, or_null, shape_of, whole
from contract.task_states import TaskState
from contract.tasks import AGENTS, SHOWN_PROMPT_CHARS, Task

ARTIFACT = r"(?!\.)[A-Za-z0-9._-]{1,128}"  # the name of one
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANYTHING: Schema = {"type": "object"}
AT_MS: Schema = {"type": "integer", "minimum": 0, "description": "milliseconds since 1970"}
AT: Schema = {"type": "string", "format": "date-time"}
TASK_ID: Schema = {"type": "string", "pattern": whole(TASK.pattern), "examples": ["tk-2zkqmnb5wc7hxv3a"]}
AGENT: Schema = {"type": "string", "enum": [*AGENTS]}
STATE: Schema = {"type": "string", "enum": [state.value for state in TaskState]}
# What a host says of an end: more may be in it.
REASON: Schema = {
    "type": ["object", "null"],
    "properties": {"code": TEXT, "message": TEXT},
    "required": ["code", "message"],
    "description": "why it ended, unless it was completed",
}
RESULT: Schema = {
    "type": ["object", "null"],
    "properties": {
        "summary": or_null(TEXT),
        "commits": {"type": "array", "items": {"type": "object", "properties": {"hash": TEXT, "subject": TEXT}}},
        "base": or_null(TEXT),
        "head": or_null(TEXT),
        "diff": or_null(ANYTHING),
        "archive": or_null(ANYTHING),
        "pushed": or_null(ANYTHING),
    },
    "description": "what it came to",
}
WHO = {"sandbox": or_null({"type": "string", "pattern": "^sb-[a-z2-7]{16}$"}), "retry_of": or_null(TASK_ID)}
TIMES = {"created_ms": AT_MS, "started_ms": or_null(AT_MS), "ended_ms": or_null(AT_MS)}
PROMPT = {
    "prompt": {**TEXT, "description": f"its first {SHOWN_PROMPT_CHARS:,} characters"},
    "prompt_chars": COUNT,
}
NETWORK: Schema = {"anyOf": [{"$ref": "#/components/schemas/Network"}, {"type": "null"}]}
TASK_VIEW = closed(
    {
        **shape_of(Task)["properties"],
        **PROMPT,
        **WHO,
        **TIMES,
        "id": TASK_ID,
        "network": NETWORK,
        "reason": REASON,
        "result": RESULT,
    }
)
STEP = closed(
    {
        "number": COUNT,
        "thought": or_null(TEXT),
        "tool": or_null(TEXT),
        "arguments": {},
        "output": or_null(TEXT),
        "output_bytes": or_null(COUNT),
        "output_artifact": {**or_null(TEXT), "description": "the artifact that has the whole of it"},
        "is_error": or_null({"type": "boolean"}),
        "started_ms": AT_MS,
        "ended_ms": or_null(AT_MS),
        "input_tokens": or_null(COUNT),
        "output_tokens": or_null(COUNT),
        "usd": or_null({"type": "number", "minimum": 0}),
    }
)
ARTIFACT_VIEW = closed({"name": TEXT, "bytes": COUNT, "sha256": TEXT, "kind": TEXT, "at_ms": AT_MS})
JOB = closed(
    {
        "jobId": TASK_ID,
        "status": STATE,
        "repoUrl": or_null(TEXT),
        "taskDesc": PROMPT["prompt"],
        "agent": AGENT,
        "model": or_null(TEXT),
        "branch": or_null(TEXT),
        "createdAt": AT,
        "startedAt": or_null(AT),
        "endedAt": or_null(AT),
        "reason": REASON,
        "result": RESULT,
        "events": {**TEXT, "description": "the path of its stream"},
        "task": {**TEXT, "description": "the path of the task that it is"},
    }
)
TASK_SCHEMAS: dict[str, Schema] = {"Task": TASK_VIEW, "Step": STEP, "Artifact": ARTIFACT_VIEW, "Job": JOB}

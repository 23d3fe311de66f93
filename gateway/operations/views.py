"""What replies look like, as JSON Schema. Where a dataclass is what is told, its schema is made from it.

The rest is written here, closed (no field more, none less), and tests hold real replies against it.
"""

from contract.egress import VERDICTS, VIAS
from contract.hosts import Host
from contract.ids import SANDBOX
from contract.keys import Key
from contract.models import HIBERNATE_KINDS, Next, Rules
from contract.network import Network
from contract.schema import Schema, closed, or_null, shape_of, whole
from contract.states import State
from contract.workspaces import Change, Saved, Summary, Template, Version
from gateway.operations.task_views import TASK_SCHEMAS

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": "number", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
AT_MS: Schema = {"type": "integer", "minimum": 0, "description": "milliseconds since 1970"}
ANYTHING: Schema = {"type": "object"}
SANDBOX_ID: Schema = {"type": "string", "pattern": whole(SANDBOX.pattern), "examples": ["sb-2zkqmnb5wc7hxv3a"]}
EVENT_STREAM_TEXT: Schema = {"type": "string", "description": "server-sent events"}
BYTES: Schema = {"type": "string", "format": "binary"}


def ref(name: str) -> Schema:
    """A schema that `SCHEMAS` has."""
    if name not in SCHEMAS:
        raise KeyError(name)
    return {"$ref": f"#/components/schemas/{name}"}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


NETWORK: Schema = {"$ref": "#/components/schemas/Network"}
SANDBOX_VIEW = closed(
    {
        "id": SANDBOX_ID,
        "state": {"type": "string", "enum": [state.value for state in State]},
        "owner": TEXT,
        "image": TEXT,
        "vcpus": COUNT,
        "memory_mb": COUNT,
        "disk_mb": COUNT,
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "public_ports": listed({"type": "integer", "minimum": 1, "maximum": 65535}),
        "network": NETWORK,
        "workspace": {"anyOf": [{"$ref": "#/components/schemas/WorkspaceOfSandbox"}, {"type": "null"}]},
        "created_ms": AT_MS,
        "started_ms": or_null(AT_MS),
        "paused_ms": or_null(AT_MS),
        "hibernated": {
            **or_null(closed({"bytes": COUNT, "at_ms": AT_MS, "kind": {"type": "string", "enum": [*HIBERNATE_KINDS]}})),
            "description": "what it has in the object store, and since when, while it is there",
        },
        "ended_ms": or_null(AT_MS),
        "expires_ms": or_null(AT_MS),
        "rules": shape_of(Rules),
        "next": or_null(shape_of(Next)),
        "reason": or_null(TEXT),
    }
)

WORKSPACE_OF_SANDBOX = closed(
    {
        "name": {**or_null(TEXT), "description": "null: its files are not saved"},
        "from_version": {**or_null(COUNT), "description": "that it was made from"},
        "saved_version": {**or_null(COUNT), "description": "the last one that it saved"},
        "template": {**or_null(TEXT), "description": "that it was made from"},
    }
)
SAVED: Schema = {
    **shape_of(Saved),
    "properties": {
        **shape_of(Saved)["properties"],
        "workspace": {"$ref": "#/components/schemas/WorkspaceOfSandbox"},
        "version": {**or_null(COUNT), "description": "null: there are no files, and never were"},
    },
}

OUTPUT = closed(
    {
        "exit_code": {**or_null(NUMBER), "description": "null if a signal ended it"},
        "signal": or_null(TEXT),
        "duration_ms": COUNT,
        "stdout": TEXT,
        "stdout_truncated": FLAG,
        "stderr": TEXT,
        "stderr_truncated": FLAG,
    }
)

TOLD_BY: Schema = {
    "type": "string",
    "enum": ["host", "guest"],
    "description": "only what the host tells is to be believed",
}
EVENT = closed(
    {"id": COUNT, "stream": TEXT, "seq": COUNT, "at_ms": AT_MS, "by": TOLD_BY, "kind": TEXT, "data": ANYTHING}
)

LEVEL: Schema = {"type": "string", "enum": ["host", "key", "image"]}
WITHIN = closed({"level": LEVEL, "network": NETWORK})
VIA: Schema = {
    "type": "string",
    "enum": [*VIAS],
    "description": "by a request to the proxy (`connect`, `http`), by itself, or with a packet that is no TCP",
}
TARGET: dict[str, Schema] = {
    "via": VIA,
    "name": or_null(TEXT),
    "address": or_null(TEXT),
    "port": or_null(NUMBER),
    "rule": {**or_null(TEXT), "description": "that allowed it"},
}
EGRESS_OPEN = closed({"at_ms": AT_MS, **TARGET})
EGRESS_ROW = closed(
    {
        "seq": COUNT,
        "at_ms": AT_MS,
        "verdict": {"type": "string", "enum": [*VERDICTS]},
        **TARGET,
        "why": {**or_null(TEXT), "description": "it was refused or cut"},
        "up": {**COUNT, "description": "bytes from the sandbox"},
        "down": {**COUNT, "description": "bytes to it"},
        "duration_ms": or_null(COUNT),
        "times": {"type": "integer", "minimum": 1, "description": "the same refusals at once are one row"},
    }
)

# A guest tells these two. It may be older or newer than we are, so more may be in them.
GUEST_HEALTH: Schema = {
    "type": "object",
    "properties": {"contract": COUNT, "version": TEXT, "generation": COUNT, "processes": COUNT, "quiet_ms": COUNT},
}
UPLOADED: Schema = {
    "type": "object",
    "properties": {"bytes": COUNT, "entry": ANYTHING},
    "required": ["bytes", "entry"],
}

ERROR: Schema = closed(
    {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "for programs: it does not change"},
                "message": {"type": "string", "description": "for people: what was wrong, and what helps"},
            },
            "required": ["code", "message"],
        }
    }
)

LINK = closed({"url": TEXT, "expires_ms": AT_MS})
CA: Schema = {"type": "string", "description": "who vouches for the host, in PEM"}
ATTACHMENT = closed({"url": TEXT, "ticket": TEXT, "expires_ms": AT_MS, "ca": or_null(CA)})

USAGE = closed({"owner": TEXT, "runs": COUNT, "vcpu_s": AMOUNT, "gib_s": AMOUNT, "egress_bytes": COUNT})

USED = closed({"at_ms": AT_MS, "owners": listed(USAGE), "incomplete": listed(TEXT)})
HOST = closed(
    {
        **shape_of(Host)["properties"],
        "health": {"type": "string", "enum": ["alive", "dead", "draining"]},
        "failures": COUNT,
    }
)

SCHEMAS: dict[str, Schema] = {
    "Sandbox": SANDBOX_VIEW,
    "WorkspaceOfSandbox": WORKSPACE_OF_SANDBOX,
    "Workspace": shape_of(Summary),
    "Version": shape_of(Version),
    "Change": shape_of(Change),
    "Template": shape_of(Template),
    **TASK_SCHEMAS,
    "Output": OUTPUT,
    "Event": EVENT,
    "Network": shape_of(Network),
    "EgressRow": EGRESS_ROW,
    "EgressOpen": EGRESS_OPEN,
    "Key": shape_of(Key),
    "Host": HOST,
    "Error": ERROR,
}


def with_fields(schema: Schema, **more: Schema) -> Schema:
    """A closed object with some fields more."""
    return closed({**schema["properties"], **more})


NEW_KEY = with_fields(SCHEMAS["Key"], secret=TEXT)

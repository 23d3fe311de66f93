"""Operations on sandboxes as such: make, find, pause, end."""

from contract import asked
from contract.keys import Scope
from contract.models import USUAL_SHAPES, USUAL_TIMEOUT_S, CreateSandbox
from contract.schema import closed, or_null
from gateway.operations import views
from gateway.operations.codes import BODY, FOUND, GUEST, HOSTS, QUERY, STORE, WORKSPACE, together
from gateway.operations.operation import JSON, PLAIN, STREAM, ZSTD, Header, Operation, Reply, json_reply

ONE = "/v1/sandboxes/{sandbox_id}"
GO_ON = (
    *("get_sandbox", "pause_sandbox", "resume_sandbox", "hibernate_sandbox", "set_timeout", "destroy_sandbox"),
    *("get_health", "get_logs"),
    *("get_events", "run_command", "read_file", "write_file", "set_port", "link_port", "attach"),
    *("get_network", "set_network", "get_egress"),
)


def _usual(name: str) -> str:
    """What a field of the size is without being asked for."""
    return ", ".join(f"{getattr(shape, name)} for {shape.image}" for shape in USUAL_SHAPES)


CREATE_MEANS = {
    "image": "what is in the machine; without it, the default of the host",
    "vcpus": f"processors; without it, as many as the image says: {_usual('vcpus')}",
    "memory_mb": f"memory; without it, as much as the image says: {_usual('memory_mb')}",
    "disk_mb": f"room for what is written; without it, as much as the image says: {_usual('disk_mb')}",
    "timeout_sec": "then its time is up; a resume begins it anew. Without it, as your operator has it for you or for "
    f"all: {USUAL_TIMEOUT_S} seconds, unless that was changed",
    "on_timeout": "what happens then; without it, `destroy`, unless your operator has another rule for you",
    "idle_sec": "pause it after so long without a request, an open terminal or output; without it, never",
    "hibernate_sec": "put it into the object store after so long in pause; without it, never",
    "hibernate_kind": "what goes there then: `machine`, all that it is, or `files` alone; without it, `machine`",
    "paused_sec": "destroy it after so long in pause, on disk or in the store; without it, never",
    "auto_resume": "whether a command, a file, a terminal or a look at its log brings it back from a pause",
    "env": "variables for every command in it; never shown again",
    "metadata": "texts of yours, shown with the sandbox",
    "public_ports": "ports that anybody may reach by their preview address, without a key",
    "network": "what it may reach; without it, what your key, the image or the host says: nothing, unless that was "
    "changed. The fields are those of `PUT …/network`",
    "workspace": "a name of yours: what was saved under it last is in /workspace when this is answered, and what is "
    "there at the end is saved under it. Without it, nothing is saved",
    "template": "what /workspace begins with, if there is no workspace or nothing was saved of it yet",
}

# What files alone may be refused for, besides.
FILES_ALONE = {409: ("run_under_way",), 413: ("archive_too_large",), 502: ("bad_archive",)}

SANDBOXES = (
    Operation(
        "create_sandbox",
        "POST",
        "/v1/sandboxes",
        "Sandboxes",
        "Make a sandbox",
        {
            201: json_reply(
                "the sandbox, running",
                views.ref("Sandbox"),
                headers={
                    "Location": "where it is",
                    "Idempotent-Replayed": "true, if this is the reply of an earlier request",
                },
                links=GO_ON,
            )
        },
        Scope.SANDBOXES,
        about="Every field is optional. A shape that a host has not had yet is booted first, which takes seconds. "
        "With an `Idempotency-Key`, the same request again gets the same reply for 24 hours, and makes nothing new.",
        body=CreateSandbox.read,
        has_limits=True,
        means=CREATE_MEANS,
        headers={"Idempotency-Key": Header("what you like; another one for every new sandbox", asked.IDEMPOTENCY_KEY)},
        errors=together(
            BODY, GUEST, WORKSPACE, {500: ("create_failed",), 422: ("key_reused",), 429: ("pool_exhausted",)}
        ),
        example={"image": "python", "timeout_sec": 3600, "metadata": {"team": "red"}},
    ),
    Operation(
        "list_sandboxes",
        "GET",
        "/v1/sandboxes",
        "Sandboxes",
        "List sandboxes, newest first",
        {
            200: json_reply(
                "a page",
                closed(
                    {
                        "sandboxes": views.listed(views.ref("Sandbox")),
                        "next": {**or_null(views.TEXT), "description": "`before` of the next page"},
                        "incomplete": views.listed(views.TEXT),
                    }
                ),
            )
        },
        Scope.SANDBOXES,
        about="`incomplete` names the hosts that could not be asked.",
        query=asked.ListAsked.read,
        means={
            "state": "only those in one of these states; without it, all but the stopped ones",
            "image": "only those of this image",
            "metadata": "only those with this in their metadata",
            "before": "`next` of the page before",
            "limit": "how many on a page",
            "owner": "for an admin: another owner's, or everybody's with `*`",
        },
        errors=together(QUERY, HOSTS),
        example="state=running,paused&metadata.team=red&limit=50",
    ),
    Operation(
        "get_sandbox",
        "GET",
        ONE,
        "Sandboxes",
        "Look at a sandbox",
        {200: json_reply("the sandbox", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        errors=FOUND,
    ),
    Operation(
        "destroy_sandbox",
        "DELETE",
        ONE,
        "Sandboxes",
        "Destroy a sandbox",
        {200: json_reply("the sandbox, stopped; a second time too", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="Its workspace, if it has one, is saved first. If that cannot be done, this is answered with 503 "
        "`workspace_unsaved`: the sandbox is there still, and ends as soon as it can be saved.",
        query=asked.is_discarded,
        means={"discard": "1: end it now, whatever was not saved of its workspace is lost"},
        errors=together(QUERY, GUEST, WORKSPACE),
        example="discard=0",
    ),
    Operation(
        "pause_sandbox",
        "POST",
        f"{ONE}/pause",
        "Sandboxes",
        "Pause a sandbox: its memory goes to disk",
        {200: json_reply("the sandbox, paused", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="A paused sandbox uses no memory and no processor. Takes seconds. What is under way in it ends with 409 "
        "`sandbox_paused`; its programs go on when it is resumed. Pausing a paused one changes nothing.",
        body=asked.nothing,
        errors=together(BODY, GUEST),
    ),
    Operation(
        "resume_sandbox",
        "POST",
        f"{ONE}/resume",
        "Sandboxes",
        "Resume a paused or hibernated sandbox",
        {200: json_reply("the sandbox, running", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="One that hibernates is fetched from the object store first; one of which only files were kept comes "
        "back in a fresh machine. If a part of it is missing or damaged there, the error names the part, and the "
        "sandbox stays as it is.",
        body=asked.nothing,
        errors=together(BODY, GUEST, STORE),
    ),
    Operation(
        "hibernate_sandbox",
        "POST",
        f"{ONE}/hibernate",
        "Sandboxes",
        "Put a sandbox into the object store",
        {200: json_reply("the sandbox, hibernated", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="One that runs is paused first. It is written to the store, read back from there, and only then removed "
        "from its host's disk; if that fails, it is paused. Only what it changed is stored. A resume brings it back, "
        "with all that ran. Doing it twice changes nothing. With `files` its programs are ended (SIGTERM, five "
        "seconds, SIGKILL) and only its files are stored, which is much less; a resume is a fresh machine of the same "
        "image with those files, the same id, environment, network and ports, and nothing that ran. If that fails, it "
        "runs on without its programs.",
        body=asked.hibernate_kind,
        means={"kind": "what of it: `machine`, all that it is, or `files` alone"},
        example={"kind": "files"},
        errors=together(BODY, GUEST, STORE, FILES_ALONE),
    ),
    Operation(
        "recover_drive",
        "GET",
        f"{ONE}/drive",
        "Sandboxes",
        "Read the disk of a hibernated sandbox",
        {
            200: Reply(
                "an image of an ext4 file system, or an archive (tar) if only files were kept, in zstd",
                {ZSTD: views.BYTES},
                {
                    "X-Warren-Damaged": "the parts that are missing, with commas between; without it, it is whole",
                    "X-Warren-Kind": "`machine` or `files`",
                },
            )
        },
        Scope.SANDBOXES,
        about="For a sandbox that cannot be resumed: its files, without what ran. Where a part is damaged in the store "
        "there are zeros. What it had not written to its disk yet when it was paused is not in it.",
        errors=together(FOUND, STORE, {409: ("wrong_state",)}),
    ),
    Operation(
        "set_timeout",
        "POST",
        f"{ONE}/timeout",
        "Sandboxes",
        "Say when its time is up",
        {200: json_reply("the sandbox", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        body=asked.timeout_sec,
        means={"timeout_sec": "from now on"},
        errors=together(BODY, GUEST),
        example={"timeout_sec": 600},
    ),
    Operation(
        "get_health",
        "GET",
        f"{ONE}/health",
        "Sandboxes",
        "Ask the supervisor in the machine how it is",
        {200: json_reply("what it says", views.GUEST_HEALTH)},
        Scope.SANDBOXES,
        about="This is no use of the sandbox: it may grow idle all the same, and is not resumed.",
        errors=GUEST,
    ),
    Operation(
        "get_logs",
        "GET",
        f"{ONE}/logs",
        "Sandboxes",
        "Read the supervisor's log",
        {200: Reply("its last lines", {PLAIN: views.TEXT})},
        Scope.SANDBOXES,
        query=asked.log_lines,
        means={"lines": "how many of the last lines"},
        errors=together(QUERY, GUEST),
        example="lines=50",
    ),
    Operation(
        "get_events",
        "GET",
        f"{ONE}/events",
        "Sandboxes",
        "Read or follow its events",
        {
            200: Reply(
                "the events behind number `after`",
                {
                    JSON: closed({"events": views.listed(views.ref("Event"))}),
                    STREAM: views.EVENT_STREAM_TEXT,
                },
            )
        },
        Scope.SANDBOXES,
        about="With `Accept: text/event-stream` the events come as they happen, until the sandbox has ended. "
        "`Last-Event-ID` goes on where an earlier stream broke off.",
        query=asked.EventsAsked.read,
        means={"after": "the number of the last event that you have", "limit": "how many on a page"},
        errors=together(QUERY, FOUND),
        example="after=0",
    ),
)

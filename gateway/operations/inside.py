"""Operations inside a sandbox: commands, files, terminals."""

from contract import asked
from contract.keys import Scope
from contract.models import Exec
from gateway.operations import views
from gateway.operations.codes import BODY, FILE, GUEST, together
from gateway.operations.operation import JSON, OCTETS, STREAM, Header, Operation, Reply, json_reply
from gateway.operations.sandboxes import ONE

FILE_MEANS = {
    "path": "absolute, `~…`, or relative to the home of the user, without a part `..`; at most 4,096 bytes",
    "user": "who reads or writes it",
    "mode": "its permissions, in octal",
}

INSIDE = (
    Operation(
        "run_command",
        "POST",
        f"{ONE}/exec",
        "Commands and files",
        "Run a command",
        {
            200: Reply(
                "what came of it",
                {JSON: views.ref("Output"), STREAM: views.EVENT_STREAM_TEXT},
            )
        },
        Scope.SANDBOXES,
        about="The reply has the first MiB of "
        "each stream. With `Accept: text/event-stream` output comes as it is written: `start`, `stdout` and `stderr`, "
        "then `exit`, or `error` if there will be no exit. A client that leaves does not end the command.",
        body=Exec.read,
        query=asked.output_encoding,
        means={
            "cmd": "a line for `bash -lc`, or a list that starts with a program",
            "cwd": "where it runs; without it, in `/workspace`",
            "env": "variables, added to those of the sandbox",
            "user": "who runs it: `user`, or `root`",
            "stdin": "what it reads; without it, nothing",
            "timeout_sec": "then it is killed with all that it started, and the answer is 408 `deadline_passed`",
            "encoding": "of output in the stream; `base64` gives exact bytes",
        },
        errors=together(
            BODY,
            GUEST,
            {
                400: ("program_not_found", "program_not_executable", "cwd_not_found", "unknown_user", "bad_path"),
                403: ("permission_denied",),
                408: ("deadline_passed",),
                429: ("too_many_processes",),
                507: ("disk_full",),
            },
        ),
        example={"cmd": "echo hello from $(uname -n)"},
    ),
    Operation(
        "read_file",
        "GET",
        f"{ONE}/files",
        "Commands and files",
        "Download a file",
        {
            200: Reply("its bytes", {OCTETS: views.BYTES}),
            206: Reply("the part that `Range` asks for", {OCTETS: views.BYTES}, {"Content-Range": "which part"}),
        },
        Scope.SANDBOXES,
        query=asked.FileAsked.read,
        means=FILE_MEANS,
        headers={"Range": Header("bytes=FIRST-LAST")},
        errors=FILE,
        example="path=/etc/os-release",
    ),
    Operation(
        "write_file",
        "PUT",
        f"{ONE}/files",
        "Commands and files",
        "Upload a file",
        {200: json_reply("what was written", views.UPLOADED)},
        Scope.SANDBOXES,
        about="The body becomes the file, of any size; folders above it are made. "
        "`Content-Range: bytes FIRST-LAST/*` writes a part.",
        upload="the file's bytes",
        query=asked.FileAsked.read_upload,
        means=FILE_MEANS,
        headers={"Content-Range": Header("bytes FIRST-LAST/*", r"bytes [0-9]{1,15}-[0-9]{1,15}/\*")},
        errors=together(FILE, {409: ("already_exists",), 507: ("disk_full",)}),
        example="path=/workspace/hello.txt",
    ),
    Operation(
        "set_port",
        "PUT",
        f"{ONE}/ports/{{port}}",
        "Ports",
        "Open a port to everybody, or close it",
        {200: json_reply("the sandbox", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="A port that is not public can be reached with a key of the owner, or by a link.",
        body=asked.is_public,
        means={"public": "whether anybody may reach it by its preview address"},
        errors=together(BODY, GUEST),
        example={"public": True},
    ),
    Operation(
        "link_port",
        "POST",
        f"{ONE}/ports/{{port}}/link",
        "Ports",
        "Get a link to a port that is not public",
        {200: json_reply("the link, and when it is over", views.LINK)},
        Scope.SANDBOXES,
        about="Whoever opens it in a browser sees what the port serves, until the link is over. Nobody can take it "
        "back before that, but with the sandbox.",
        body=asked.link_life_s,
        means={"expires_sec": "for how long it is good, in seconds"},
        errors=together(BODY, GUEST),
        example={"expires_sec": 3600},
    ),
    Operation(
        "attach",
        "POST",
        f"{ONE}/attach",
        "Terminals",
        "Get a ticket for a terminal at the host itself",
        {200: json_reply("where to connect, and with what", views.ATTACHMENT)},
        Scope.SANDBOXES,
        about="The ticket is good for one connection, in the header `Warren-Ticket` or as `?ticket=`.",
        body=asked.nothing,
        errors=together(BODY, GUEST),
    ),
    Operation(
        "terminal",
        "WS",
        f"{ONE}/terminal",
        "Terminals",
        "A terminal in the sandbox",
        {101: Reply("a WebSocket")},
        Scope.SANDBOXES,
        about="Binary frames are bytes, both ways. Text frames are JSON: `start` first, `exit` or `error` last; from "
        "the client `resize` with `cols` and `rows`. Leaving detaches: `?pid=` attaches again.",
        errors=GUEST,
        example="cols=120&rows=40",
    ),
)

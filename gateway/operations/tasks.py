"""Operations on tasks: what an agent is to do, how it gets on, and what it has done."""

from typing import Any

from contract import asked
from contract.fields import Fields
from contract.keys import Scope
from contract.models import ShapeLimits
from contract.schema import closed, or_null
from contract.tasks import ASKABLE, CreateTask, Input
from gateway.operations import views
from gateway.operations.codes import BODY, FOUND, GUEST, HOSTS, QUERY, Codes, together
from gateway.operations.operation import (
    DIFF,
    JSON,
    OCTETS,
    PLAIN,
    PNG,
    STREAM,
    ZSTD,
    Header,
    Operation,
    Reply,
    json_reply,
)

ALL = "/api/v1/tasks"
ONE = f"{ALL}/{{task_id}}"
ABOUT = (
    *("get_task", "get_task_events", "get_task_steps", "stop_task", "pause_task", "resume_task", "input_task"),
    *("get_task_diff", "list_artifacts", "read_archive", "retry_task"),
)
CREATE: Codes = {
    404: ("not_found",),
    409: ("exists",),
    422: ("key_reused",),
    429: ("pool_exhausted",),
    500: ("ledger_failed",),
    503: ("no_capacity", "draining", "host_pressure", "ledger_full", "not_ready"),
}
MOVED: Codes = together(BODY, GUEST)
TASK_MEANS = {
    "prompt": "what is to be done, in words",
    "agent": "who does it. `mock` does what the lines of the prompt say: for trying out, and for tests",
    "model": "of the agent; without it, the agent's own choice",
    "repo": "the repository to work in; without it, the workspace is empty. A password in it is never shown again",
    "ref": "the branch, tag or commit to begin with; without it, the repository's own",
    "depth": "how many commits of the past are cloned; 0: all",
    "branch": "what the work is committed on; without it, `warren/` and the task's id",
    "push": "push that branch at the end",
    "image": "what is in the machine; without it, `agent`, and for `mock` the default of the host",
    "vcpus": "processors; without it, as many as the image says",
    "memory_mb": "memory; without it, as much as the image says",
    "disk_mb": "room for what is written; without it, as much as the image says",
    "network": "what the machine may reach; the repository's host and the agent's are added, unless the policy is "
    "`deny` by name. The fields are those of `PUT …/network`",
    "env": "variables of the agent; never shown again",
    "secrets": "names of secrets that your operator keeps for you: they become variables of the agent",
    "caps": "what ends it: tool calls, tokens, dollars, seconds of work, bytes that the agent prints",
    "loop": "so often may the same change, or the same failure, come again before it is ended; 0: as often as it likes",
    "approvals": "what waits for your word: tools and command lines by their patterns (with "
    f"{' and '.join(ASKABLE)} only), the push, hosts that the policy refuses, and whenever so much more was spent. A "
    "machine that waits for longer than `pause_after_sec` is saved to disk",
    "checkpoint": "its work is kept in the store after so many steps or minutes, and after each commit; both 0: never",
    "workspace": "in place of a repository: a name of yours. What was saved under it last is what the agent begins "
    "with, and what is there at the end is saved under it",
    "retries": "so many machines may be lost, and it goes on in another one; without it, as many as the host says",
    "keep_minutes": "keep the sandbox for so long after the end",
    "webhook": "who is told of the end. The secret signs what is sent, and is never shown",
    "metadata": "texts of yours, shown with the task",
    "retry_of": "an earlier task: this one is made on its host, and gets what secrets of it are not given here",
}
FILES = dict.fromkeys((OCTETS, PLAIN, DIFF, PNG, ZSTD), views.BYTES)
EXAMPLE: dict[str, Any] = {"agent": "mock", "prompt": "Say hello.\nedit HELLO.md hello"}
NEW = json_reply(
    "the task, queued",
    views.ref("Task"),
    headers={"Location": "where it is", "Idempotent-Replayed": "true, if this is the reply of an earlier request"},
    links=ABOUT,
    linked="task_id",
)
IDEMPOTENCY = {"Idempotency-Key": Header("what you like; another one for every new task", asked.IDEMPOTENCY_KEY)}
LIST_MEANS = {
    "state": "only those in one of these states",
    "agent": "only those of this agent",
    "before": "`next` of the page before",
    "limit": "how many on a page",
    "owner": "for an admin: another owner's, or everybody's with `*`",
}


def any_of_create(fields: Fields, limits: ShapeLimits) -> None:
    """The fields of a create, none of which is required."""
    for name in ("prompt", "agent"):
        fields.has(name)
    CreateTask.read(fields, limits)


def _move(name: str, what: str, comes_to: str, about: str = "") -> Operation:
    path = f"{ONE}/{name.partition('_')[0]}"
    replies = {200: json_reply(comes_to, views.ref("Task"))}
    return Operation(
        name, "POST", path, "Tasks", what, replies, Scope.TASKS, about=about, body=asked.nothing, errors=MOVED
    )


TASKS = (
    Operation(
        "create_task",
        "POST",
        ALL,
        "Tasks",
        "Have an agent do something",
        {202: NEW},
        Scope.TASKS,
        about="The task is accepted and begins when there is room for its machine. At most 8 MiB. With an "
        "`Idempotency-Key`, the same request again gets the same reply for 24 hours, and makes nothing new.",
        body=CreateTask.read,
        has_limits=True,
        means=TASK_MEANS,
        headers=IDEMPOTENCY,
        errors=together(BODY, HOSTS, CREATE),
        example=EXAMPLE,
    ),
    Operation(
        "list_tasks",
        "GET",
        ALL,
        "Tasks",
        "List tasks, newest first",
        {
            200: json_reply(
                "a page",
                closed(
                    {
                        "tasks": views.listed(views.ref("Task")),
                        "next": {**or_null(views.TEXT), "description": "`before` of the next page"},
                        "incomplete": views.listed(views.TEXT),
                    }
                ),
            )
        },
        Scope.TASKS,
        about="`incomplete` names the hosts that could not be asked.",
        query=asked.TasksAsked.read,
        means=LIST_MEANS,
        errors=together(QUERY, HOSTS),
        example="state=running,paused&limit=50",
    ),
    Operation(
        "get_task",
        "GET",
        ONE,
        "Tasks",
        "Look at a task",
        {200: json_reply("the task", views.ref("Task"))},
        Scope.TASKS,
        about="`waiting` has the questions that are open: `input` answers them.",
        errors=FOUND,
    ),
    Operation(
        "get_task_events",
        "GET",
        f"{ONE}/events",
        "Tasks",
        "Read or follow what happens",
        {
            200: Reply(
                "the events behind number `after`",
                {
                    JSON: closed({"events": views.listed(views.ref("Event"))}),
                    STREAM: views.EVENT_STREAM_TEXT,
                },
            )
        },
        Scope.TASKS,
        about="With `Accept: text/event-stream` the events come as they happen; `task.completed`, `task.failed` or "
        "`task.stopped` of the host is the last one. `Last-Event-ID` goes on where an earlier stream broke off.",
        query=asked.EventsAsked.read,
        means={"after": "the number of the last event that you have", "limit": "how many on a page"},
        errors=together(QUERY, FOUND),
        example="after=0",
    ),
    Operation(
        "get_task_steps",
        "GET",
        f"{ONE}/steps",
        "Tasks",
        "Read its steps: each a thought and a tool call",
        {200: json_reply("the steps behind number `after`", closed({"steps": views.listed(views.ref("Step"))}))},
        Scope.TASKS,
        query=asked.EventsAsked.read,
        means={"after": "the number of the last step that you have", "limit": "how many on a page"},
        errors=together(QUERY, FOUND),
        example="after=0&limit=50",
    ),
    _move("stop_task", "Stop a task", "the task; one that has ended stays as it is", "What it did so far is kept."),
    _move("pause_task", "Pause a task: its machine goes to disk", "the task, paused"),
    _move("resume_task", "Resume a paused task", "the task"),
    Operation(
        "input_task",
        "POST",
        f"{ONE}/input",
        "Tasks",
        "Answer a question of a task, or tell it something",
        {200: json_reply("the task", views.ref("Task"))},
        Scope.TASKS,
        about="409 `not_waiting` if no question of that id is open. The same answer again changes nothing.",
        body=Input.read,
        means={
            "kind": "`approve` or `reject` what it wants to do, `answer` its question, or `instruct` it unasked",
            "id": "of the question, as `waiting` has it; not for `instruct`",
            "text": "the answer or the instruction, or why something is rejected",
        },
        errors=together(MOVED, {409: ("not_waiting", "not_possible")}),
        example={"kind": "approve", "id": "ap-1"},
    ),
    Operation(
        "get_task_diff",
        "GET",
        f"{ONE}/diff",
        "Tasks",
        "What it changed, as a patch",
        {
            200: Reply(
                "the change so far, or in the end",
                {PLAIN: views.TEXT},
                {"Warren-Truncated": "true, if there was more than 16 MiB of it"},
            )
        },
        Scope.TASKS,
        errors=GUEST,
    ),
    Operation(
        "list_artifacts",
        "GET",
        f"{ONE}/artifacts",
        "Tasks",
        "List its files: long outputs, screenshots",
        {200: json_reply("all of them", closed({"artifacts": views.listed(views.ref("Artifact"))}))},
        Scope.TASKS,
        errors=FOUND,
    ),
    Operation(
        "read_artifact",
        "GET",
        f"{ONE}/artifacts/{{name}}",
        "Tasks",
        "Download one of its files",
        {
            200: Reply("its bytes", FILES),
            206: Reply("the part that `Range` asks for", FILES, {"Content-Range": "which part"}),
        },
        Scope.TASKS,
        headers={"Range": Header("bytes=FIRST-LAST")},
        errors=together(FOUND, {404: ("not_found", "no_such_route"), 416: ("bad_range",)}),
    ),
    Operation(
        "read_archive",
        "GET",
        f"{ONE}/archive",
        "Tasks",
        "Download its workspace, as it was at the end",
        {
            200: Reply("`workspace.tar.zst`", {ZSTD: views.BYTES}),
            206: Reply("the part that `Range` asks for", {ZSTD: views.BYTES}, {"Content-Range": "which part"}),
        },
        Scope.TASKS,
        about="404 until there is one.",
        headers={"Range": Header("bytes=FIRST-LAST")},
        errors=together(FOUND, {416: ("bad_range",)}),
    ),
    Operation(
        "retry_task",
        "POST",
        f"{ONE}/retry",
        "Tasks",
        "Try it again, as a new task",
        {202: NEW},
        Scope.TASKS,
        about="As it was asked for, with the body's fields in place of those of the first. It is made on the same "
        "host, where its secrets are: if that takes no task, say so and come back, or create a task with its secrets. "
        "Another agent or image comes with its own machine.",
        body=any_of_create,
        has_limits=True,
        means=TASK_MEANS,
        headers=IDEMPOTENCY,
        errors=together(BODY, FOUND, CREATE),
        example={"caps": {"usd": 5}},
    ),
)

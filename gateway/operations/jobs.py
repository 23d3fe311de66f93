"""Operations on jobs: the same tasks, in the words that others use for them."""

from dataclasses import dataclass, field
from typing import Any

from contract import asked
from contract.fields import NOT_BLANK, Fields
from contract.keys import Scope
from contract.query import Query
from contract.schema import closed, or_null
from contract.tasks import AGENTS, MAX_PROMPT_CHARS, MAX_RULES, MAX_URL_CHARS, REF, SECRET_NAME, URL
from gateway.operations import views
from gateway.operations.codes import BODY, FOUND, HOSTS, QUERY, together
from gateway.operations.operation import STREAM, Operation, Reply, json_reply
from gateway.operations.tasks import CREATE, IDEMPOTENCY, LIST_MEANS, MOVED

ALL = "/api/v1/jobs"
ONE = f"{ALL}/{{job_id}}"


@dataclass(frozen=True)
class JobAsked:
    """A request for a job."""

    repo: str | None = field(repr=False)  # it may have a password in it
    prompt: str = field(repr=False)
    agent: str | None
    model: str | None
    ref: str | None
    branch: str | None
    push: bool
    secrets: list[str]

    @classmethod
    def read(cls, fields: Fields) -> "JobAsked":
        return cls(
            repo=fields.text("repoUrl", max_chars=MAX_URL_CHARS, pattern=URL, default=None),
            prompt=fields.text("taskDesc", max_chars=MAX_PROMPT_CHARS, pattern=NOT_BLANK),
            agent=fields.text("agent", max_chars=16, choices=AGENTS, default=None),
            model=fields.text("model", max_chars=128, pattern=r"[!-~]{1,128}", default=None),
            ref=fields.text("ref", max_chars=200, pattern=REF, default=None),
            branch=fields.text("branch", max_chars=200, pattern=REF, default=None),
            push=fields.flag("push", default=False),
            secrets=fields.text_list("secrets", max_chars=64, max_count=MAX_RULES, pattern=SECRET_NAME),
        )

    def task(self, agent: str) -> dict[str, Any]:
        """The body of the task that it is; `agent` does it if none is named."""
        return {**vars(self), "agent": self.agent or agent}


def events_after(query: Query) -> int:
    return query.integer("after", low=0, high=asked.MAX_NUMBER, default=0)


JOBS = (
    Operation(
        "create_job",
        "POST",
        ALL,
        "Jobs",
        "Have an agent work, on a repository",
        {
            202: json_reply(
                "the job, queued",
                views.ref("Job"),
                headers={
                    "Location": "where it is",
                    "Idempotent-Replayed": "true, if this is the reply of an earlier request",
                },
                links=("get_job", "stop_job"),
                linked="job_id",
                pointer="/jobId",
            )
        },
        Scope.TASKS,
        about="A job is a task: its id opens `/api/v1/tasks/…` as well, where there is more to ask for.",
        body=JobAsked.read,
        means={
            "repoUrl": "the repository; without it, the workspace is empty. A password in it is never shown again",
            "taskDesc": "what is to be done, in words",
            "agent": "who does it; without it, as your operator has it: `claude`, unless that was changed",
            "model": "of the agent; without it, the agent's own choice",
            "ref": "the branch, tag or commit to begin with; without it, the repository's own",
            "branch": "what the work is committed on; without it, `warren/` and the job's id",
            "push": "push that branch at the end",
            "secrets": "names of secrets that your operator keeps for you: they become variables of the agent",
        },
        headers=IDEMPOTENCY,
        errors=together(BODY, HOSTS, CREATE),
        example={"repoUrl": "https://git.example.com/shop.git", "taskDesc": "Mend the test.", "branch": "agent/mend"},
    ),
    Operation(
        "list_jobs",
        "GET",
        ALL,
        "Jobs",
        "List jobs, newest first",
        {
            200: json_reply(
                "a page",
                closed(
                    {
                        "jobs": views.listed(views.ref("Job")),
                        "next": {**or_null(views.TEXT), "description": "`before` of the next page"},
                        "incomplete": views.listed(views.TEXT),
                    }
                ),
            )
        },
        Scope.TASKS,
        query=asked.TasksAsked.read,
        means=LIST_MEANS,
        errors=together(QUERY, HOSTS),
        example="state=running",
    ),
    Operation(
        "get_job",
        "GET",
        ONE,
        "Jobs",
        "Look at a job",
        {200: json_reply("the job", views.ref("Job"))},
        Scope.TASKS,
        errors=FOUND,
    ),
    Operation(
        "stream_job",
        "GET",
        f"{ONE}/stream",
        "Jobs",
        "Follow a job",
        {200: Reply("the events of its task, as they happen", {STREAM: views.EVENT_STREAM_TEXT})},
        Scope.TASKS,
        about="The events and their numbers are those of the task: `Last-Event-ID` goes on where a stream broke off.",
        query=events_after,
        means={"after": "the number of the last event that you have"},
        errors=together(QUERY, FOUND),
        example="after=0",
    ),
    Operation(
        "stop_job",
        "POST",
        f"{ONE}/stop",
        "Jobs",
        "Stop a job",
        {200: json_reply("the job", views.ref("Job"))},
        Scope.TASKS,
        body=asked.nothing,
        errors=MOVED,
    ),
)

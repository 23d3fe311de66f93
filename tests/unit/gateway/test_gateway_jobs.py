"""Jobs are tasks in other words; a second try is the first with changes."""

import jsonschema_rs
import pytest

from contract.errors import BadField
from contract.fields import Fields
from contract.models import ShapeLimits
from contract.task_states import TaskState
from contract.tasks import Approvals, Caps, CreateTask, Loop, Task
from gateway.handlers.jobs import job, read_asked
from gateway.handlers.tasks import again_of
from gateway.openapi import document
from gateway.operations import OPERATIONS
from gateway.operations.jobs import JobAsked

LIMITS = ShapeLimits(8, 8192, 8192)
ASKED = {"repoUrl": "https://git.example.com/a.git", "taskDesc": "Mend it."}
SHAPES = document(OPERATIONS, LIMITS, version="1")["components"]["schemas"]


def task(**more: object) -> Task:
    values: dict[str, object] = {
        "id": "tk-aaaaaaaaaaaaaaaa",
        "state": TaskState.QUEUED,
        "owner": "red",
        "agent": "mock",
        "model": None,
        "prompt": "x" * 3000,
        "repo": None,
        "ref": None,
        "depth": 0,
        "branch": None,
        "push": False,
        "image": None,
        "vcpus": None,
        "memory_mb": None,
        "disk_mb": None,
        "network": None,
        "secrets": (),
        "caps": Caps(),
        "loop": Loop(),
        "approvals": Approvals(),
        "keep_minutes": 0,
        "webhook": None,
        "metadata": {},
        "retry_of": None,
        "created_ms": 1_700_000_000_123,
    }
    return Task(**{**values, **more})  # type: ignore[arg-type]


def check(name: str, value: object) -> None:
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SHAPES}}, value)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "state": TaskState.COMPLETED,
            "repo": "https://a/b",
            "sandbox": "sb-aaaaaaaaaaaaaaaa",
            "started_ms": 1_700_000_001_000,
            "ended_ms": 1_700_000_002_000,
            "result": {"summary": "done", "commits": [{"hash": "0" * 40, "subject": "x"}]},
        },
        {"state": TaskState.FAILED, "reason": {"code": "cap", "message": "200 steps", "limit": 200}},
    ],
)
def test_a_task_and_its_job_are_as_the_document_says(more: dict[str, object]) -> None:
    view = task(**more).view()
    check("Task", view)
    check("Job", job(view))


def test_a_job_tells_its_task_in_other_words() -> None:
    told = job(task(repo="https://a/b", ended_ms=0).view())
    assert (told["jobId"], told["status"], told["repoUrl"]) == ("tk-aaaaaaaaaaaaaaaa", "queued", "https://a/b")
    assert (told["createdAt"], told["startedAt"]) == ("2023-11-14T22:13:20.123Z", None)
    assert told["endedAt"] == "1970-01-01T00:00:00.000Z"
    assert told["events"] == "/api/v1/jobs/tk-aaaaaaaaaaaaaaaa/stream"


@pytest.mark.parametrize("more", [{}, {"agent": "codex", "branch": "a/b", "model": "m", "ref": "main", "push": True}])
def test_what_a_job_asks_for_is_a_good_task(more: dict[str, object]) -> None:
    asked = JobAsked.read(Fields({**ASKED, **more})).task("cursor")
    read = CreateTask.read(Fields(asked), LIMITS).checked()
    assert (read.repo, read.prompt) == (ASKED["repoUrl"], ASKED["taskDesc"])
    assert read.agent == more.get("agent", "cursor")
    assert read.push is more.get("push", False)


@pytest.mark.parametrize(("name", "value"), [("taskDesc", None), ("taskDesc", " "), ("repoUrl", "file:///etc")])
def test_a_job_that_makes_no_sense_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    with pytest.raises(BadField, match=name):
        JobAsked.read(Fields({**ASKED, name: value}))


def test_a_job_needs_no_repository() -> None:
    asked = JobAsked.read(Fields({"taskDesc": "Write a poem."})).task("mock")
    assert CreateTask.read(Fields(asked), LIMITS).checked().repo is None


def test_a_password_in_an_address_is_not_in_what_is_logged() -> None:
    asked = JobAsked.read(Fields({**ASKED, "repoUrl": "https://me:hunter2@git.example.com/a.git"}))
    assert "hunter2" not in repr(asked)


FIRST = {"agent": "mock", "prompt": "x", "image": "python", "memory_mb": 512, "caps": {"steps": 3, "wall_sec": 9}}


@pytest.mark.parametrize(
    ("changes", "comes_to"),
    [
        ({}, FIRST),
        ({"prompt": "y"}, {**FIRST, "prompt": "y"}),
        ({"caps": {"steps": 5}}, {**FIRST, "caps": {"steps": 5}}),
        ({"memory_mb": 1024}, {**FIRST, "memory_mb": 1024}),
        ({"memory_mb": None}, {**FIRST, "memory_mb": None}),
        ({"agent": "claude"}, {"agent": "claude", "prompt": "x", "caps": FIRST["caps"]}),
        ({"image": "go"}, {"agent": "mock", "prompt": "x", "image": "go", "caps": FIRST["caps"]}),
    ],
)
def test_a_second_try_is_the_first_with_changes(changes: dict[str, object], comes_to: dict[str, object]) -> None:
    assert again_of(FIRST, changes) == comes_to


def test_a_repository_that_is_refused_is_not_said_again() -> None:
    with pytest.raises(BadField) as refused:
        read_asked(b'{"repoUrl": "ssh://me:Sesame@git.example.com/a", "taskDesc": "Mend it."}')
    assert refused.value.details["field"] == "repoUrl"
    assert "Sesame" not in str(refused.value.body())

"""Tasks as they are asked for and told, and their states."""

from typing import Any

import orjson
import pytest

from contract.errors import BadField, CallerError, NotFound, WrongState
from contract.ids import home_of, task_id, task_of
from contract.models import ShapeLimits
from contract.network import Mode
from contract.task_states import ALIVE, FINAL, TRANSITIONS, TaskEvent, TaskState, step
from contract.tasks import AGENTS, Caps, CreateTask, Input, Task

LIMITS = ShapeLimits(vcpus=4, memory_mb=4096, disk_mb=8192)
ID = "tk-aaaaaaaaaaaaaaaa"


def parsed(**fields: object) -> CreateTask:
    return CreateTask.parse(orjson.dumps({"prompt": "do it", "agent": "mock", **fields}), LIMITS)


def test_a_prompt_and_an_agent_are_enough() -> None:
    asked = parsed()
    assert (asked.prompt, asked.agent, asked.caps, asked.repo) == ("do it", "mock", Caps(), None)


def test_a_prompt_of_a_megabyte_is_taken_and_one_more_character_is_not() -> None:
    assert len(parsed(prompt="ü" * (1 << 20)).prompt) == 1 << 20
    with pytest.raises(BadField, match=r"prompt: must have at most 1048576 characters, has 1048577"):
        parsed(prompt="x" * ((1 << 20) + 1))


@pytest.mark.parametrize("prompt", ["", "  \n\t", None])
def test_a_prompt_says_something(prompt: str | None) -> None:
    with pytest.raises(BadField, match="prompt"):
        parsed(prompt=prompt)


@pytest.mark.parametrize("agent", ["codex", "cursor"])
@pytest.mark.parametrize("rule", ["tools", "commands"])
def test_only_agents_that_ask_can_be_told_to_ask(agent: str, rule: str) -> None:
    with pytest.raises(BadField, match=f"approvals.{rule}: .*{agent} does not"):
        parsed(agent=agent, approvals={rule: ["rm *"]})
    assert parsed(agent="claude", approvals={rule: ["rm *"]})


@pytest.mark.parametrize("field", [{"ref": "main"}, {"push": True}, {"depth": 1}])
def test_what_is_about_a_repository_needs_one(field: dict[str, object]) -> None:
    with pytest.raises(BadField, match="needs a repo"):
        parsed(**field)
    assert parsed(repo="https://example.com/a.git", **field)


@pytest.mark.parametrize("ref", ["-x", "a..b", "a//b", "/a", "a/", "a.lock", "a b", "a~1", "a^", "a:b", "@{1}", "a\nb"])
def test_what_git_would_read_as_something_else_is_no_ref(ref: str) -> None:
    with pytest.raises(BadField, match="ref"):
        parsed(repo="https://example.com/a.git", ref=ref)


@pytest.mark.parametrize(
    "url", ["git@example.com:a/b", "ssh://example.com/a", "file:///etc", "ext::sh -c x", "http://"]
)
def test_repositories_are_reached_over_http(url: str) -> None:
    with pytest.raises(BadField, match="repo"):
        parsed(repo=url)


def test_what_may_be_secret_is_not_in_its_text() -> None:
    webhook = {"url": "http://a", "secret": "Sesame"}
    shown = repr(parsed(prompt="Sesame", repo="https://me:Sesame@a.b/c", env={"A": "Sesame"}, webhook=webhook))
    assert "Sesame" not in shown


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(CallerError, match=r"caps\.token: is not a field"):
        parsed(caps={"token": 1})


@pytest.mark.parametrize("usd", [0, -1, True, "1", 1e9])
def test_dollars_are_a_number(usd: object) -> None:
    with pytest.raises(BadField, match=r"caps\.usd: must be a number"):
        parsed(caps={"usd": usd})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"repo": "https://me:Sesame @a.b/c"}, "repo"),
        ({"repo": "ssh://me:Sesame@a.b/c"}, "repo"),
        ({"env": {"A": ["Sesame"]}}, "env.A"),
        ({"env": {"A": "Sesame" * 10_000}}, "env.A"),
        ({"webhook": {"url": "http://a", "secret": "Sesame" * 100}}, "webhook.secret"),
        ({"webhook": {"url": "http://me:Sesame @a"}}, "webhook.url"),
        ({"webhook": {"url": "http://a", "secrets": "Sesame"}}, "webhook.secrets"),
    ],
)
def test_what_may_be_secret_is_not_in_what_is_said_against_it(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as refused:
        parsed(**fields)
    assert refused.value.details["field"] == field
    assert "Sesame" not in str(refused.value.body())
    assert refused.value.__cause__ is None


def test_the_sandbox_of_a_task_gets_none_of_its_agents_environment() -> None:
    asked = parsed(env={"KEY": "Sesame"}, network={"policy": "open"}, memory_mb=512)
    sandbox = asked.sandbox(asked.network, "python")
    assert sandbox.network is not None
    assert (sandbox.env, sandbox.network.policy, sandbox.memory_mb) == ({}, Mode.OPEN, 512)


@pytest.mark.parametrize("kind", ["answer", "instruct"])
def test_an_answer_says_something(kind: str) -> None:
    with pytest.raises(BadField, match="text: is required"):
        Input.parse(orjson.dumps({"kind": kind, "id": "ap-1", "text": " "}))
    assert Input.parse(orjson.dumps({"kind": "approve", "id": "ap-1"})).text == ""


def test_a_view_has_the_beginning_of_the_prompt_and_no_more() -> None:
    task = Task(
        id=ID, state=TaskState.QUEUED, owner="me", agent="mock", model=None, prompt="x" * 5000, repo=None, ref=None,
        depth=0, branch=None, push=False, image=None, vcpus=None, memory_mb=None, disk_mb=None, network=None,
        secrets=(), caps=Caps(), loop=parsed().loop, approvals=parsed().approvals, keep_minutes=0, webhook=None,
        metadata={}, retry_of=None, created_ms=1,
    )  # fmt: skip
    view = task.view()
    assert (len(view["prompt"]), view["prompt_chars"], view["state"]) == (2000, 5000, "queued")
    orjson.dumps(view)


def test_every_state_has_a_row_and_the_final_ones_an_empty_one() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert {TaskState.COMPLETED, TaskState.FAILED, TaskState.STOPPED} == FINAL
    assert set(ALIVE) | FINAL == set(TaskState)


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("event", list(TaskEvent))
def test_a_step_is_in_the_table_or_refused(state: TaskState, event: TaskEvent) -> None:
    if event in TRANSITIONS[state]:
        assert step(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(WrongState, match=f"cannot {event} a task that is {state}"):
            step(state, event)


def test_whatever_is_alive_can_be_stopped_and_can_fail() -> None:
    for state in ALIVE:
        assert step(state, TaskEvent.STOP) is TaskState.STOPPED
        assert step(state, TaskEvent.FAIL) is TaskState.FAILED


def test_a_task_lives_where_its_sandbox_does() -> None:
    assert home_of(ID) == "sb-aaaaaaaaaaaaaaaa" == home_of(home_of(ID))
    assert task_of(home_of(ID)) == ID == task_id(ID)


@pytest.mark.parametrize("text", ["", "tk-", "sb-aaaaaaaaaaaaaaaa", "tk-AAAAAAAAAAAAAAAA", ID + "a", ID + "\n"])
def test_what_has_not_the_form_of_an_id_is_no_task(text: str) -> None:
    with pytest.raises(NotFound):
        task_id(text)


def test_all_agents_are_known() -> None:
    for agent in AGENTS:
        assert parsed(agent=agent).agent == agent
    with pytest.raises(BadField, match="agent: must be one of mock, claude, codex, cursor, got 'gpt'"):
        parsed(agent="gpt")

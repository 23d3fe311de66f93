"""Paths of tasks and jobs: which of them go to a host, as what, and for which keys."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound
from contract.keys import Scope
from contract.tickets import Access
from gateway.errors import not_found
from gateway.heads import Head, Heads
from gateway.routes import FAMILIES, PASSED, methods_of, passed_of
from gateway.upstream.parts import TARGET

TASK = "tk-aaaaaaaaaaaaaaaa"
BOX = "sb-aaaaaaaaaaaaaaaa"


def head_of(method: str, path: str, query: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()) -> Head:
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"g"), *headers],
    }
    return Heads().get(scope)


@pytest.mark.parametrize(
    ("method", "path", "target", "access"),
    [
        ("GET", f"/api/v1/tasks/{TASK}", f"/v1/tasks/{TASK}", Access.READ),
        ("GET", f"/api/v1/tasks/{TASK}/events", f"/v1/tasks/{TASK}/events", Access.READ),
        ("POST", f"/api/v1/tasks/{TASK}/input", f"/v1/tasks/{TASK}/input", Access.WRITE),
        ("POST", f"/api/v1/tasks/{TASK}/stop", f"/v1/tasks/{TASK}/stop", Access.WRITE),
        ("GET", f"/api/v1/tasks/{TASK}/artifacts/step-3.txt", f"/v1/tasks/{TASK}/artifacts/step-3.txt", Access.READ),
        ("GET", f"/api/v1/jobs/{TASK}/stream", f"/v1/tasks/{TASK}/events", Access.READ),
    ],
)
def test_what_belongs_to_a_task_goes_to_its_host_without_api(
    method: str, path: str, target: str, access: Access
) -> None:
    head = head_of(method, path, "after=3")
    assert head.way is not None
    assert (head.sandbox, head.way.target) == (TASK, f"{target}?after=3")
    assert (head.way.passed.access, head.way.scope) == (access, Scope.TASKS)
    assert head.way.is_short == (method == "GET")


def test_a_sandbox_goes_the_way_that_it_went() -> None:
    head = head_of("GET", f"/v1/sandboxes/{BOX}")
    assert head.way is not None
    assert (head.way.target, head.way.scope, head.way.is_short) == (f"/v1/sandboxes/{BOX}", Scope.SANDBOXES, True)


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/tasks/{TASK}/artifacts/../../secret",
        f"/api/v1/tasks/{TASK}/artifacts/.hidden",
        f"/api/v1/tasks/{TASK}/artifacts/a b",
        f"/api/v1/tasks/{TASK}/artifacts/",
        f"/api/v1/tasks/{TASK}/artifacts/{'a' * 129}",
        f"/api/v1/tasks/{TASK}/request",  # for gateways alone
        f"/api/v1/jobs/{TASK}/events",
        f"/v1/tasks/{TASK}",
    ],
)
def test_no_other_path_reaches_a_host(path: str) -> None:
    assert passed_of("GET", path)[1] is None


@pytest.mark.parametrize("text", [BOX, "tk-AAAAAAAAAAAAAAAA", "tk-aaaaaaaaaaaaaaa1", "tk-aaaaaaaaaaaaaaaa/"[:18] + "é"])
def test_what_is_no_id_of_a_task_takes_the_long_way_and_is_not_found(text: str) -> None:
    head = head_of("GET", f"/api/v1/tasks/{text}")
    assert head.way is not None
    assert not head.way.is_short
    with pytest.raises(NotFound):
        head.way.passed.family.checked(head.sandbox or "")


@given(st.text(max_size=60))
def test_no_target_needs_escaping_once_its_id_is_checked(rest: str) -> None:
    for family in FAMILIES:
        kind = TASK if family.form.fullmatch(TASK) else BOX
        for method in ("GET", "POST", "PUT", "WS"):
            path = f"{family.prefix}{kind}{rest}"
            _, passed = passed_of(method, path)
            if passed is not None:
                assert TARGET.fullmatch(passed.target(path))


def test_a_job_is_always_a_stream_whatever_its_client_accepts() -> None:
    path = f"/api/v1/jobs/{TASK}/stream"
    for given_headers in ((), ((b"accept", b"application/json"),), ((b"accept", b"a/b"), (b"accept", b"c/d"))):
        way = head_of("GET", path, headers=given_headers).way
        assert way is not None
        assert way.asked is not None
        assert [value for name, value in way.asked.headers if name == b"accept"] == [b"text/event-stream"]


def test_every_passed_path_has_one_answer() -> None:
    seen = {(each.family.prefix, each.method, each.rest) for each in PASSED}
    assert len(seen) == len(PASSED)
    for each in PASSED:
        path = re.sub(r"{(\w+)}", lambda word: {"port": "80", "name": "a.txt"}.get(word[1], TASK), each.path)
        assert passed_of(each.method, path) == (TASK, each)


def test_methods_of_a_task_are_told_to_who_asks_with_another() -> None:
    assert methods_of(f"/api/v1/tasks/{TASK}/stop") == {"POST"}
    assert methods_of("/api/v1/tasks") == {"GET", "POST"}
    assert methods_of(f"/api/v1/jobs/{TASK}/stream") == {"GET"}


def test_who_is_not_found_is_called_by_its_kind() -> None:
    assert not_found(TASK).body()["error"]["task"] == TASK
    assert not_found(BOX).body()["error"]["sandbox"] == BOX

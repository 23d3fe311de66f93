"""Whatever a caller sends: a 4xx with a code, never a 5xx, and the sandbox answers afterwards."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.vm.client import Api, Sandbox

LONG = "x" * 5_000
NO_SUCH_ID = "sb-" + "a" * 16


@pytest.fixture(autouse=True)
def _the_sandbox_still_answers(shared: Sandbox) -> Iterator[None]:
    yield
    assert shared.run(["echo", "alive"])["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "no-such-image"},
        {"image": "../minimal"},
        {"image": ""},
        {"image": 7},
        {"image": LONG},
        {"vcpus": -1},
        {"vcpus": 0},
        {"vcpus": 1.5},
        {"vcpus": "1"},
        {"vcpus": True},
        {"vcpus": 10**30},
        {"memory_mb": -256},
        {"memory_mb": 1 << 40},
        {"memory_mb": 257},
        {"disk_mb": -1},
        {"disk_mb": 10**9},
        {"timeout_sec": -5},
        {"timeout_sec": 0},
        {"env": ["A=1"]},
        {"env": {"A": 1}},
        {"env": {"A=B": "1"}},
        {"env": {"": "1"}},
        {"env": {"A": "a\0b"}},
        {"metadata": "text"},
        {"metadata": {"k": None}},
        {"metadata": {"k": LONG}},
        {"metadata": {str(n): "" for n in range(1000)}},
        {"imgae": "minimal"},
    ],
    ids=lambda fields: json.dumps(fields)[:40],
)
def test_a_creation_that_makes_no_sense_is_refused_and_creates_nothing(api: Api, fields: dict[str, Any]) -> None:
    before = api.ids()
    reply = api.post("/v1/sandboxes", **fields)
    assert reply.refusal[0] == 400, reply
    assert reply.json["error"]["message"]
    assert len(reply.body) < 1000
    assert api.ids() == before


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"cmd": "\\ud800"}', b'{"cmd": "true", "cmd": 7}'],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_is_no_request_is_refused(shared: Sandbox, body: bytes) -> None:
    for path in (f"{shared.path}/exec", "/v1/sandboxes"):
        assert shared.api.call("POST", path, body).refusal[0] == 400


def test_ten_megabytes_of_json_are_refused(shared: Sandbox) -> None:
    body = json.dumps({"cmd": "x" * 10_000_000}).encode()
    for path in (f"{shared.path}/exec", "/v1/sandboxes"):
        assert shared.api.call("POST", path, body).refusal == (413, "body_too_large")
        endless = (b"x" * 100_000 for _ in range(100))
        assert shared.api.call("POST", path, endless).refusal == (413, "body_too_large")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cmd": ""},
        {"cmd": " "},
        {"cmd": []},
        {"cmd": [""]},
        {"cmd": [1]},
        {"cmd": 7},
        {"cmd": {"a": 1}},
        {"cmd": "a\0b"},
        {"cmd": ["true"] * 5_000},
        {"cmd": "x" * 200_000},
        {"cmd": "true", "timeout_sec": -1},
        {"cmd": "true", "timeout_sec": "1"},
        {"cmd": "true", "cwd": LONG},
        {"cmd": "true", "cwd": "/a\0b"},
        {"cmd": "true", "user": "../root"},
        {"cmd": "true", "user": LONG},
        {"cmd": "true", "env": {"A": 7}},
        {"cmd": "true", "stdin": 7},
        {"cmd": "true", "shell": True},
    ],
    ids=lambda fields: json.dumps(fields)[:40],
)
def test_a_command_that_makes_no_sense_is_refused(shared: Sandbox, fields: dict[str, Any]) -> None:
    assert shared.api.post(f"{shared.path}/exec", **fields).refusal[0] == 400


def test_an_encoding_that_there_is_not_is_refused(shared: Sandbox) -> None:
    reply = shared.api.call(
        "POST", f"{shared.path}/exec?encoding=ebcdic", b'{"cmd": "true"}', {"Accept": "text/event-stream"}
    )
    assert reply.refusal == (400, "bad_field")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "path=",
        "path=/workspace/../etc/passwd",
        "path=..",
        "path=%2e%2e%2fetc",
        "path=/workspace/a%00b",
        f"path=/{LONG}",
        "path=/" + "a/" * 2_500,
        "path=/" + "n" * 300,
        "path=%ff%fe",
        "path=/etc/hostname&user=" + quote("no user"),
        "path=/etc/hostname&user=nobody-here",
        "path=/workspace/a&mode=9999",
        "path=/workspace/a&mode=-1",
        "path=/workspace/a&mode=077777",
    ],
    ids=lambda query: query[:40],
)
def test_a_path_that_makes_no_sense_is_refused(shared: Sandbox, query: str) -> None:
    for method, body in (("GET", None), ("PUT", b"data")):
        status, code = shared.api.call(method, f"{shared.path}/files?{query}", body).refusal
        assert 400 <= status < 500, (method, code)


@pytest.mark.parametrize("header", ["bytes 5-2/*", "bytes 0-99/*", "bytes a-b/*", "furlongs 0-3/*", "", "bytes 0-3"])
def test_a_part_that_makes_no_sense_is_refused_and_nothing_is_written(shared: Sandbox, header: str) -> None:
    shared.put("/workspace/kept", b"kept")
    reply = shared.put("/workspace/kept", b"data", {"Content-Range": header})
    assert 400 <= reply.refusal[0] < 500
    assert shared.get("/workspace/kept").body == b"kept"


@pytest.mark.parametrize(
    "sandbox_id", [NO_SUCH_ID, "sb-short", "..", "%2e%2e", "a" * 500, "sb-%00", "SB-" + "a" * 16, "%ff", "sb-ä"]
)
def test_a_sandbox_that_there_is_not_is_not_found(shared: Sandbox, sandbox_id: str) -> None:
    path = f"/v1/sandboxes/{quote(sandbox_id, safe='%')}"
    calls = [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/health"),
        ("GET", "/files?path=/etc/passwd"),
        ("PUT", "/files?path=/a"),
    ]
    for method, rest in calls:
        assert shared.api.call(method, path + rest).refusal[0] == 404
    assert shared.api.call("POST", f"{path}/exec", b'{"cmd": "true"}').refusal[0] == 404


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=1001", "limit=x", "limit=", "state=asleep", "state=", "state=running,"]
)
def test_a_list_that_makes_no_sense_is_refused(api: Api, query: str) -> None:
    assert api.call("GET", f"/v1/sandboxes?{query}").refusal == (400, "bad_field")


def test_an_unknown_route_and_a_wrong_method_are_refused(shared: Sandbox) -> None:
    assert shared.api.call("GET", f"{shared.path}/secrets").refusal == (404, "no_such_route")
    assert shared.api.call("PATCH", shared.path, b"{}").refusal == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "[]",
        "{}",
        '{"type": "dance"}',
        '{"type": "resize"}',
        '{"type": "resize", "cols": -1, "rows": 5}',
        '{"type": "resize", "cols": 80, "rows": 100000}',
        '{"type": "resize", "cols": 80, "rows": 24, "depth": 3}',
        "x" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_terminal_closes_on_a_message_that_makes_no_sense_and_says_why(shared: Sandbox, text: str) -> None:
    with shared.terminal() as terminal:
        pid = terminal.told()["pid"]
        terminal.says(text)
        told = terminal.told()
        assert told["type"] == "error"
        assert told["error"]["code"] in ("bad_request", "bad_field")
        assert terminal.closed()[0] == 4400
    shared.run(["kill", "-9", str(pid)])


@pytest.mark.parametrize("query", [{"cols": 0}, {"rows": "x"}, {"pid": "x"}, {"pid": 99999}, {"user": "a b"}])
def test_a_terminal_that_makes_no_sense_is_refused_with_a_message(shared: Sandbox, query: dict[str, Any]) -> None:
    with shared.terminal(**query) as terminal:
        assert terminal.told()["type"] == "error"
        assert terminal.closed()[0] == 4400

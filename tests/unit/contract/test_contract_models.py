"""Requests: whatever a caller sends is understood, or refused with the field and the value."""

import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.errors import BadField, CallerError, CapacityError, NotFound, TooLarge, shown
from contract.fields import Fields
from contract.ids import SANDBOX, new_id, sandbox_id
from contract.models import (
    MAX_ENV,
    MAX_METADATA,
    MAX_METADATA_CHARS,
    MAX_TIMEOUT_S,
    CreateSandbox,
    Exec,
    Rules,
    RulesAsked,
    Sandbox,
    Shape,
    ShapeLimits,
    file_path,
    user_name,
)
from contract.states import State

LIMITS = ShapeLimits(vcpus=4, memory_mb=4096, disk_mb=8192)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
create_fields = (
    *("image", "vcpus", "memory_mb", "disk_mb", "env", "metadata", "public_ports", "other"),
    *("timeout_sec", "on_timeout", "idle_sec", "paused_sec", "auto_resume"),
)
exec_fields = ("cmd", "env", "cwd", "user", "stdin", "timeout_sec", "other")


def create(**fields: object) -> CreateSandbox:
    return CreateSandbox.parse(json.dumps(fields).encode(), LIMITS)


def command(**fields: object) -> Exec:
    return Exec.parse(json.dumps(fields).encode())


def test_nothing_asked_for_is_the_hosts_default() -> None:
    for body in (b"", b"{}", b'{"image": null, "vcpus": null, "env": null, "metadata": null}'):
        assert CreateSandbox.parse(body, LIMITS) == CreateSandbox(None, None, None, None, RulesAsked(), {}, {})


def test_everything_asked_for_is_understood() -> None:
    wanted = {"image": "python", "vcpus": 4, "memory_mb": 4096, "disk_mb": 8192}
    rules = {
        "timeout_sec": MAX_TIMEOUT_S,
        "on_timeout": "pause",
        "idle_sec": 60,
        "paused_sec": 1,
        "auto_resume": False,
    }
    assert create(**wanted, **rules, env={"A_1": "ü"}, metadata={"a b": ""}) == CreateSandbox(
        **wanted, rules=RulesAsked(**rules), env={"A_1": "ü"}, metadata={"a b": ""}
    )


def test_what_is_asked_for_goes_over_what_was_there_and_the_rest_stays() -> None:
    host = Rules(timeout_sec=3600)
    assert RulesAsked().over(host) == host
    owner = RulesAsked(idle_sec=60, auto_resume=True)
    request = RulesAsked(timeout_sec=5, on_timeout="pause", auto_resume=False)
    assert request.over(owner.over(host)) == Rules(5, "pause", idle_sec=60, paused_sec=None, auto_resume=False)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert CreateSandbox.parse(b'{"vcpus": 2.0, "memory_mb": 2.56e2}', LIMITS) == create(vcpus=2, memory_mb=256)


BAD_CREATES = {
    "image": [1, True, [], {}, "a" * 65, "a\0b"],
    "vcpus": [0, -1, 5, 5.0, 1.5, 1e300, "1", True, False, [], {}],
    "memory_mb": [0, -256, 64, 127, 129, 200, 4160, 10**12, 200.0, 256.5, "256", True, [], {}],
    "disk_mb": [0, -1024, 64, 130, 8256, 10**12, 130.0, 1e30, "1024", True, [], {}],
    "timeout_sec": [0, -1, MAX_TIMEOUT_S + 1, 1.5, "60", True, []],
    "on_timeout": ["stop", "", 1, True, []],
    "idle_sec": [0, -1, MAX_TIMEOUT_S + 1, 1.5, "60", True, []],
    "paused_sec": [0, -1, MAX_TIMEOUT_S + 1, 1.5, "60", True, []],
    "auto_resume": [0, 1, "yes", []],
    "memroy_mb": [256, "", False, []],
    "": [1],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_CREATES.items() for value in values]
)
def test_a_bad_field_is_refused_with_its_name_and_value(field: str, value: object) -> None:
    with pytest.raises(BadField) as caught:
        create(**{field: value})
    error = caught.value.body()["error"]
    assert (error["code"], error["field"]) == ("bad_field", field)
    assert caught.value.status == 400
    assert shown(value) in error["message"]
    assert error["message"].startswith(f"{field}: ")


BAD_TEXTS: dict[str, list[object]] = {
    "env": [[], "A=1", 1, True, {"A": 1}, {"A": None}, {"A": ["x"]}, {"A": "\0"}, {"A": "x" * 32_769}],
    "metadata": [[], "a", 1, {"a": 1}, {"a": {}}, {"a": "\0"}, {"a\0": "b"}, {"a": "x" * (MAX_METADATA_CHARS + 1)}],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_TEXTS.items() for value in values]
)
def test_a_bad_map_is_refused_with_its_name(field: str, value: object) -> None:
    with pytest.raises(BadField) as caught:
        create(**{field: value})
    assert str(caught.value.details["field"]).startswith(field)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A=B", "A B", "ä", "A\n", "\0", "a.b", "$A"])
def test_a_bad_name_in_the_environment_is_refused(name: str) -> None:
    for parse in (create, lambda **fields: command(cmd="true", **fields)):
        with pytest.raises(BadField, match="env"):
            parse(env={name: "x"})


def test_maps_have_a_limit() -> None:
    assert len(create(env={f"A{i}": "" for i in range(MAX_ENV)}).env) == MAX_ENV
    assert len(create(metadata={f"A{i}": "" for i in range(MAX_METADATA)}).metadata) == MAX_METADATA
    with pytest.raises(BadField, match="at most 256"):
        create(env={f"A{i}": "" for i in range(MAX_ENV + 1)})
    with pytest.raises(BadField, match="at most 64"):
        create(metadata={f"A{i}": "" for i in range(MAX_METADATA + 1)})
    with pytest.raises(BadField):
        create(metadata={"k" * (MAX_METADATA_CHARS + 1): ""})


def test_a_command_line_is_for_bash_and_a_list_is_as_it_is() -> None:
    assert command(cmd="echo $HOME | cat").argv == ["/bin/bash", "-lc", "echo $HOME | cat"]
    assert command(cmd=["echo", "", "$HOME"]).argv == ["echo", "", "$HOME"]
    assert command(cmd="true", stdin="ü", timeout_sec=2) == Exec(
        ["/bin/bash", "-lc", "true"], {}, None, None, "ü".encode(), 2000
    )
    assert command(cmd="true").stdin is None
    assert command(cmd="true", stdin="").stdin == b""


@pytest.mark.parametrize(
    "cmd",
    [
        None,
        "",
        "   ",
        "\n",
        [],
        [""],
        ["", "a"],
        0,
        1,
        True,
        False,
        {},
        {"a": 1},
        [1],
        ["a", None],
        ["a", ["b"]],
        "a\0b",
        ["a\0"],
        "x" * 131_073,
        ["a"] * 4097,
    ],
)
def test_a_bad_command_is_refused(cmd: object) -> None:
    with pytest.raises(BadField) as caught:
        command(cmd=cmd)
    assert str(caught.value.details["field"]).startswith("cmd")


BAD_EXECS: dict[str, list[object]] = {
    "cwd": [1, "a\0", "x" * 5000, []],
    "user": [1, "Root", "", "a b", "x" * 33, "-a", "a:b", "a/b", "ü", "root\n"],
    "stdin": [1, [], "\0", "x" * ((1 << 20) + 1)],
    "timeout_sec": [0, -1, True, 1.5, "1"],
    "shell": [True],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_EXECS.items() for value in values]
)
def test_a_bad_field_of_a_command_is_refused_with_its_name(field: str, value: object) -> None:
    with pytest.raises(BadField) as caught:
        command(cmd="true", **{field: value})
    assert caught.value.details["field"] == field


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_caller_error(body: bytes) -> None:
    for parse in (lambda: CreateSandbox.parse(body, LIMITS), lambda: Exec.parse(body)):
        try:
            parse()
        except CallerError as error:
            refusal = error.body()["error"]["code"]
            assert refusal in ("bad_request", "bad_field")


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(create_fields), json_values, max_size=4),
    st.dictionaries(st.sampled_from(exec_fields), json_values, max_size=4),
    json_values,
)
def test_any_json_is_a_request_or_a_caller_error(
    wanted: dict[str, object], asked: dict[str, object], anything: object
) -> None:
    for parse, value in (
        (lambda b: CreateSandbox.parse(b, LIMITS), wanted),
        (Exec.parse, asked),
        (Exec.parse, anything),
    ):
        try:
            parse(json.dumps(value).encode())
        except CallerError as error:
            body = error.body()
            assert json.dumps(body)


@pytest.mark.parametrize("depth", [10, 500, 900, 1000, 1020, 100_000])
def test_json_of_any_depth_is_refused_and_no_more(depth: int) -> None:
    for body in (b'{"image":' + b"[" * depth + b"]" * depth + b"}", b"[" * depth + b"]" * depth, b'{"a":' * depth):
        with pytest.raises(CallerError):
            CreateSandbox.parse(body, LIMITS)


@pytest.mark.parametrize("field", ["x" * 100_000, "env"])
def test_an_error_is_short_whatever_was_sent(field: str) -> None:
    with pytest.raises(BadField) as caught:
        create(**{field: ["y" * 100_000]})
    assert len(json.dumps(caught.value.body())) < 1000


@pytest.mark.parametrize("path", ["/", "a", "~", "~/a", "/a/b c", "a..b", "...", "/ü", "a" * 4096, "/a//b/./c"])
def test_a_path_may_be_sent(path: str) -> None:
    assert file_path(path) == path


@pytest.mark.parametrize(
    "path", ["", "..", "/..", "a/../b", "../a", "/a/..", "/a\0", "\0", "a" * 5000, "ü" * 2049, "~/../../etc/passwd"]
)
def test_a_path_may_not_be_sent(path: str) -> None:
    with pytest.raises(BadField) as caught:
        file_path(path)
    assert caught.value.details["field"] == "path"


@given(st.text(max_size=100))
@example("a/../b")
def test_any_path_is_as_it_was_or_refused(path: str) -> None:
    try:
        assert file_path(path) == path
    except BadField:
        assert not path or "\0" in path or ".." in path
    else:
        assert ".." not in path.split("/")


def test_user_names() -> None:
    assert [user_name(name) for name in ("user", "root", "_x", "a-b_9")] == ["user", "root", "_x", "a-b_9"]


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(create(env={"PASSWORD": "hunter2"}))
    assert "hunter2" not in repr(command(cmd="true", env={"P": "hunter2"}, stdin="hunter2"))


def test_a_sandbox_is_told_without_its_machine() -> None:
    view = Sandbox("sb-1", State.RUNNING, Shape("python", 1, 256, 1024), {}, 1, 2, Rules(60), machine="vm-1").view()
    assert view["state"] == "running"
    assert "vm-1" not in json.dumps(view)


def test_shapes_that_differ_have_different_names() -> None:
    shapes = [Shape(i, v, m, d) for i in ("a", "b") for v in (1, 2) for m in (128, 256) for d in (128, 256)]
    assert len({str(shape) for shape in shapes}) == len(shapes)


def test_fields_are_read_once_and_flags_are_flags() -> None:
    fields = Fields.parse(b'{"a": true, "b": null, "c": 0}')
    assert fields.has("a")
    assert not fields.has("b")
    assert fields.flag("a", default=False) is True
    assert fields.flag("b", default=True) is True
    with pytest.raises(BadField, match="true or false"):
        fields.flag("c", default=False)
    fields.end()
    with pytest.raises(BadField, match="is required"):
        fields.raw("a")


def test_errors_have_one_shape() -> None:
    assert CapacityError("full", retry_after_s=7).body() == {
        "error": {"code": "no_capacity", "message": "full", "retry_after_s": 7}
    }
    assert (TooLarge("x").status, NotFound("x").status, CallerError("x").status) == (413, 404, 400)


@given(st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_an_id_has_its_form_and_differs_as_its_entropy_does(one: bytes, other: bytes) -> None:
    first, second = new_id("sb", lambda _: one), new_id("sb", lambda _: other)
    assert sandbox_id(first) == first
    assert (first == second) == (one == other)


def test_ids_of_real_entropy_do_not_repeat() -> None:
    assert len({new_id("sb", os.urandom) for _ in range(10_000)}) == 10_000


@given(st.text(max_size=30))
@example("sb-aaaaaaaaaaaaaaaa\n")
@example("sb-aaaaaaaaaaaaaaa")
@example("sb-aaaaaaaaaaaaaaaaa")
@example("sb-AAAAAAAAAAAAAAAA")
@example("sb-1aaaaaaaaaaaaaaa")
@example("vm-aaaaaaaaaaaaaaaa")
@example("")
def test_what_is_not_an_id_is_not_found(text: str) -> None:
    if SANDBOX.fullmatch(text):
        assert sandbox_id(text) == text
    else:
        with pytest.raises(NotFound):
            sandbox_id(text)


# Public ports.


def test_public_ports_are_each_there_once_and_in_order() -> None:
    assert create(public_ports=[3000, 80, 3000]).public_ports == (80, 3000)
    assert create(public_ports=None).public_ports == create(public_ports=[]).public_ports == ()
    assert len(create(public_ports=list(range(1, 33))).public_ports) == 32


@pytest.mark.parametrize(
    "ports", [80, "80", {}, [0], [65_536], [-1], ["80"], [80.5], [True], [None], list(range(1, 34))]
)
def test_bad_public_ports_are_refused_with_their_place(ports: object) -> None:
    with pytest.raises(BadField) as caught:
        create(public_ports=ports)
    assert str(caught.value.details["field"]).startswith("public_ports")
    if isinstance(ports, list) and len(ports) == 1:
        assert caught.value.details["field"] == "public_ports[0]"


def test_what_is_public_is_in_the_view() -> None:
    shape = Shape("python", 1, 256, 1024)
    sandbox = Sandbox("sb-a", State.RUNNING, shape, {}, 1, None, Rules(60), public_ports=(80, 3000))
    assert sandbox.view()["public_ports"] == [80, 3000]

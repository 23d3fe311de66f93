"""Log lines: one JSON object each, with the ids that they belong to, bounded, and without secrets."""

import asyncio
import json
import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.logs import HIDDEN, MAX_LINE_BYTES, JsonLines, ids

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def logged(what: str = "something", *args: object, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    """What a line says. It is checked that it is one, and not too long."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    logger = logging.getLogger("tests")
    record = logger.makeRecord("tests", logging.WARNING, "file", 1, what, args, exc_info, extra=extra)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert len(line.encode()) <= MAX_LINE_BYTES
    told: dict[str, Any] = json.loads(line)
    return told


def test_a_line_has_when_how_bad_where_what_and_extra() -> None:
    told = logged("took %d", 7, machine="vm-x", count=3, ok=True, share=0.5, none=None)
    assert told.pop("at").endswith("Z")
    assert told == {
        "level": "warning",
        "where": "tests",
        "what": "took 7",
        "machine": "vm-x",
        "count": 3,
        "ok": True,
        "share": 0.5,
        "none": None,
    }


def test_ids_are_on_every_line_of_their_block_and_on_no_other() -> None:
    assert "sandbox" not in logged()
    with ids(sandbox="sb-1", request="r-1"):
        with ids(task="t-1", request="r-2"):
            told = logged()
            assert (told["sandbox"], told["task"], told["request"]) == ("sb-1", "t-1", "r-2")
        told = logged()
        assert (told["sandbox"], told["request"]) == ("sb-1", "r-1")
        assert "task" not in told
    assert not {"sandbox", "task", "request"} & logged().keys()


def test_ids_end_with_a_block_that_fails() -> None:
    with pytest.raises(RuntimeError), ids(sandbox="sb-1"):
        raise RuntimeError
    assert "sandbox" not in logged()


async def test_tasks_have_ids_of_their_own_and_threads_those_of_who_started_them() -> None:
    async def one(name: str) -> tuple[str, str]:
        with ids(sandbox=name):
            await asyncio.sleep(0)
            here = logged()["sandbox"]
            return here, (await asyncio.to_thread(logged))["sandbox"]

    names = [f"sb-{number}" for number in range(20)]
    assert await asyncio.gather(*(one(name) for name in names)) == [(name, name) for name in names]


def test_extra_is_closer_to_the_truth_than_the_block_and_cannot_change_the_line() -> None:
    with ids(sandbox="sb-1"):
        told = logged(sandbox="sb-2", level="fine", what_="x", at="never", where="elsewhere")
    assert (told["sandbox"], told["level"], told["where"]) == ("sb-2", "warning", "tests")
    assert told["at"] != "never"


@given(st.dictionaries(st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=3), ANYTHING, max_size=5))
def test_whatever_is_logged_is_one_bounded_line(extra: dict[str, Any]) -> None:
    extra = {f"x_{name}": value for name, value in extra.items()}
    assert logged(**extra)["what"] == "something"


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


def test_what_is_not_json_is_shown_as_python_would() -> None:
    told = logged(
        raw=b"\xff", big=1 << 70, group={3}, thing=Unshowable(), nested={"a": object, 1: [b"x"]}, not_a=math.nan
    )
    assert (told["raw"], told["big"], told["group"]) == ("b'\\xff'", str(1 << 70), [3])
    assert "Unshowable that cannot be shown" in told["thing"]
    assert told["nested"] == {"a": "<class 'object'>", "1": ["b'x'"]}
    assert told["not_a"] is None


def test_a_file_name_that_is_no_text_is_shown_all_the_same() -> None:
    assert logged(path="a\udcffb", what_="x")["path"] == "a\\udcffb"
    assert logged("about a\udcffb")["what"] == "about a\\udcffb"


def test_what_contains_itself_comes_to_an_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert logged(loop=loop)["loop"][0] == 1


def test_a_line_that_was_badly_asked_for_is_still_a_line() -> None:
    assert "no place" in logged("no place for this", 1, 2)["what"]


def test_long_values_are_cut_and_a_line_of_many_keeps_what_it_says_first() -> None:
    told = logged("w" * 100_000, long="x" * 100_000)
    assert (len(told["what"]), len(told["long"])) == (2001, 2001)
    with ids(sandbox="sb-1"):
        told = logged("w" * 100_000, **{f"x{n}": "\0" * 5000 for n in range(100)})
    assert told["cut_bytes"] > MAX_LINE_BYTES
    assert (told["sandbox"], told["level"]) == ("sb-1", "warning")
    assert told["what"].startswith("www")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    try:
        raise ValueError("begin" + "x" * 100_000 + "the end")
    except ValueError as error:
        told = logged(error=error)
    assert told["traceback"].endswith("the end")
    assert len(told["traceback"]) < 9000


@pytest.mark.parametrize(
    "name", ["env", "token", "api_key", "api-key", "Authorization", "github_token", "PASSWORD", "secrets", "cookie"]
)
def test_values_with_a_secrets_name_are_not_shown_however_deep(name: str) -> None:
    told = logged(**{name: "s3cret", "request_of": {"headers": {name: ["s3cret"]}}})
    assert "s3cret" not in str(told)
    assert told[name] == told["request_of"]["headers"][name] == HIDDEN


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET with Bearer abcdef0123456789.x-y_z", "GET with Bearer (hidden)"),
        ("authorization: Basic dXNlcjpwYXNzd29yZA==", "authorization: Basic (hidden)"),
        ("cloning https://me:hunter2hunter2@host/x failed", "cloning https://me:(hidden)@host/x failed"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- there", "(hidden) there"),
        ("-----BEGIN PRIVATE KEY-----\nabc cut", "(hidden)"),
        ("https://host:8080/a@b and a basic idea", "https://host:8080/a@b and a basic idea"),
    ],
)
def test_what_is_a_secret_by_its_form_is_not_shown_anywhere(text: str, shown: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        told = logged(text.replace("%", "%%"), why=text, deep=[{"why": text}], error=error)
    assert (told["what"], told["why"], told["deep"][0]["why"]) == (shown, shown, shown)
    assert told["traceback"].endswith(shown)


def test_names_that_only_sound_alike_are_shown() -> None:
    told = logged(key="snapshot-1", environment="test", tokenizer="x", monkey="y")
    assert (told["key"], told["environment"], told["tokenizer"], told["monkey"]) == ("snapshot-1", "test", "x", "y")

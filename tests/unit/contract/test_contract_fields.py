"""Reading JSON field by field: what has the right form is given, all else is refused with its name and its value."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.errors import BadField, CallerError
from contract.fields import Fields

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4),
    max_leaves=12,
)
READERS: list[Callable[[Fields], Any]] = [
    lambda fields: fields.raw("f"),
    lambda fields: fields.integer("f", low=-5, high=5),
    lambda fields: fields.integer("f", low=0, high=100, step=10, default=None),
    lambda fields: fields.text("f", max_chars=4),
    lambda fields: fields.text("f", max_chars=4, pattern="[a-z]+", default=""),
    lambda fields: fields.text("f", max_chars=4, choices=("a", "b")),
    lambda fields: fields.flag("f"),
    lambda fields: fields.flag("f", default=None),
    lambda fields: fields.texts("f", max_chars=4, max_count=2),
    lambda fields: fields.text_list("f", max_chars=4, max_count=2),
    lambda fields: fields.text_list("f", max_chars=4, max_count=2, choices=("a",)),
    lambda fields: fields.line_or_list("f", max_chars=4, max_count=2),
    lambda fields: fields.inner("f"),
    lambda fields: fields.inner_list("f", max_count=2),
]


def refused(read: Callable[[], object]) -> BadField:
    with pytest.raises(BadField) as caught:
        read()
    return caught.value


class TestParse:
    def test_no_body_is_an_empty_object(self) -> None:
        fields = Fields.parse(b"")
        assert not fields.has("a")
        fields.end()

    def test_blanks_are_a_body_and_not_json(self) -> None:
        with pytest.raises(CallerError, match="not JSON"):
            Fields.parse(b" \r\n\t")

    @given(st.binary(max_size=60))
    @example(b"\xef\xbb\xbf{}")
    @example(b'{"a": "\\ud800"}')
    @example(b'{"a": NaN}')
    @example(b"[" * 200_000)
    @example(b'{"a":' * 100_000)
    @example(b"[]")
    @example(b"null")
    def test_a_body_is_an_object_or_the_callers_fault(self, body: bytes) -> None:
        error = _fault(lambda: Fields.parse(body))
        if error is None:
            assert not body.strip() or isinstance(json.loads(body), dict)
        else:
            assert error.status == 400
            assert len(error.message) < 300

    @given(json_values, st.sampled_from(READERS))
    def test_no_value_breaks_a_reader(self, value: object, read: Callable[[Fields], Any]) -> None:
        body = json.dumps({"f": value}, allow_nan=False) if _is_finite(value) else '{"f": 1e999}'
        error = _fault(lambda: read(Fields.parse(body.encode())))
        assert error is None or len(json.dumps(error.body())) < 2_000


def _fault(read: Callable[[], object]) -> CallerError | None:
    try:
        read()
    except CallerError as error:
        return error
    return None


def _is_finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


class TestPresence:
    def test_null_is_absent(self) -> None:
        fields = Fields({"a": None, "b": 0})
        assert (fields.has("a"), fields.has("b"), fields.has("c")) == (False, True, False)
        assert refused(lambda: fields.raw("a")).details == {"field": "a", "value": "None"}
        assert fields.raw("c", 7) == 7
        assert fields.raw("b") == 0

    def test_what_is_absent_has_its_default_unchecked(self) -> None:
        assert Fields({}).integer("a", low=1, high=2, default=None) is None
        assert Fields({}).text("a", max_chars=1, pattern="x", choices=("x",), default="usual") == "usual"
        assert Fields({}).flag("a", default=None) is None
        assert Fields({}).texts("a", max_chars=1, max_count=1) == {}
        assert Fields({}).text_list("a", max_chars=1, max_count=1) == []
        assert Fields({}).inner_list("a", max_count=1) == []
        Fields({}).inner("a").end()

    @pytest.mark.parametrize("read", READERS[:2] + READERS[3:4] + READERS[5:7] + READERS[11:12])
    def test_what_is_required_is_said_to_be(self, read: Callable[[Fields], Any]) -> None:
        assert "f: is required" in refused(lambda: read(Fields({}))).message

    def test_what_nobody_asked_for_is_refused(self) -> None:
        fields = Fields({"image": "x", "imgae": "y"})
        fields.text("image", max_chars=9)
        error = refused(fields.end)
        assert error.details == {"field": "imgae", "value": "'y'"}
        assert "is not a field of this request" in error.message

    def test_a_field_is_read_once(self) -> None:
        fields = Fields({"a": 1})
        assert fields.raw("a") == 1
        assert not fields.has("a")
        fields.end()

    def test_what_was_given_is_not_changed(self) -> None:
        given_values = {"a": 1}
        Fields(given_values).raw("a")
        assert given_values == {"a": 1}


class TestValues:
    @given(st.integers())
    def test_a_whole_number_is_within_its_bounds(self, value: int) -> None:
        fields = Fields({"a": value})
        if 3 <= value <= 9:
            assert fields.integer("a", low=3, high=9) == value
        else:
            assert "from 3 to 9" in refused(lambda: fields.integer("a", low=3, high=9)).message

    def test_what_is_no_whole_number_is_refused(self) -> None:
        for value in (True, False, 1.5, "1", [], {}):
            refused(lambda value=value: Fields({"a": value}).integer("a", low=0, high=9, default=5))

    def test_a_number_may_have_to_be_a_multiple(self) -> None:
        assert Fields({"a": 256}).integer("a", low=0, high=999, step=128) == 256
        assert "multiple of 128" in refused(lambda: Fields({"a": 200}).integer("a", low=0, high=999, step=128)).message

    def test_a_text_is_as_short_as_it_must_be_and_has_no_nul(self) -> None:
        assert Fields({"a": "é" * 4}).text("a", max_chars=4) == "é" * 4
        assert "has 5" in refused(lambda: Fields({"a": "abcde"}).text("a", max_chars=4)).message
        assert "NUL" in refused(lambda: Fields({"a": "a\0"}).text("a", max_chars=4)).message
        for value in (1, True, [], {}, ["a"]):
            refused(lambda value=value: Fields({"a": value}).text("a", max_chars=4, default=""))

    def test_a_pattern_is_for_the_whole_text(self) -> None:
        assert Fields({"a": "abc"}).text("a", max_chars=9, pattern="[a-z]+") == "abc"
        for value in ("abc\n", "abc1", "", " abc"):
            refused(lambda value=value: Fields({"a": value}).text("a", max_chars=9, pattern="[a-z]+"))

    def test_a_choice_is_one_of_them(self) -> None:
        assert Fields({"a": "x"}).text("a", max_chars=9, choices=("x", "y")) == "x"
        assert "one of x, y" in refused(lambda: Fields({"a": "z"}).text("a", max_chars=9, choices=("x", "y"))).message

    def test_a_flag_is_true_or_false(self) -> None:
        assert Fields({"a": True}).flag("a") is True
        assert Fields({"a": False}).flag("a", default=True) is False
        for value in (0, 1, "true", [], {}):
            refused(lambda value=value: Fields({"a": value}).flag("a", default=True))

    def test_texts_by_name_are_bounded_in_number_names_and_values(self) -> None:
        def read(value: object) -> dict[str, str]:
            return Fields({"a": value}).texts("a", max_chars=4, max_count=2)

        assert read({"k": "v", "": ""}) == {"k": "v", "": ""}
        assert refused(lambda: read({"k": 1})).details["field"] == "a.k"
        for value in ({"1": "", "2": "", "3": ""}, {"k": "long!"}, {"long!": ""}, {"k": None}, {"\0": ""}, [], "", 1):
            refused(lambda value=value: read(value))

    def test_a_list_of_texts_is_bounded_in_number_and_length(self) -> None:
        def read(value: object) -> list[str]:
            return Fields({"a": value}).text_list("a", max_chars=4, max_count=2, choices=("x", "y", "long!"))

        assert read(["x", "y"]) == ["x", "y"]
        assert refused(lambda: read(["x", "z"])).details["field"] == "a[1]"
        for value in (["x"] * 3, ["long!"], [1], [None], "x", {"x": "x"}, 1):
            refused(lambda value=value: read(value))

    def test_names_of_texts_may_have_to_match(self) -> None:
        assert Fields({"a": {"k": "v"}}).texts("a", max_chars=4, max_count=2, names="[a-z]") == {"k": "v"}
        for name in ("K", "kk", "k\n", ""):
            values = Fields({"a": {name: "v"}})
            error = refused(lambda values=values: values.texts("a", max_chars=4, max_count=2, names="[a-z]"))
            assert error.details["field"] == "a"

    def test_a_list_of_whole_numbers_is_bounded_in_number_and_size(self) -> None:
        def read(value: object) -> list[int]:
            return Fields({"a": value}, "in.").integer_list("a", low=1, high=9, max_count=2)

        assert read([1, 9]) == [1, 9]
        assert read(None) == []
        assert refused(lambda: read([1, 10])).details["field"] == "in.a[1]"
        for value in ([1] * 3, [0], [True], [1.5], ["1"], [None], "1", {"1": 1}, 1):
            refused(lambda value=value: read(value))

    def test_a_command_is_a_line_or_a_list_that_starts_with_a_program(self) -> None:
        def read(value: object) -> str | list[str]:
            return Fields({"a": value}).line_or_list("a", max_chars=9, max_count=3)

        assert read("ls -l") == "ls -l"
        assert read(["ls", ""]) == ["ls", ""]
        for value in ("", " \n", "x" * 10, [], [""], ["", "x"], ["x"] * 4, [1], 1, {"x": 1}, "a\0"):
            refused(lambda value=value: read(value))


class TestInner:
    def test_the_names_of_what_is_around_are_told(self) -> None:
        fields = Fields.parse(b'{"outer": {"list": [{"n": 1}, {"n": "two"}], "more": 1}}')
        outer = fields.inner("outer")
        first, second = outer.inner_list("list", max_count=2)
        assert first.integer("n", low=1, high=1) == 1
        assert refused(lambda: second.integer("n", low=1, high=1)).details["field"] == "outer.list[1].n"
        assert refused(outer.end).details["field"] == "outer.more"
        fields.end()

    def test_what_is_no_object_is_refused(self) -> None:
        for value in (1, "x", [], True):
            refused(lambda value=value: Fields({"a": value}).inner("a"))
        for value in (1, "x", {}, [1], [{}, []], [{}] * 3):
            refused(lambda value=value: Fields({"a": value}).inner_list("a", max_count=2))

    def test_a_long_name_does_not_fill_the_message(self) -> None:
        fields = Fields({"n" * 100_000: "v" * 100_000})
        assert len(refused(fields.end).message) < 300

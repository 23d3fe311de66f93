"""Settings are read as they are meant, or refused by the variable and the value."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.settings import BadSetting, Settings

READS: dict[str, Callable[[Settings], Any]] = {
    "integer": lambda read: read.integer("X", 3, 1, 9),
    "matching": lambda read: read.matching("X", re.compile("[a-z]+"), "usual", told="be small letters"),
    "one_of": lambda read: read.one_of("X", ("a", "b"), "a"),
    "path": lambda read: read.path("X"),
    "address": lambda read: read.address("X", "[::1]:80"),
}


@pytest.mark.parametrize(
    ("read", "usual"),
    [("integer", 3), ("matching", "usual"), ("one_of", "a"), ("path", None), ("address", ("::1", 80))],
)
def test_what_is_not_set_has_its_default(read: str, usual: object) -> None:
    assert READS[read](Settings({})) == usual


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        ("integer", "9", 9),
        ("matching", "abc", "abc"),
        ("one_of", "b", "b"),
        ("path", "/srv/x", Path("/srv/x")),
        ("path", "x", Path("x").absolute()),
        ("path", "", None),
        ("address", "127.0.0.1:65535", ("127.0.0.1", 65_535)),
        ("address", "a.example:1", ("a.example", 1)),
    ],
)
def test_what_is_set_is_read(read: str, text: str, value: object) -> None:
    assert READS[read](Settings({"X": text})) == value


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        ("integer", "10", "X must be a whole number from 1 to 9, got '10'"),
        ("integer", "²", "X must be a whole number from 1 to 9, got '²'"),
        ("matching", "A", "X must be small letters, got 'A'"),
        ("matching", "a\n", "X must be small letters, got 'a\\n'"),
        ("one_of", "", "X must be one of a, b, got ''"),
        ("address", "a:", "X must be ADDRESS:PORT, got 'a:'"),
        ("address", "a:0", "X must be ADDRESS:PORT, got 'a:0'"),
        ("address", "a:65536", "X must be ADDRESS:PORT, got 'a:65536'"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(read: str, text: str, told: str) -> None:
    with pytest.raises(BadSetting) as caught:
        READS[read](Settings({"X": text}))
    assert str(caught.value) == told


@given(st.sampled_from(sorted(READS)), st.text())
def test_any_text_is_a_value_or_is_refused(read: str, text: str) -> None:
    try:
        READS[read](Settings({"X": text}))
    except BadSetting as error:
        message = str(error)
        assert repr(text) in message

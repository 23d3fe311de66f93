"""A name is a name in one way only, and what a resolver takes for a number is none."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.egress.names import canonical, matches

labels = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
names = st.builds(
    lambda some, last: ".".join((*some, last)),
    st.lists(labels, max_size=4),
    st.from_regex(r"[a-z](?:[a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True),
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.com", "example.com"),
        ("Example.COM.", "example.com"),
        ("_srv.example.com", "_srv.example.com"),
        ("a-b.example.com", "a-b.example.com"),
        ("localhost", "localhost"),
        ("1.example", "1.example"),
        ("x" * 63 + ".example", "x" * 63 + ".example"),
    ],
)
def test_a_name_is_written_in_one_way(text: str, name: str) -> None:
    assert canonical(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "example..com",
        ".example.com",
        "example.com..",
        "*.example.com",
        "*",
        "a b.example.com",
        "a\n.com",
        "example.com\n",
        "a\0.com",
        "ä.example.com",
        "\u212aube.example.com",
        "-a.com",
        "a-.com",
        "a.-com",
        "a.com-",
        "a/b.com",
        "a@b.com",
        "a:b.com",
        "[::1]",
        "::1",
        "x" * 64 + ".com",
        ".".join(["abcd"] * 51),
        "a.1com",
        "a.123",
    ],
)
def test_what_is_no_name_is_none(text: str) -> None:
    assert canonical(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0X7F.1",
        "017700000001",
        "127.1",
        "0x7f.0.0.1",
        "169.254.43518",
        "1",
        "0",
        "1.2.3.4.",
        "0x",
        "00000000177.1",
    ],
)
def test_numbers_in_every_form_are_no_names(text: str) -> None:
    assert canonical(text) is None


numbers = st.sampled_from(["0", "127", "0x7f", "0X7F", "0177", "2130706433", "0x7f000001", "a9fe"])


@given(st.one_of(st.lists(numbers, max_size=4).map(".".join), st.from_regex(r"[0-9a-fx.]{1,20}", fullmatch=True)))
def test_what_resolves_as_a_number_is_no_name(text: str) -> None:
    if canonical(text) is not None:
        with pytest.raises(OSError, match="illegal"):
            socket.inet_aton(text)


@given(names)
def test_a_canonical_name_stays_as_it_is(name: str) -> None:
    assert canonical(name) == canonical(name.upper()) == canonical(f"{name}.") == name


@given(st.text(max_size=60))
def test_whatever_comes_out_is_plain_and_stays(text: str) -> None:
    name = canonical(text)
    if name is not None:
        assert name.isascii()
        assert name == name.lower() == canonical(name)


@given(names, names)
def test_a_star_is_every_name_below_and_not_the_name_itself(above: str, name: str) -> None:
    assert matches(f"*.{above}", f"{name}.{above}")
    assert not matches(f"*.{above}", above)
    assert not matches(f"*.{above}", f"{name}{above}") or f"{name}{above}".endswith(f".{above}")
    assert matches(name, name)
    assert not matches(name, f"x.{name}")
    assert not matches(name, f"{name}.x")


def test_the_end_of_a_label_is_no_suffix() -> None:
    assert not matches("*.example.com", "badexample.com")
    assert not matches("*.example.com", ".example.com")

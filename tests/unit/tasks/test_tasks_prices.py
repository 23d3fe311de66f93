"""Prices are the operator's: checked as a whole, and where none is known none is told."""

from pathlib import Path

import pytest

from poold.errors import ConfigError
from poold.tasks.prices import Price, Prices, Tokens, prices, read_prices

TOML = """
["claude-sonnet-*"]
input = 3
output = 15
cache_read = 0.3
cache_write = 3.75

["*"]
input = 1
output = 2
"""


@pytest.fixture
def known(tmp_path: Path) -> Prices:
    path = tmp_path / "prices.toml"
    path.write_text(TOML)
    return read_prices(path)


def test_each_kind_of_token_has_its_price(known: Prices) -> None:
    tokens = Tokens(input=1_000_000, output=2_000_000, cache_read=10_000_000, cache_write=4_000_000)
    assert known.usd("claude-sonnet-5", tokens) == 3 + 30 + 3 + 15
    assert known.usd("claude-sonnet-5", Tokens(input=1)) == 0.000003
    assert known.usd("claude-sonnet-5", Tokens()) == 0


def test_the_first_pattern_that_matches_counts_and_a_cache_costs_as_input_if_nothing_else_is_said(
    known: Prices,
) -> None:
    assert known.usd("other", Tokens(1_000_000, 1_000_000, 1_000_000, 1_000_000)) == 1 + 2 + 1 + 1
    assert known.usd("Claude-Sonnet-5", Tokens(output=1_000_000)) == 2


def test_where_no_price_is_known_none_is_told() -> None:
    only = Prices((("gpt-*", Price(1, 1, 1, 1)),))
    assert only.usd("claude", Tokens(input=5)) is None
    assert only.usd(None, Tokens(input=5)) is None
    assert read_prices(None).usd("gpt-5", Tokens()) is None


def test_json_says_the_same(tmp_path: Path, known: Prices) -> None:
    path = tmp_path / "prices.json"
    path.write_text(
        '{"claude-sonnet-*": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},'
        ' "*": {"input": 1, "output": 2}}'
    )
    assert read_prices(path) == known


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "must be an object"),
        ({"m": 3}, "'m' must be a table"),
        ({"m": {"input": 3}}, "output of 'm' must be dollars from 0 to 1000000, got None"),
        ({"m": {"input": 3, "output": -1}}, "output of 'm' must be dollars from 0 to 1000000, got -1"),
        ({"m": {"input": "3", "output": 1}}, "got '3'"),
        ({"m": {"input": True, "output": 1}}, "got True"),
        ({"m": {"input": float("nan"), "output": 1}}, "got nan"),
        ({"m": {"input": float("inf"), "output": 1}}, "got inf"),
        ({"m": {"input": 1, "output": 1, "cached": 1}}, "'m' has no price 'cached'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_file_and_the_value(told: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prices(told, "/etc/prices.toml")
    assert "POOLD_PRICES=/etc/prices.toml" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("prices.toml", b"input = "),
        ("prices.json", b"{"),
        ("prices.json", b"[" * 100_000),
        ("prices.toml", b"\xff"),
        ("prices.toml", b"#" * ((1 << 20) + 1)),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_name(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for each in (path, tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=f"POOLD_PRICES={each}"):
            read_prices(each)

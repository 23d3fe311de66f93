"""What models cost, as the operator's file says: dollars per million tokens. For agents that tell no dollars.

A table for each model, or pattern of models, of which the first that matches counts:

    ["claude-sonnet-*"]
    input = 3
    output = 15
    cache_read = 0.3
    cache_write = 3.75
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from poold.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_USD = 1_000_000  # for a million tokens: beyond it somebody mistook the unit
MILLION = 1_000_000
DECIMALS = 6  # of a dollar
REQUIRED, OPTIONAL = ("input", "output"), ("cache_read", "cache_write")


@dataclass(frozen=True)
class Tokens:
    """What an agent used. `input` are those that no cache had."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def usd(self, tokens: Tokens) -> float:
        total = tokens.input * self.input + tokens.output * self.output
        total += tokens.cache_read * self.cache_read + tokens.cache_write * self.cache_write
        return round(total / MILLION, DECIMALS)


@dataclass(frozen=True)
class Prices:
    """Prices by pattern of a model's name. The one without any knows none."""

    by_model: tuple[tuple[str, Price], ...] = ()

    def usd(self, model: str | None, tokens: Tokens) -> float | None:
        """What `tokens` of `model` cost; None where no price is known."""
        for pattern, price in self.by_model:
            if model is not None and fnmatchcase(model, pattern):
                return price.usd(tokens)
        return None


def read_prices(path: Path | None) -> Prices:
    """Read the operator's file, in TOML or (as its name ends) JSON. Raises `ConfigError`."""
    if path is None:
        return Prices()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"POOLD_PRICES={path} must have at most {MAX_BYTES} bytes")
        text = data.decode()
        told = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"POOLD_PRICES={path} cannot be read: {error}") from None
    return prices(told, str(path))


def prices(told: object, where: str) -> Prices:
    """What a file says, checked. Raises `ConfigError` that names the model and the value."""
    if not isinstance(told, dict):
        raise ConfigError(f"POOLD_PRICES={where} must be an object of models, got {told!r:.80}")
    return Prices(tuple((model, _price(model, row, where)) for model, row in told.items()))


def _price(model: str, row: object, where: str) -> Price:
    if not isinstance(row, dict):
        raise ConfigError(f"POOLD_PRICES={where}: {model!r:.80} must be a table of prices, got {row!r:.80}")
    for kind in row:
        if kind not in (*REQUIRED, *OPTIONAL):
            raise ConfigError(f"POOLD_PRICES={where}: {model!r:.80} has no price {kind!r:.80}")
    each = {kind: _usd(model, kind, row, where) for kind in (*REQUIRED, *row)}
    return Price(**{**dict.fromkeys(OPTIONAL, each["input"]), **each})


def _usd(model: str, kind: str, row: Mapping[str, Any], where: str) -> float:
    value = row.get(kind)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_USD:  # type: ignore[operator]
        problem = f"{kind} of {model!r:.80} must be dollars from 0 to {MAX_USD}"
        raise ConfigError(f"POOLD_PRICES={where}: {problem}, got {value!r:.80}")
    return float(value)  # type: ignore[arg-type]

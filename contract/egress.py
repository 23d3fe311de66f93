"""Connections of sandboxes: what a proxy tells of them, and what callers are told. Hosts take nothing on trust."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERDICTS = ("allowed", "refused")
VIAS = ("connect", "http", "tls", "tcp", "dns", "packet")
MAX_TEXT = 300
MAX_NUMBER = 1 << 53
ENDED = "proxy_ended"
# What callers are told of a row, beside its number and its time.
TOLD = ("verdict", "via", "name", "address", "port", "rule", "why", "up", "down", "duration_ms", "times")


@dataclass(frozen=True, slots=True)
class Row:
    """A connection that is over, or that was refused. `up` and `down`: bytes from and to the guest."""

    sandbox: str | None
    at_ms: int
    verdict: str
    via: str
    name: str | None
    address: str | None
    port: int | None
    rule: str | None
    why: str | None
    up: int
    down: int
    duration_ms: int | None
    times: int
    number: int  # of the proxy's own, from 1; 0 if the host itself tells it
    id: int | None  # of the connection, if it was told when it began

    def view(self) -> dict[str, Any]:
        """What is kept of it, and told."""
        return {name: getattr(self, name) for name in TOLD}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Row":
        """Raises `ValueError` for what no proxy of ours says."""
        return cls(
            sandbox=_text(told, "sandbox"),
            at_ms=_number(told, "at_ms"),
            verdict=_one_of(told, "verdict", VERDICTS),
            via=_one_of(told, "via", VIAS),
            name=_text(told, "name"),
            address=_text(told, "address"),
            port=_number_or_none(told, "port"),
            rule=_text(_clipped(told, "rule"), "rule"),
            why=_text(told, "why"),
            up=_number(told, "up"),
            down=_number(told, "down"),
            duration_ms=_number_or_none(told, "duration_ms"),
            times=max(1, _number(told, "times")),
            number=_number(told, "number"),
            id=_number_or_none(told, "id"),
        )


@dataclass(frozen=True, slots=True)
class Open:
    """A connection that is under way."""

    id: int
    sandbox: str | None
    at_ms: int
    via: str
    name: str | None
    address: str | None
    port: int | None
    rule: str | None

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Open":
        """Raises `ValueError` for what no proxy of ours says."""
        return cls(
            id=_number(told, "id"),
            sandbox=_text(told, "sandbox"),
            at_ms=_number(told, "at_ms"),
            via=_one_of(told, "via", VIAS),
            name=_text(told, "name"),
            address=_text(told, "address"),
            port=_number_or_none(told, "port"),
            rule=_text(_clipped(told, "rule"), "rule"),
        )

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        names = ("at_ms", "via", "name", "address", "port", "rule")
        return {name: getattr(self, name) for name in names}

    def cut(self, now_ms: int) -> Row:
        """The row of a connection whose proxy is gone: what it carried nobody knows."""
        return Row(
            sandbox=self.sandbox,
            at_ms=self.at_ms,
            verdict="allowed",
            via=self.via,
            name=self.name,
            address=self.address,
            port=self.port,
            rule=self.rule,
            why=ENDED,
            up=0,
            down=0,
            duration_ms=max(0, now_ms - self.at_ms),
            times=1,
            number=0,
            id=self.id,
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A connection that nothing allows, and that waits for somebody to change the policy."""

    sandbox: str | None
    name: str | None
    address: str | None
    port: int | None
    until_ms: int

    @classmethod
    def read(cls, told: Mapping[str, Any], sandbox: str | None) -> "Waiting":
        """Raises `ValueError` for what no proxy of ours says."""
        return cls(
            sandbox=sandbox,
            name=_text(told, "name"),
            address=_text(told, "address"),
            port=_number_or_none(told, "port"),
            until_ms=_number(told, "until_ms"),
        )


def _text(told: Mapping[str, Any], name: str) -> str | None:
    value = told.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable()):
        raise ValueError(f"{name} is {value!r:.80}")
    return value


def _clipped(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A rule with many paths is longer than anybody wants to read."""
    value = told.get(name)
    return told if not isinstance(value, str) or len(value) <= MAX_TEXT else {name: f"{value[: MAX_TEXT - 1]}…"}


def _one_of(told: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = told.get(name)
    if value not in choices:
        raise ValueError(f"{name} is {value!r:.80}")
    return str(value)


def _number(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} is {value!r:.80}")
    return value


def _number_or_none(told: Mapping[str, Any], name: str) -> int | None:
    return None if told.get(name) is None else _number(told, name)

"""What an attempt to get out is: what is done in the guest, under which policy, and what the audit must say of it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.egress.frames import question
from tests.egress.web import MARK

PROXY = ("172.16.0.1", 3128)
NEAR_MS = 2000  # the guest has a clock of its own
WEB_NAME, EVIL_NAME = "web.example.com", "evil.example.net"


@dataclass(frozen=True)
class Row:
    """A row of the audit. What is None may be anything."""

    why: tuple[str, ...]
    via: str | None = None
    name: str | None = None
    address: str | None = None
    port: int | None = None
    verdict: str | None = "refused"

    def is_seen_in(self, rows: Iterable[dict[str, Any]], begin_ms: float, end_ms: float) -> bool:
        """Whether the audit has it, at about this time: what is the same within a second has one row."""
        near = (row for row in rows if begin_ms - NEAR_MS < row["at_ms"] < end_ms + NEAR_MS)
        return any(self._is(row) for row in near)

    def _is(self, row: dict[str, Any]) -> bool:
        wanted = {key: value for key, value in vars(self).items() if key != "why"}
        same = all(row[key] == value for key, value in wanted.items() if value is not None)
        return same and row["why"] in self.why


@dataclass(frozen=True)
class Outcome:
    """What a guest says of an attempt."""

    heard: str
    ended: str
    at_ms: float  # by the guest's clock
    seconds: float

    @property
    def end_ms(self) -> float:
        return self.at_ms + self.seconds * 1000


@dataclass(frozen=True)
class Attempt:
    """Something that must not work."""

    name: str
    way: str
    arguments: dict[str, Any]
    row: Row | None  # None: nothing left the guest
    policy: str = "listed"
    is_quiet: bool = False  # nothing is heard in the guest: it sent packets without a connection
    may_begin: int = 0  # so many answers come first, and are allowed

    def problem(self, outcome: Outcome) -> str | None:
        """What is wrong with the outcome, if it was not a refusal."""
        if self.way == "frames":
            return f"something came back: {outcome.heard}" if outcome.heard else None
        if outcome.ended in ("silent", "endless") and not self.is_quiet:
            return "it hung"
        if "timed out" in outcome.heard and not self.is_quiet:
            return "it was left waiting"
        if has_answers(outcome.heard):
            return "a name was resolved"
        if outcome.heard.startswith("handshake"):
            return "a server spoke TLS with it"
        # In an answer the mark stands in its head; curl shows only the body.
        answers = outcome.heard.count(f"X-Mark: {MARK}") or outcome.heard.count(MARK)
        return "a server answered" if answers > self.may_begin else None


@dataclass(frozen=True)
class Control:
    """The same kind of thing where it is allowed: it must work, or nothing would be shown by what does not."""

    name: str
    way: str
    arguments: dict[str, Any]
    heard: str  # somewhere in what is heard
    policy: str = "listed"


@dataclass(frozen=True)
class Policy:
    """A policy, and all that may leave the host under it."""

    network: dict[str, Any]
    reach: frozenset[tuple[str, int]] = frozenset()
    names: frozenset[str] = frozenset()  # that the proxy may ask for, and that servers may be asked for


def has_answers(heard: str) -> bool:
    """Whether this is an answer to a question of ours that has an address in it."""
    data = heard.encode("latin-1")
    for packet in (data, data[2:]):  # over TCP the length comes first
        if packet[:2] == question("")[:2] and len(packet) > 12:
            return int.from_bytes(packet[6:8], "big") > 0
    return False


def text(data: bytes) -> str:
    """Bytes as the guest's program takes them."""
    return data.decode("latin-1")


def get(host: str, target: str = "/", *headers: str, method: str = "GET") -> str:
    """A request, after which the connection is over."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines)


def keep(host: str, target: str = "/", *headers: str, method: str = "GET") -> str:
    """A request, after which there may be another."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""])


def connect(target: str) -> str:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"


def talk(*steps: str | bytes, at: Sequence[Any] = PROXY) -> tuple[str, dict[str, Any]]:
    said = [step if isinstance(step, str) else text(step) for step in steps]
    return "talk", {"steps": said, "at": list(at)}


def absolute(authority: str, path: str = "/latest/meta-data/") -> tuple[str, dict[str, Any]]:
    """A request by the proxy, for what the authority says."""
    return talk(get(authority, f"http://{authority}{path}"))


def direct(address: str, port: int = 80, host: str | None = None) -> tuple[str, dict[str, Any]]:
    """A request as if there were no proxy."""
    return talk(get(host or address, "/latest/meta-data/"), at=(address, port))


def tunnel(target: str) -> tuple[str, dict[str, Any]]:
    """A tunnel through the proxy, and a request in it."""
    return talk(connect(target), get(target.rpartition(":")[0]))


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "shell", {"command": command}


def told(ways: Iterable[Attempt | Control]) -> bytes:
    """For the program in the guest."""
    return json.dumps([[each.name, each.way, each.arguments] for each in ways]).encode()

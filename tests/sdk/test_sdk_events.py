"""What people are told of events: what matters, in words, and who says it."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.sdk.conftest import Cli
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import Asked, open_stage, reply
from tests.terminal import open_screen
from warren.cli.events import told
from warren_console.output import moment

AT_MS = 1_790_000_000_000
EVENTS = [
    {"seq": 1, "kind": "running", "at_ms": AT_MS, "data": {"state": "running", "reason": None}, "by": "host"},
    {
        "seq": 2,
        "kind": "process_started",
        "at_ms": AT_MS,
        "data": {"pid": 163, "cmd": "sh", "args": ["-c", "make test"], "user": "user", "tag": None, "at_ms": AT_MS},
        "by": "guest",
    },
]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("running", {"state": "running", "reason": None}, ""),
        ("stopped", {"state": "stopped", "reason": "its time was up"}, "reason=its time was up"),
        ("created", {"state": "pending", "rules": {"idle_sec": None, "auto_resume": False}, "public_ports": []},
         "state=pending rules.auto_resume=false"),
        ("port", {"port": 80, "public": True, "at_ms": AT_MS}, "port=80 public=true"),
        ("egress_refused", {"name": "example.com", "port": 443, "via": "tls", "why": "policy", "times": 2},
         "example.com:443 via=tls why=policy times=2"),
        ("egress_waiting", {"name": None, "address": "192.0.2.1", "port": 22, "until_ms": 0},
         f"192.0.2.1:22 until={moment(0)}"),
        ("egress_refused", {"what": "a guest says so"}, "what=a guest says so"),
        ("process_started", EVENTS[1]["data"], "sh -c 'make test' (pid 163, user)"),
        ("process_ended", {"pid": 163, "exit_code": 0, "signal": None, "duration_ms": 212}, "exit 0 in 0.2s (pid 163)"),
        ("process_ended", {"pid": 1, "signal": "SIGKILL", "duration_ms": 90_000}, "SIGKILL in 1m30s (pid 1)"),
    ],
)  # fmt: skip
def test_an_event_is_told_in_words(kind: str, data: dict[str, Any], words: str) -> None:
    assert told(kind, data) == words


anything = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = some.sampled_from(["pid", "cmd", "args", "user", "signal", "exit_code", "duration_ms", "at_ms", "expires_ms"])
names |= some.sampled_from(["name", "address", "port", "via", "why", "times", "until_ms"])


@given(
    some.sampled_from(["process_started", "process_ended", "egress_refused", "egress_waiting", "gap"]),
    some.dictionaries(names, anything | some.integers(-(1 << 80), 1 << 80)),
)
def test_whatever_a_guest_tells_can_be_told(kind: str, data: dict[str, Any]) -> None:
    assert isinstance(told(kind, data), str)


def _gateway(asked: Asked) -> bytes:
    if "/events" not in asked.target:
        return reply(200, ROW)
    return reply(200, {"events": EVENTS if "after=0" in asked.target else []})


def test_who_told_it_is_told_too(cli: Cli) -> None:
    with open_stage() as stage:
        stage.play(_gateway)
        lines = cli("events", ID, WARREN_URL=stage.url, WARREN_API_KEY=KEY).out.splitlines()
    assert re.split(" {2,}", lines[0].strip()) == ["SEQ", "AT", "KIND", "BY", "DATA"]
    assert re.search(r"running +host$", lines[1])
    assert lines[2].endswith("process_started  guest  sh -c 'make test' (pid 163, user)")


def test_on_a_narrow_terminal_what_happened_is_still_seen(environment: dict[str, str]) -> None:
    with open_stage() as stage:
        stage.play(_gateway)
        person = {**environment, "WARREN_URL": stage.url, "WARREN_API_KEY": KEY}
        with open_screen("warren.cli", "events", ID, environment=person, columns=40) as screen:
            screen.sees(rb"\d\d:\d\d:\d\d  process_started  guest")
            assert screen.ends() == 0
    assert all(len(line.decode()) <= 40 for line in screen.shown.split(b"\r\n")[1:])

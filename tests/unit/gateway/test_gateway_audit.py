"""Refusals on their way into a host's audit: how many become rows, and what is said of the rest."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import audit
from gateway.audit import LEFT_OUT, MAX_POSTED, MAX_WAITING, Refusals
from gateway.auth import Auth, TooFast
from gateway.preview.app import Previews
from gateway.services import CALL

REFUSED = "gateway.preview_refused"


class FakeHosts:
    """One host, and the rows of each post that it took."""

    def __init__(self) -> None:
        self.posts: list[list[dict[str, Any]]] = []
        self.status = 200

    def alive(self) -> dict[str, None]:
        return {"host-0": None}

    async def ask(self, *_args: object, value: Any) -> SimpleNamespace:
        if self.status == 200:
            self.posts.append(value["rows"])
        return SimpleNamespace(status=self.status)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for post in self.posts for row in post]


def refusing(hosts: FakeHosts) -> Refusals:
    return Refusals(hosts, gateway="edge", now_ms=lambda: 1000)  # type: ignore[arg-type]


async def post(refusals: Refusals, hosts: FakeHosts, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let it post as often as that, and end it before it posts what is left."""
    monkeypatch.setattr(audit, "EVERY_S", 0.001)
    keeping = asyncio.create_task(refusals.keep())
    async with asyncio.timeout(10):
        while len(hosts.posts) < times:
            await asyncio.sleep(0)
    hosts.status = 503
    keeping.cancel()
    await asyncio.wait([keeping])
    hosts.status = 200


async def test_a_name_that_whoever_asks_has_chosen_makes_no_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = FakeHosts()
    refusals = refusing(hosts)
    for number in range(50):
        refusals.add(REFUSED, request=f"rq-{number}", address="1.2.3.4", code="not_found", host=f"x{number}.box.dev")
    await post(refusals, hosts, monkeypatch, 1)
    [row] = hosts.rows
    assert row["request"] == "rq-0"
    assert row["detail"] == {
        "gateway": "edge", "count": 50, "address": "1.2.3.4", "code": "not_found", "host": "x0.box.dev"
    }  # fmt: skip


async def test_a_flood_is_a_few_rows_at_a_time_and_the_rest_is_a_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = FakeHosts()
    refusals = refusing(hosts)
    with caplog.at_level(logging.WARNING, "gateway.audit"):
        for number in range(MAX_WAITING + 500):
            refusals.add(REFUSED, request="rq-1", address=f"address {number}")
    assert (len(caplog.records), refusals.dropped) == (MAX_WAITING, 500)
    await post(refusals, hosts, monkeypatch, 2)
    assert [len(rows) for rows in hosts.posts[:2]] == [MAX_POSTED, MAX_POSTED]
    told = [row for row in hosts.rows if row["action"] == LEFT_OUT]
    assert [row["detail"] for row in told] == [{"gateway": "edge", "count": 500}]
    assert "request" not in told[0]


async def test_what_no_host_takes_waits_and_is_posted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = FakeHosts()
    hosts.status = 503
    refusals = refusing(hosts)
    for number in range(MAX_WAITING + 7):
        refusals.add(REFUSED, request="rq-1", address=f"address {number}")
    monkeypatch.setattr(audit, "EVERY_S", 0.001)
    keeping = asyncio.create_task(refusals.keep())
    await asyncio.sleep(0.02)
    hosts.status = 200
    keeping.cancel()
    await asyncio.wait([keeping])
    assert len(hosts.rows) == MAX_WAITING + 1
    assert [row["detail"]["count"] for row in hosts.rows if row["action"] == LEFT_OUT] == [7]


async def test_a_name_that_is_no_preview_costs_a_token_of_the_address() -> None:
    added: list[dict[str, str]] = []
    refusals = SimpleNamespace(add=lambda action, **detail: added.append(detail))
    call = SimpleNamespace(request_id="rq-1", address="1.2.3.4", services=SimpleNamespace(refusals=refusals))
    auth = Auth(now_ms=lambda: 0, visitor_rate=1, clock_s=lambda: 0.0)
    previews = Previews("box.dev", auth, None, None)  # type: ignore[arg-type]
    raised = []
    for number in range(5):
        scope = {
            "type": "http", "method": "GET", "scheme": "http", "raw_path": b"/", "query_string": b"", CALL: call,
            "headers": [(b"host", b"x%d.box.dev" % number)],
        }  # fmt: skip
        branch = previews.branch(scope)
        assert branch is not None
        with pytest.raises(Exception) as info:  # noqa: PT011 - the kinds are compared below
            await branch(scope, None, None)
        raised.append(info.type)
    assert raised[2:] == [TooFast] * 3
    assert len(added) == 2

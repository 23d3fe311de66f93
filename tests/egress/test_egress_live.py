"""A policy while the sandbox runs: changed, held, paused, and kept when poold or the proxy dies."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.egress import ENDED
from poold.egress.forks import UID_OFFSET
from tests.bench.host import Host
from tests.egress.conftest import BASE_UID, SLOTS
from tests.egress.internet import Internet
from tests.egress.web import MARK, digest_of
from tests.vm.client import Api, Reply, Sandbox, until

WEB = {"host": "web.example.com"}
BIG = {"host": "big.example.com"}
OTHER = {"host": "other.example.com"}
FETCH = "curl -sS -m 20 http://{}.example.com/"


@pytest.fixture
def machine(api: Api, internet: Internet) -> Iterator[Sandbox]:
    with api.sandbox(image="minimal", network={"allow": [WEB, BIG]}, timeout_sec=1800) as sandbox:
        yield sandbox


def change(machine: Sandbox, **network: Any) -> Reply:
    reply = machine.api.call("PUT", f"{machine.path}/network", json.dumps(network).encode())
    assert reply.status == 200, reply
    return reply


def reaches(machine: Sandbox, name: str) -> bool:
    done = machine.run(FETCH.format(name))
    return MARK in done["stdout"]


def rows(machine: Sandbox, why: str | None = None) -> list[dict[str, Any]]:
    found = machine.api.call("GET", f"{machine.path}/egress?limit=1000").json["rows"]
    return [row for row in found if why is None or row["why"] == why]


def opens(machine: Sandbox) -> list[str]:
    found = machine.api.call("GET", f"{machine.path}/egress?limit=1").json["open"]
    return [each["name"] for each in found]


def proxies() -> dict[int, int]:
    """The proxies of this host's machines: their process, by their slot's number."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            slot = entry.stat().st_uid - UID_OFFSET - BASE_UID
            if 0 <= slot < SLOTS:
                found[slot] = int(entry.name)
    return found


@contextlib.contextmanager
def download(machine: Sandbox, blocks: int, wait_s: float) -> Iterator[list[str]]:
    """A slow download during the block, which nobody outside of the machine waits for. Gives how it is asked for."""
    path = f"/bytes/{blocks}?wait={wait_s}&who={machine.id}"
    fetch = f"curl -sS --fail 'http://big.example.com{path}' | sha256sum >/tmp/hash; echo $? >/tmp/done"
    machine.sh(f'rm -f /tmp/hash /tmp/done; (setsid bash -c "{fetch}" >/tmp/said 2>&1 &)')
    until(lambda: "big.example.com" in opens(machine))
    yield [path]


def test_a_policy_can_be_widened_and_narrowed_while_the_sandbox_runs(machine: Sandbox) -> None:
    assert reaches(machine, "web")
    assert not reaches(machine, "other")
    change(machine, allow=[OTHER])
    assert reaches(machine, "other")
    assert not reaches(machine, "web")
    change(machine, policy="deny")
    assert not reaches(machine, "other")
    change(machine, policy="open")
    assert reaches(machine, "web")
    assert reaches(machine, "other")


def test_what_is_no_longer_allowed_is_cut(machine: Sandbox, internet: Internet) -> None:
    with download(machine, 200, 0.1) as (path,):
        change(machine, allow=[WEB])
        until(lambda: machine.run("cat /tmp/done")["exit_code"] == 0)
        assert machine.sh("cat /tmp/hash").split()[0] != digest_of(200)
        assert path not in internet.web.sent
        until(lambda: rows(machine, "cut"))
        assert opens(machine) == []
        assert reaches(machine, "web")


def test_what_is_still_allowed_goes_on(machine: Sandbox) -> None:
    with download(machine, 30, 0.05):
        change(machine, allow=[BIG, OTHER])
        until(lambda: machine.run("cat /tmp/done")["exit_code"] == 0)
        assert machine.sh("cat /tmp/hash").split()[0] == digest_of(30)
        assert rows(machine, "cut") == []


def test_a_held_connection_waits_until_it_is_allowed(machine: Sandbox) -> None:
    change(machine, allow=[WEB], hold_sec=60)
    said: list[str] = []
    waiting = threading.Thread(target=lambda: said.append(machine.run(FETCH.format("other"))["stdout"]))
    waiting.start()
    until(lambda: any(event["kind"] == "egress_waiting" for event in machine.events()))
    assert said == []
    change(machine, allow=[WEB, OTHER], hold_sec=60)
    waiting.join(30)
    assert MARK in said[0]


def test_a_held_connection_that_nobody_allows_is_refused(machine: Sandbox) -> None:
    change(machine, allow=[WEB], hold_sec=1)
    assert not reaches(machine, "other")
    until(lambda: [row for row in rows(machine, "policy") if row["name"] == "other.example.com"])


def test_a_paused_sandbox_comes_back_with_its_policy(machine: Sandbox) -> None:
    machine.pause()
    machine.resume()
    assert reaches(machine, "web")
    assert not reaches(machine, "other")


def test_a_policy_that_was_changed_in_a_pause_holds_from_the_resume_on(machine: Sandbox) -> None:
    machine.pause()
    change(machine, allow=[OTHER])
    machine.resume()
    assert reaches(machine, "other")
    assert not reaches(machine, "web")


def test_a_download_goes_on_while_poold_is_dead_and_the_policy_holds_after_it(
    host: Host, machine: Sandbox, internet: Internet
) -> None:
    with download(machine, 40, 0.1) as (path,):
        host.kill()
        try:
            until(lambda: path in internet.web.sent)
        finally:
            host.start()
            host.wait_until_serving()
        until(lambda: machine.run("cat /tmp/done")["exit_code"] == 0)
        assert machine.sh("cat /tmp/hash").split()[0] == digest_of(40)
        assert reaches(machine, "web")
        assert not reaches(machine, "other")
        # What a proxy saw while nobody listened is told later.
        until(lambda: [row for row in rows(machine) if row["down"] >= 40 << 20])


def test_a_proxy_that_is_killed_comes_back_with_its_policy_and_what_was_cut_is_told(machine: Sandbox) -> None:
    with download(machine, 200, 0.1):
        for pid in proxies().values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: machine.run("cat /tmp/done")["exit_code"] == 0)
        assert machine.sh("cat /tmp/hash").split()[0] != digest_of(200)
        until(lambda: reaches(machine, "web"))
        assert not reaches(machine, "other")
        until(lambda: rows(machine, ENDED))
        assert [row["name"] for row in rows(machine, ENDED)] == ["big.example.com"]

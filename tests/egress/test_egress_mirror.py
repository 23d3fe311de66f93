"""Registries: what the host's own clients are set up for works in its sandboxes without a word."""

from collections.abc import Iterator

import pytest

from tests.egress.internet import Internet
from tests.vm.client import Api, Sandbox

INSTALL = "pip install -q --no-cache-dir --disable-pip-version-check --target /tmp/got warren-sample"


@pytest.fixture(scope="module")
def machine(api: Api) -> Iterator[Sandbox]:
    with api.sandbox(image="python", network={"policy": "registries"}) as sandbox:
        yield sandbox


def test_a_mirror_at_a_private_address_works_without_a_setting(machine: Sandbox, internet: Internet) -> None:
    machine.sh(INSTALL, timeout_sec=120)
    assert machine.sh("sha256sum /tmp/got/warren_sample/content.bin").split()[0] == internet.goods.content
    rows = machine.api.call("GET", f"{machine.path}/egress?verdict=allowed").json["rows"]
    assert {(row["name"], row["address"], row["rule"]) for row in rows} == {
        ("mirror.example.com", "10.0.0.5", "registries mirror.example.com:443")
    }


def test_the_hosts_password_for_it_does_not_reach_a_guest(machine: Sandbox) -> None:
    assert machine.sh("cat /etc/pip.conf && env && sudo env").count("secret") == 0
    assert machine.run("sudo grep -rl someone: /etc /home /root")["stdout"] == ""


def test_nothing_else_is_reached(machine: Sandbox) -> None:
    assert machine.run("curl -sS -m 10 https://web.example.com/")["exit_code"] != 0
    assert machine.run("curl -sS -m 10 https://mirror.example.com:8443/")["exit_code"] != 0


def test_the_mirror_is_private_to_whoever_is_not_allowed_registries(api: Api) -> None:
    with api.sandbox(network={"policy": "list", "allow": [{"host": "private.example.com"}]}) as sandbox:
        assert sandbox.run("curl -sS -m 10 https://mirror.example.com/")["exit_code"] != 0
        assert sandbox.run("curl -sS -m 10 https://private.example.com/")["exit_code"] != 0
        rows = sandbox.api.call("GET", f"{sandbox.path}/egress").json["rows"]
        assert all(row["verdict"] == "refused" for row in rows)

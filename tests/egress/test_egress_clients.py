"""Real clients, as everybody has them: they work where they are allowed, with and without settings for a proxy.

What they fetch is compared with what the server has.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.egress import guest_socket
from tests.egress.internet import Internet
from tests.egress.web import digest_of
from tests.vm.client import Api, Sandbox, until

DOWNLOAD_MB = int(os.environ.get("WARREN_EGRESS_DOWNLOAD_MB", "100"))
PROXY = "http://172.16.0.1:3128"
SETTINGS = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), PROXY)
ALLOWED = ("web", "pip", "git", "apt", "ws", "big")
NAME = "warren-sample"
APT = "-o Dir::Etc::sourcelist=/etc/apt/of-the-test.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"


@pytest.fixture(scope="module")
def machine(api: Api, internet: Internet) -> Iterator[Sandbox]:
    """With Python's own tools in it."""
    rules = [{"host": f"{name}.example.com"} for name in ALLOWED]
    with api.sandbox(image="python", network={"allow": rules}, timeout_sec=1800) as sandbox:
        yield sandbox


@pytest.fixture(params=[{}, SETTINGS], ids=["without settings", "with a proxy's settings"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    settings: dict[str, str] = request.param
    return settings


def hash_of(machine: Sandbox, path: str) -> str:
    return machine.sh(f"sha256sum {path}", user="root").split()[0]


def test_pip_installs_a_package(machine: Sandbox, internet: Internet, env: dict[str, str]) -> None:
    folder = f"/tmp/pip-{len(env)}"
    install = f"pip install -q --no-cache-dir --disable-pip-version-check --target {folder} {NAME}"
    machine.sh(install, env={**env, "PIP_INDEX_URL": "https://pip.example.com/simple"}, timeout_sec=120)
    assert hash_of(machine, f"{folder}/warren_sample/content.bin") == internet.goods.content


def test_git_clones_over_https(machine: Sandbox, internet: Internet, env: dict[str, str]) -> None:
    folder = f"/tmp/git-{len(env)}"
    machine.sh(f"git clone -q https://git.example.com/git/sample.git {folder}", env=env, timeout_sec=120)
    assert machine.sh(f"git -C {folder} rev-parse HEAD") == internet.goods.commit
    assert hash_of(machine, f"{folder}/content.bin") == internet.goods.content


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_curl_fetches(machine: Sandbox, env: dict[str, str], scheme: str) -> None:
    fetch = f"curl -sS --fail {scheme}://big.example.com/bytes/3 | sha256sum"
    assert machine.sh(fetch, env=env).split()[0] == digest_of(3)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_curl_sends(machine: Sandbox, internet: Internet, env: dict[str, str], scheme: str) -> None:
    make = "head -c 2000000 /dev/urandom > /tmp/sent && sha256sum < /tmp/sent"
    send = f"curl -sS --fail --data-binary @/tmp/sent {scheme}://web.example.com/echo | sha256sum"
    sent, echoed = machine.sh(f"{make} && {send}", env=env).splitlines()
    assert sent == echoed


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_apt_updates_and_installs(machine: Sandbox, internet: Internet, env: dict[str, str], scheme: str) -> None:
    source = f"deb [trusted=yes] {scheme}://apt.example.com/debian stable main"
    machine.sh(f"echo '{source}' > /etc/apt/of-the-test.list && apt-get purge -y {NAME} || true", user="root")
    machine.sh("apt-get clean; rm -rf /var/lib/apt/lists/*", user="root")
    install = f"apt-get {APT} update && apt-get {APT} install -y --no-install-recommends {NAME}"
    machine.sh(install, user="root", env={**env, "DEBIAN_FRONTEND": "noninteractive"}, timeout_sec=120)
    assert hash_of(machine, f"/usr/share/{NAME}/content.bin") == internet.goods.content


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("proxy", ["", "172.16.0.1 3128"], ids=["without settings", "with a proxy's settings"])
def test_a_websocket_carries_messages_both_ways(machine: Sandbox, scheme: str, proxy: str) -> None:
    machine.put("/tmp/guest_socket.py", Path(guest_socket.__file__).read_bytes())
    said = machine.sh(f"python3 /tmp/guest_socket.py {scheme} ws.example.com one,two,three {proxy}")
    assert said.split() == ["one", "two", "three"]


def test_a_large_download_arrives_as_it_was_sent(machine: Sandbox) -> None:
    fetch = f"curl -sS --fail https://big.example.com/bytes/{DOWNLOAD_MB} | sha256sum"
    assert machine.sh(fetch, timeout_sec=600).split()[0] == digest_of(DOWNLOAD_MB)


def test_a_large_download_by_the_proxy_arrives_as_it_was_sent(machine: Sandbox) -> None:
    fetch = "curl -sS --fail http://big.example.com/bytes/100 | sha256sum"
    assert machine.sh(fetch, env=SETTINGS, timeout_sec=600).split()[0] == digest_of(100)


def test_every_connection_of_a_client_is_a_row_with_its_bytes(machine: Sandbox) -> None:
    machine.sh("curl -sS --fail https://big.example.com/bytes/2 -o /dev/null")
    last = until(lambda: _small_download(machine))
    assert last["address"] == "93.184.215.24"
    assert last["port"] == 443
    assert last["via"] == "tls"
    assert 0 < last["up"] < 100_000
    assert last["rule"] == "big.example.com:80,443"


def _small_download(machine: Sandbox) -> dict[str, Any] | None:
    """The row of the only one of its size: told when both sides have closed the connection."""
    rows = machine.api.call("GET", f"{machine.path}/egress?limit=1000&verdict=allowed").json["rows"]
    small = [row for row in rows if row["name"] == "big.example.com" and 2 << 20 < row["down"] < 3 << 20]
    return small[-1] if small else None

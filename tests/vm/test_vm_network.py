"""A sandbox reaches nothing: not the host, not another sandbox, not the world. It is told so at once."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.bench.host import Host
from tests.vm.client import Api, Sandbox

LIMIT_S = 3.0
PUBLIC = "1.1.1.1"

# What happens to a TCP connection to each target, and how long that takes. The proxy takes a connection before it knows
# what to think of it, and hangs up then: only who says something back is there.
KNOCK = """
import json, socket, sys, time
def knock(address, port):
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=10) as there:
            there.sendall(b"hello")
            outcome = "connected" if there.recv(100) else "hung up"
    except TimeoutError:
        outcome = "connected"
    except OSError as error:
        outcome = type(error).__name__ + " " + str(error)
    return outcome, time.monotonic() - began
print(json.dumps([knock(address, port) for address, port in json.loads(sys.argv[1])]))
"""

# What comes back to a datagram.
ASK = """
import json, socket, sys, time
began = time.monotonic()
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(10)
try:
    sock.connect((sys.argv[1], 123))
    sock.send(bytes.fromhex("abcd01000001000000000000076578616d706c6503636f6d0000010001"))
    outcome = "answered " + sock.recv(512).hex()
except OSError as error:
    outcome = type(error).__name__
print(json.dumps([outcome, time.monotonic() - began]))
"""


@contextlib.contextmanager
def listener() -> Iterator[socket.socket]:
    """A server on every address of the host, to which a packet would get through if there were a way."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0)
        yield server


def host_addresses() -> list[str]:
    said = subprocess.run(["ip", "-j", "-4", "addr"], check=True, capture_output=True, text=True).stdout
    return [info["local"] for link in json.loads(said) for info in link["addr_info"] if link["ifname"] != "lo"]


def knock(sandbox: Sandbox, targets: list[tuple[str, int]]) -> list[tuple[str, float]]:
    done = sandbox.run(["python3", "-c", KNOCK, json.dumps(targets)])
    assert done["exit_code"] == 0, done
    outcomes: list[tuple[str, float]] = json.loads(done["stdout"])
    return outcomes


def test_a_sandbox_cannot_connect_to_the_host_and_is_told_so_at_once(host: Host, shared: Sandbox) -> None:
    addresses = [*host_addresses(), "172.16.0.1"]
    assert len(addresses) >= 2, "the host has no network to be protected"
    with listener() as server:
        open_port = server.getsockname()[1]
        targets = [(address, port) for address in addresses for port in (open_port, host.port, 22)]
        for target, (outcome, seconds) in zip(targets, knock(shared, targets), strict=True):
            assert outcome != "connected", target
            assert seconds < LIMIT_S, (target, outcome)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_sandbox_cannot_connect_to_another_sandbox(api: Api, shared: Sandbox) -> None:
    serve = "exec python3 -m http.server 8000 --bind 0.0.0.0"
    with api.sandbox() as other, other.follow(serve, env={"PYTHONUNBUFFERED": "1"}) as events:
        assert next(events)[0] == "start"
        assert "Serving" in next(events)[1]["data"]
        # All machines have the same address, so their own is the nearest that a sandbox comes to another's.
        targets = [(f"172.16.0.{n}", port) for n in (1, 2, 3, 4, 5) for port in (8000, 1024)]
        targets.remove(("172.16.0.2", 1024))  # its own guest, which serves only the host
        for target, (outcome, seconds) in zip(targets, knock(shared, targets), strict=True):
            assert outcome != "connected", target
            assert seconds < LIMIT_S, (target, outcome)


def test_a_program_in_a_sandbox_gets_no_answer_from_its_own_guest(shared: Sandbox) -> None:
    done = shared.run("curl -sS -m 10 http://172.16.0.2:1024/health")
    assert done["exit_code"] != 0
    assert "contract" not in done["stdout"]


def test_a_sandbox_cannot_connect_to_the_world_and_is_told_so_at_once(shared: Sandbox) -> None:
    for outcome, seconds in knock(shared, [(PUBLIC, 443), (PUBLIC, 80), ("8.8.8.8", 853), ("169.254.169.254", 80)]):
        assert outcome != "connected"
        assert seconds < LIMIT_S, outcome


def test_a_sandbox_cannot_ask_for_names_and_is_told_so_at_once(shared: Sandbox) -> None:
    resolve = """
import json, socket, time
began = time.monotonic()
try:
    outcome = str(socket.getaddrinfo("example.com", 443))
except socket.gaierror as error:
    outcome = "gaierror"
print(json.dumps([outcome, time.monotonic() - began]))
"""
    outcome, seconds = shared.python(resolve)
    assert outcome == "gaierror"
    assert seconds < LIMIT_S


@pytest.mark.parametrize("address", [PUBLIC, "172.16.0.1"])
def test_a_datagram_out_of_a_sandbox_is_refused_at_once(shared: Sandbox, address: str) -> None:
    done = shared.run(["python3", "-c", ASK, address])
    outcome, seconds = json.loads(done["stdout"])
    assert outcome in ("OSError", "ConnectionRefusedError")
    assert seconds < LIMIT_S


def test_root_in_a_sandbox_reaches_no_more_with_a_route_and_an_address_of_its_choice(sandbox: Sandbox) -> None:
    sandbox.sh("ip route replace default via 172.16.0.1 dev eth0 && ip addr add 10.9.8.7/24 dev eth0", user="root")
    with listener() as server:
        port = server.getsockname()[1]
        targets = [(address, port) for address in (*host_addresses(), "172.16.0.1")]
        assert all(outcome != "connected" for outcome, _ in knock(sandbox, [*targets, (PUBLIC, 443)]))
        with pytest.raises(BlockingIOError):
            server.accept()

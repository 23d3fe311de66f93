"""Small parts of the gateway: its tickets, its log, its metrics, its pages of lists, and work that goes on."""

import asyncio
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from contract.network import Mode, Network
from contract.tickets import LIFE_MS, Access, BadTicket, Verifier
from gateway.background import Background
from gateway.errors import ConfigError, HostSaid
from gateway.handlers.asking import merged
from gateway.handlers.observe import summed
from gateway.logs import MAX_WAITING_LINES, AccessLog
from gateway.metrics import Metrics
from gateway.tickets import REUSED_MS, Tickets


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000


def write_key(path: Path) -> bytes:
    """A new key in the file; its public half."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def open_tickets(path: Path, clock: Clock) -> Tickets:
    numbers = iter(range(1000))
    return Tickets(path, now_ms=lambda: clock.ms, nonce=lambda: str(next(numbers)))


def test_a_ticket_is_reused_while_it_is_good_for_as_long_again(tmp_path: Path) -> None:
    clock = Clock()
    public = write_key(tmp_path / "key")
    tickets = open_tickets(tmp_path / "key", clock)
    first = tickets.get("a", "red", Access.READ, "sb-1")
    clock.ms += REUSED_MS - 1
    assert tickets.get("a", "red", Access.READ, "sb-1") == first
    told = Verifier("a", [public], now_ms=lambda: clock.ms).verify(first)
    assert told.expires_ms - clock.ms >= LIFE_MS - REUSED_MS
    clock.ms += 1
    assert tickets.get("a", "red", Access.READ, "sb-1") != first


def test_no_two_permissions_share_a_ticket(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    tickets = open_tickets(tmp_path / "key", Clock())
    made = {
        tickets.get("a", "red", Access.READ, "sb-1"),
        tickets.get("b", "red", Access.READ, "sb-1"),
        tickets.get("a", "blue", Access.READ, "sb-1"),
        tickets.get("a", "red", Access.WRITE, "sb-1"),
        tickets.get("a", "red", Access.READ, "sb-2"),
        tickets.once("a", "red", Access.READ, "sb-1")[0],
        tickets.once("a", "red", Access.READ, "sb-1")[0],
    }
    assert len(made) == 7


def test_a_ticket_with_a_network_is_made_for_one_create(tmp_path: Path) -> None:
    clock = Clock()
    public = write_key(tmp_path / "key")
    tickets = open_tickets(tmp_path / "key", clock)
    network = Network(Mode.REGISTRIES)
    made = {tickets.get("a", "red", Access.WRITE, "sb-1", network=network) for _ in range(2)}
    assert len(made) == 2
    reader = Verifier("a", [public], now_ms=lambda: clock.ms)
    assert [Network.decode(reader.verify(each).network or {}) for each in made] == [network, network]
    assert reader.verify(tickets.get("a", "red", Access.WRITE, "sb-1")).network is None


def test_a_new_key_in_the_file_signs_from_then_on(tmp_path: Path) -> None:
    clock = Clock()
    write_key(tmp_path / "key")
    tickets = open_tickets(tmp_path / "key", clock)
    old = tickets.get("a", "red", Access.READ)
    verifier = Verifier("a", [write_key(tmp_path / "key")], now_ms=lambda: clock.ms)
    tickets.refresh()
    assert verifier.verify(tickets.get("a", "red", Access.READ)).owner == "red"
    with pytest.raises(BadTicket):
        verifier.verify(old)
    (tmp_path / "key").write_bytes(b"half of a k")
    tickets.refresh()
    assert verifier.verify(tickets.get("a", "red", Access.READ)).owner == "red", "the last good one stays in use"


def test_a_gateway_without_a_key_for_tickets_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GATEWAY_PKI"):
        open_tickets(tmp_path / "key", Clock())


def test_lines_that_nobody_takes_are_counted_and_not_kept() -> None:
    written: list[bytes] = []
    log = AccessLog(written.append)
    for number in range(MAX_WAITING_LINES + 5):
        log.add({"number": number})
    log.flush()
    lines = [orjson.loads(line) for line in b"".join(written).splitlines()]
    assert len(lines) == MAX_WAITING_LINES + 1
    assert lines[-1]["lines"] == 5


async def test_the_last_lines_are_written_at_the_end() -> None:
    written: list[bytes] = []
    log = AccessLog(written.append)
    task = asyncio.create_task(log.keep())
    await asyncio.sleep(0)
    log.add({"last": True})
    task.cancel()
    await asyncio.wait([task])
    assert b"".join(written) == b'{"last":true}\n'


def test_metrics_count_by_operation_and_status() -> None:
    metrics = Metrics()
    metrics.count("get_sandbox", 200, 0.002)
    metrics.count("get_sandbox", 200, 100.0)
    metrics.upstream_failed("a")
    lines = metrics.render({"hosts": lambda: {("alive",): 2}}).decode().splitlines()
    assert 'gateway_requests_total{operation="get_sandbox",status="200"} 2' in lines
    assert 'gateway_request_seconds_bucket{operation="get_sandbox",le="0.0025"} 1' in lines
    assert 'gateway_request_seconds_bucket{operation="get_sandbox",le="+Inf"} 2' in lines
    assert 'gateway_upstream_failures_total{host="a"} 1' in lines
    assert 'gateway_hosts{kind="alive"} 2' in lines


rows = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 99)), unique=True, max_size=40)


@given(rows, st.integers(1, 4), st.integers(1, 7))
def test_pages_of_many_hosts_tell_each_sandbox_once_and_in_order(
    found: list[tuple[int, int]], hosts: int, limit: int
) -> None:
    """As a client reads them: page after page behind the cursor, from hosts that know nothing of each other."""
    all_rows = [{"created_ms": created, "id": f"sb-{number:02}"} for created, number in found]
    told, before = [], None
    for _ in range(len(found) + 1):
        pages = [_page(all_rows[host::hosts], limit, before) for host in range(hosts)]
        page, before = merged(pages, limit)
        assert len(page) <= limit
        told += page
        if before is None:
            break
    assert told == sorted(all_rows, key=lambda row: (row["created_ms"], row["id"]), reverse=True)


def _page(rows: list[dict[str, object]], limit: int, before: str | None) -> dict[str, object]:
    """What a host answers."""
    order = sorted(rows, key=lambda row: (row["created_ms"], row["id"]), reverse=True)
    if before is not None:
        created, _, name = before.partition(".")
        order = [row for row in order if (row["created_ms"], row["id"]) < (int(created), name)]
    return {"sandboxes": order[:limit], "next": "some" if len(order) > limit else None}


def test_usage_is_summed_by_owner() -> None:
    one, two = {"owner": "red", "runs": 1, "vcpu_s": 0.5}, {"owner": "blue", "runs": 2, "vcpu_s": 1}
    assert summed([[one, two], [one]]) == [two, {"owner": "red", "runs": 2, "vcpu_s": 1.0}]


@pytest.mark.parametrize(
    "value", [None, [], "x", {}, {"error": 1}, {"error": {}}, {"error": {"code": 1, "message": 2}}]
)
def test_whatever_a_host_refuses_with_has_a_code_and_a_message(value: object) -> None:
    error = HostSaid(418, value).body()["error"]
    assert isinstance(error["code"], str)
    assert isinstance(error["message"], str)


async def test_work_goes_on_until_it_is_done_or_given_up() -> None:
    background, done = Background(), asyncio.Event()
    background.start(asyncio.sleep(0.01)).add_done_callback(lambda _: done.set())
    endless = background.start(asyncio.Event().wait())
    await background.close(0.1)
    assert done.is_set()
    assert endless.cancelled()

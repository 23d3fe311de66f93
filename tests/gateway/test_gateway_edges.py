"""What hostile clients send, to the real server: refused, and no harm to the next request."""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.gateway.cluster import Cluster, ask, operate, wait_for


@pytest.fixture
def red(pair: Cluster) -> Iterator[str]:
    secret = pair.key("red")
    yield secret
    for row in ask(pair.gateways[0].port, "GET", "/v1/sandboxes?limit=1000", key=secret).json["sandboxes"]:
        ask(pair.gateways[0].port, "DELETE", f"/v1/sandboxes/{row['id']}", key=secret)


def raw(port: int, data: bytes) -> bytes:
    """All that is answered to these bytes, until the server hangs up or says nothing more."""
    told = b""
    with socket.create_connection(("127.0.0.1", port), 5) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        while piece := connection.recv(65536):
            told += piece
            if b"\r\n\r\n" in told:
                connection.settimeout(0.3)
    return told


SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
TWO_WAYS = {
    "both lengths": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
    "one length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n{}   ",
    "a list of lengths": b"Content-Length: 5, 6\r\n\r\n{}   ",
    "less than nothing": b"Content-Length: -1\r\n\r\n{}   ",
    "a length with a sign": b"Content-Length: +5\r\n\r\n{}   ",
    "a coding that is not chunked": b"Transfer-Encoding: gzip, identity\r\n\r\n{}   ",
    "chunks inside another coding": b"Transfer-Encoding: chunked, gzip\r\n\r\n{}   ",
    "a coding that looks like chunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a zero in a header": b"X: a\0b\r\n\r\n",
    "a bare carriage return": b"X: a\rTransfer-Encoding: chunked\r\n\r\n",
    "two hosts": b"Host: y\r\n\r\n",
}
BAD_CHUNKS = {
    "no number": b"zz\r\n{}\r\n0\r\n\r\n",
    "more than the chunk has": b"2\r\n{}}\r\n0\r\n\r\n",
    "a number beyond all bounds": b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "less than nothing": b"-2\r\n{}\r\n0\r\n\r\n",
}


def written(cluster: Cluster, action: str) -> int:
    """How often the hosts' audits have it."""
    pages = [operate(host, "GET", f"/admin/audit?action={action}&limit=1000") for host in cluster.hosts.values()]
    return sum(row["detail"]["count"] for page in pages for row in page["rows"])


@contextlib.contextmanager
def in_the_audit(cluster: Cluster, action: str) -> Iterator[None]:
    """What happens in the block is an audit row on some host, soon after it."""
    before = written(cluster, action)
    yield
    wait_for(lambda: written(cluster, action) > before, f"the row of {action}")


def post(key: str) -> bytes:
    return b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key.encode() + b"\r\n"


@pytest.mark.parametrize("rest", TWO_WAYS.values(), ids=TWO_WAYS)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_written_down(
    pair: Cluster, red: str, rest: bytes
) -> None:
    with in_the_audit(pair, "gateway.bad_framing"):
        told = raw(pair.gateways[0].port, post(red) + rest + SMUGGLED)
    assert told.startswith(b"HTTP/1.1 400"), told[:200]
    assert b"bad_framing" in told
    assert b'"ok":true' not in told  # what stood behind it was not taken for a request
    assert ask(pair.gateways[0].port, "GET", "/v1/sandboxes", key=red).json["sandboxes"] == []


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_chunks_that_are_none_are_refused_and_written_down(pair: Cluster, red: str, body: bytes) -> None:
    with in_the_audit(pair, "gateway.bad_framing"):
        told = raw(pair.gateways[0].port, post(red) + b"Transfer-Encoding: chunked\r\n\r\n" + body + SMUGGLED)
    assert told.startswith(b"HTTP/1.1 4"), told[:200]
    assert b'"ok":true' not in told
    assert ask(pair.gateways[0].port, "GET", "/v1/sandboxes", key=red).json["sandboxes"] == []


def test_a_head_of_a_megabyte_is_refused_and_written_down(pair: Cluster, red: str) -> None:
    with in_the_audit(pair, "gateway.head_too_large"):
        told = raw(pair.gateways[0].port, post(red) + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 431"), told[:200]
    assert b"head_too_large" in told


def test_a_head_that_comes_too_slowly_is_refused_and_written_down(pair: Cluster) -> None:
    told = b""
    with (
        in_the_audit(pair, "gateway.slow_head"),
        socket.create_connection(("127.0.0.1", pair.gateways[0].port), 5) as connection,
    ):
        connection.settimeout(0.5)
        for letter in (b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 100)[:60]:
            connection.sendall(bytes([letter]))
            with contextlib.suppress(TimeoutError):
                told = connection.recv(65536)
                break
    assert told.startswith(b"HTTP/1.1 408"), told[:200]
    assert b"slow_head" in told


def test_wrong_keys_are_throttled_by_address_and_a_good_one_is_not(pair: Cluster, red: str) -> None:
    port, wrong = pair.gateways[0].port, "wrn_" + "0" * 40
    replies = [ask(port, "GET", "/v1/sandboxes", key=wrong, address="127.0.0.77") for _ in range(11)]
    assert [each.status for each in replies] == [401] * 10 + [429]
    assert int(replies[-1].headers["retry-after"]) > 0
    assert ask(port, "GET", "/v1/sandboxes", key=red, address="127.0.0.77").status == 200
    assert ask(port, "GET", "/v1/sandboxes", key=wrong, address="127.0.0.78").status == 401


def terminal_says(connection: ClientConnection, word: str) -> None:
    """The terminal runs what is typed, and its output comes back."""
    with connection:
        assert json.loads(connection.recv(30))["type"] == "start"
        connection.send(f"echo $((40+2))-{word}\n".encode())
        told = b""
        while f"42-{word}".encode() not in told:
            message = connection.recv(30)
            told += message if isinstance(message, bytes) else b""


def test_a_terminal_works_through_the_gateway_and_by_attaching_to_the_host(pair: Cluster, red: str) -> None:
    path = ask(pair.gateways[0].port, "POST", "/v1/sandboxes", {}, key=red).headers["location"]
    port = pair.gateways[1].port
    through = f"ws://127.0.0.1:{port}{path}/terminal"
    terminal_says(connect(through, additional_headers={"Authorization": f"Bearer {red}"}), "header")
    in_browser = connect(through, subprotocols=["warren", f"warren-key.{red}"])
    assert in_browser.subprotocol == "warren"
    terminal_says(in_browser, "browser")
    attach = ask(port, "POST", f"{path}/attach", key=red).json
    terminal_says(connect(attach["url"], additional_headers={"Warren-Ticket": attach["ticket"]}), "attach")
    with pytest.raises(InvalidStatus) as again:
        connect(attach["url"], additional_headers={"Warren-Ticket": attach["ticket"]})
    assert again.value.response.status_code == 401


@pytest.mark.parametrize(
    ("key", "rest", "status"),
    [
        (None, "/terminal", 401),
        ("wrn_" + "1" * 40, "/terminal", 401),
        ("red", "/nothing", 404),
        ("red", "/terminal", 404),
    ],
)
def test_a_websocket_is_refused_with_a_status(pair: Cluster, red: str, key: str | None, rest: str, status: int) -> None:
    headers = {} if key is None else {"X-API-Key": red if key == "red" else key}
    url = f"ws://127.0.0.1:{pair.gateways[0].port}/v1/sandboxes/sb-aaaaaaaaaaaaaaaa{rest}"
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=headers)
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body)["error"]["code"]

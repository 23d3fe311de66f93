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


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: gzip, identity\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Host: y\r\n",
        b"X: " + b"a" * (1 << 20) + b"\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(pair: Cluster, red: str, head: bytes) -> None:
    begin = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + red.encode() + b"\r\n"
    told = raw(pair.gateways[0].port, begin + head + b"\r\n{}   ")
    assert told.startswith(b"HTTP/1.1 4"), told[:200]
    assert b"HTTP/1.1 2" not in told
    assert ask(pair.gateways[0].port, "GET", "/v1/sandboxes", key=red).json["sandboxes"] == []


def test_nothing_is_smuggled_behind_two_lengths(pair: Cluster, red: str) -> None:
    """Whatever the server makes of both length headers, what follows is not taken for a request."""
    begin = b"POST /v1/sandboxes/sb-aaaaaaaaaaaaaaaa/exec HTTP/1.1\r\nHost: x\r\nX-API-Key: " + red.encode() + b"\r\n"
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % (5 + len(SMUGGLED))
    told = raw(pair.gateways[0].port, begin + lengths + b"0\r\n\r\n" + SMUGGLED)
    assert told.startswith(b"HTTP/1.1 4"), told[:200]
    assert b'"ok":true' not in told


def test_two_hosts_in_a_request_are_an_audit_row(pair: Cluster, red: str) -> None:
    told = raw(pair.gateways[0].port, b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400")

    def is_written() -> bool:
        pages = [operate(host, "GET", "/admin/audit?action=gateway.bad_framing") for host in pair.hosts.values()]
        return any(page["rows"] for page in pages)

    wait_for(is_written, "the row")


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

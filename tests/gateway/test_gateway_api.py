"""The API through real gateways: whichever of them is asked, and on whichever host a sandbox is."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest

from contract.keys import Scope
from tests.gateway.cluster import EVERYTHING, Cluster, Reply, ask, operate, wait_for


@pytest.fixture
def red(pair: Cluster) -> Iterator[str]:
    yield from owner(pair, "red")


@pytest.fixture
def blue(pair: Cluster) -> Iterator[str]:
    yield from owner(pair, "blue")


@pytest.fixture
def admin(pair: Cluster) -> Iterator[str]:
    yield from owner(pair, "boss", scopes=EVERYTHING)


def owner(pair: Cluster, name: str, **fields: object) -> Iterator[str]:
    """A key that all gateways know; after the test nothing of its owner runs."""
    secret = pair.key(name, **fields)
    yield secret
    for row in ask(pair.gateways[0].port, "GET", "/v1/sandboxes?limit=1000", key=secret).json["sandboxes"]:
        ask(pair.gateways[0].port, "DELETE", f"/v1/sandboxes/{row['id']}", key=secret)


def create(pair: Cluster, key: str, body: object = None, gateway: int = 0, **headers: str) -> Reply:
    return ask(pair.gateways[gateway].port, "POST", "/v1/sandboxes", body, key=key, **headers)


def test_a_sandbox_is_the_same_through_every_gateway(pair: Cluster, red: str) -> None:
    made = [create(pair, red, {"metadata": {"n": str(n)}}, gateway=n % 2) for n in range(4)]
    assert [each.status for each in made] == [201] * 4
    for number, each in enumerate(made):
        path = each.headers["location"]
        for gateway in pair.gateways:
            assert ask(gateway.port, "GET", path, key=red).json["metadata"] == {"n": str(number)}
        ran = ask(pair.gateways[1].port, "POST", f"{path}/exec", {"cmd": f"echo {number}"}, key=red)
        assert ran.json["stdout"] == f"{number}\n"


def test_a_file_goes_up_through_one_gateway_and_comes_down_through_the_other(pair: Cluster, red: str) -> None:
    path = f"{create(pair, red).headers['location']}/files?path=/tmp/warren-gateway-test-file"
    content = bytes(range(256)) * 8192
    assert ask(pair.gateways[0].port, "PUT", path, content, key=red).status == 200
    assert ask(pair.gateways[1].port, "GET", path, key=red).body == content
    ran = ask(
        pair.gateways[0].port,
        "POST",
        path.split("/files", maxsplit=1)[0] + "/exec",
        {"cmd": "rm /tmp/warren-gateway-test-file"},
        key=red,
    )
    assert ran.json["exit_code"] == 0


def test_lists_are_over_all_hosts_and_come_in_pages(pair: Cluster, red: str, blue: str) -> None:
    made = [create(pair, red, {"metadata": {"odd": str(n % 2)}}).json["id"] for n in range(5)]
    assert create(pair, blue).status == 201
    port, found, before = pair.gateways[1].port, [], ""
    while True:
        page = ask(port, "GET", f"/v1/sandboxes?limit=2{before}", key=red).json
        assert page["incomplete"] == []
        found += [row["id"] for row in page["sandboxes"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == made[::-1]
    odd = ask(port, "GET", "/v1/sandboxes?metadata.odd=1&state=running", key=red).json["sandboxes"]
    assert [row["id"] for row in odd] == [made[3], made[1]]
    assert ask(port, "GET", "/v1/sandboxes?image=nothing", key=red).json["sandboxes"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "before=1", "state=odd", "colour=red", "limit=1&limit=2"])
def test_a_query_that_makes_no_sense_is_refused(pair: Cluster, red: str, query: str) -> None:
    reply = ask(pair.gateways[0].port, "GET", f"/v1/sandboxes?{query}", key=red)
    assert (reply.status, reply.code) == (400, "bad_field")


def test_anothers_sandbox_does_not_exist(pair: Cluster, red: str, blue: str) -> None:
    path = create(pair, red).headers["location"]
    for method, rest in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/exec"),
        ("GET", "/files?path=/etc/hostname"),
        ("GET", "/events"),
        ("GET", "/network"),
        ("PUT", "/network"),
        ("GET", "/egress"),
        ("POST", "/attach"),
        ("POST", "/pause"),
    ):
        body = {"cmd": "true"} if rest == "/exec" else None
        reply = ask(pair.gateways[0].port, method, path + rest, body, key=blue)
        assert (method, rest, reply.status, reply.code) == (method, rest, 404, "not_found")
    assert ask(pair.gateways[0].port, "GET", path, key=red).json["state"] == "running"

    def written() -> bool:
        pages = [operate(host, "GET", "/admin/audit?action=ticket.refused") for host in pair.hosts.values()]
        rows = [row for page in pages for row in page["rows"]]
        return any(row["sandbox"] == path.rpartition("/")[2] and "another owner" in str(row) for row in rows)

    wait_for(written, "the row")


def test_only_an_admin_sees_everybodys(pair: Cluster, red: str, blue: str, admin: str) -> None:
    path = create(pair, red).headers["location"]
    port = pair.gateways[0].port
    assert ask(port, "GET", "/v1/sandboxes?owner=red", key=blue).code == "forbidden"
    rows = ask(port, "GET", "/v1/sandboxes?owner=red", key=admin).json["sandboxes"]
    assert [row["id"] for row in rows] == [path.rpartition("/")[2]]
    assert len(ask(port, "GET", "/v1/sandboxes?owner=*", key=admin).json["sandboxes"]) >= 1
    assert ask(port, "GET", "/v1/sandboxes", key=admin).json["sandboxes"] == []
    used = ask(port, "GET", "/v1/usage?owner=red", key=admin).json["owners"]
    assert [row["owner"] for row in used] == ["red"]
    assert ask(port, "GET", "/v1/usage?owner=red", key=blue).status == 403
    assert ask(port, "GET", "/v1/hosts", key=blue).status == 403
    assert {row["name"] for row in ask(port, "GET", "/v1/hosts", key=admin).json["hosts"]} == set(pair.hosts)


def test_the_same_idempotency_key_makes_one_sandbox_through_whichever_gateway(pair: Cluster, red: str) -> None:
    body = {"metadata": {"a": "1"}}
    first = create(pair, red, body, gateway=0, Idempotency_Key="k-1")
    second = create(pair, red, body, gateway=1, Idempotency_Key="k-1")
    assert (first.status, second.status) == (201, 201)
    assert first.json == second.json
    assert second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    other = create(pair, red, {"metadata": {"a": "2"}}, gateway=1, Idempotency_Key="k-1")
    assert (other.status, other.code) == (422, "key_reused")
    rows = ask(pair.gateways[0].port, "GET", "/v1/sandboxes", key=red).json["sandboxes"]
    assert [row["id"] for row in rows] == [first.json["id"]]


def test_a_sandbox_whose_client_left_is_destroyed(pair: Cluster, red: str) -> None:
    """Nobody knows its id, so nobody could."""
    marked = {"metadata": {"left": "yes"}, "memory_mb": 320}
    leave_after_sending(pair.gateways[0].port, red, marked)
    path = "/v1/sandboxes?metadata.left=yes&state=stopped"
    port = pair.gateways[1].port
    wait_for(lambda: len(ask(port, "GET", path, key=red).json["sandboxes"]) == 1, "the end of the sandbox")
    assert ask(port, "GET", "/v1/sandboxes?metadata.left=yes", key=red).json["sandboxes"] == []


def test_a_client_that_left_can_ask_again_with_its_idempotency_key(pair: Cluster, red: str) -> None:
    marked = {"metadata": {"left": "with a key"}, "memory_mb": 384}
    leave_after_sending(pair.gateways[0].port, red, marked, "Idempotency-Key: k-2\r\n")
    again = create(pair, red, marked, gateway=1, Idempotency_Key="k-2")
    assert again.status == 201
    rows = ask(pair.gateways[0].port, "GET", "/v1/sandboxes", key=red).json["sandboxes"]
    assert [row["id"] for row in rows] == [again.json["id"]]


def leave_after_sending(port: int, key: str, body: object, more: str = "") -> None:
    """Ask for a shape that no machine is warm for, and leave while it is being made."""
    data = json.dumps(body).encode()
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n{more}Content-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + data)
        wait_for(
            lambda: ask(port, "GET", "/v1/sandboxes?state=pending,starting", key=key).json["sandboxes"] != [], "it"
        )


def test_a_key_without_the_scope_is_forbidden(pair: Cluster) -> None:
    secret = pair.key("narrow", scopes=(Scope.TASKS,))
    port = pair.gateways[0].port
    reply = ask(port, "GET", "/v1/sandboxes", key=secret)
    assert (reply.status, reply.code, reply.json["error"]["scope"]) == (403, "forbidden", "sandboxes")


def test_keys_are_made_rotated_and_revoked_over_the_api(pair: Cluster, admin: str) -> None:
    here, there = (gateway.port for gateway in pair.gateways)
    made = ask(here, "POST", "/v1/keys", {"owner": "green", "name": "laptop"}, key=admin)
    assert made.status == 201
    secret, path = made.json["secret"], made.headers["location"]
    assert ask(here, "GET", "/v1/usage", key=secret).status == 200, "where it was made it is good at once"
    wait_for(lambda: ask(there, "GET", "/v1/usage", key=secret).status == 200, "the key elsewhere")
    for reply in (ask(there, "GET", path, key=admin), ask(there, "GET", "/v1/keys", key=admin)):
        assert reply.status == 200
        assert secret[4:].encode() not in reply.body
    turned = ask(there, "POST", f"{path}/rotate", {"grace_sec": 3600}, key=admin)
    assert turned.status == 201
    assert turned.json["owner"] == "green"
    assert ask(there, "GET", "/v1/usage", key=turned.json["secret"]).status == 200
    assert ask(there, "GET", "/v1/usage", key=secret).status == 200, "the grace"
    began = time.monotonic()
    assert ask(there, "DELETE", path, key=admin).json["active"] is False
    for port in (here, there):
        wait_for(lambda port=port: ask(port, "GET", "/v1/usage", key=secret).status in (401, 429), "the refusal")
    assert time.monotonic() - began < 5
    assert ask(here, "DELETE", f"/v1/keys/{'0' * 64}", key=admin).status == 404
    assert ask(here, "POST", "/v1/keys", {"owner": "no good"}, key=admin).code == "bad_field"


def test_attach_gives_a_ticket_for_the_host_itself(pair: Cluster, red: str) -> None:
    path = create(pair, red).headers["location"]
    reply = ask(pair.gateways[0].port, "POST", f"{path}/attach", key=red)
    assert reply.status == 200
    assert reply.json["url"].removesuffix(f"{path}/terminal") in {
        f"ws://127.0.0.1:{host.port}" for host in pair.hosts.values()
    }
    assert reply.json["ticket"].startswith("wt1.")
    assert ask(pair.gateways[0].port, "DELETE", path, key=red).status == 200
    assert ask(pair.gateways[0].port, "POST", f"{path}/attach", key=red).code == "wrong_state"


def test_every_reply_with_a_key_tells_its_rate(pair: Cluster) -> None:
    secret = pair.key("slow", rate=1)
    port = pair.gateways[0].port
    replies = [ask(port, "GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa", key=secret) for _ in range(4)]
    assert {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"} <= set(replies[-1].headers)
    assert (replies[-1].status, replies[-1].code) == (429, "rate_limited")
    assert replies[-1].headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "no_such_route"),
        ("GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa/nothing", 404, "no_such_route"),
        ("PATCH", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa", 405, "method_not_allowed"),
        ("GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa/exec", 405, "method_not_allowed"),
        ("PUT", "/v1/keys", 405, "method_not_allowed"),
        ("GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa", 404, "not_found"),
        ("GET", "/v1/sandboxes/%2e%2e", 404, "not_found"),
        ("DELETE", "/v1/sandboxes/x", 404, "not_found"),
    ],
)
def test_what_is_not_there_is_refused_in_one_shape(  # noqa: PLR0917
    pair: Cluster, red: str, method: str, path: str, status: int, code: str
) -> None:
    reply = ask(pair.gateways[0].port, method, path, key=red)
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["x-request-id"]
    assert reply.headers["content-type"] == "application/json"
    assert (status != 405) or reply.headers["allow"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b'{"colour": 1}', 400, "bad_field"),
        (b'{"image": "nothing"}', 400, "bad_field"),
        (b'{"vcpus": 1000}', 400, "bad_field"),
        (b'{"metadata": {"a": "' + b"x" * (2 << 20) + b'"}}', 413, "body_too_large"),
    ],
)
def test_a_bad_create_is_refused_before_any_host_hears_of_it(
    pair: Cluster, red: str, body: bytes, status: int, code: str
) -> None:
    reply = ask(pair.gateways[0].port, "POST", "/v1/sandboxes", body, key=red)
    assert (reply.status, reply.code) == (status, code)


def test_a_request_id_of_the_clients_is_kept_if_it_makes_sense(pair: Cluster, red: str) -> None:
    port = pair.gateways[0].port
    assert ask(port, "GET", "/v1/sandboxes", key=red, X_Request_Id="mine-1").headers["x-request-id"] == "mine-1"
    assert ask(port, "GET", "/v1/sandboxes", key=red, X_Request_Id="a b").headers["x-request-id"] != "a b"
    path = create(pair, red).headers["location"]
    assert ask(port, "GET", path, key=red, X_Request_Id="mine-2").headers["x-request-id"] == "mine-2"


def test_refusals_are_in_a_hosts_audit_and_no_secret_is(pair: Cluster, red: str, blue: str) -> None:
    port, wrong = pair.gateways[0].port, "wrn_" + "0123456789" * 4
    assert ask(port, "GET", "/v1/sandboxes", key=wrong).status == 401
    assert ask(port, "GET", "/v1/sandboxes").status == 401
    assert ask(port, "GET", "/v1/hosts", key=red).status == 403

    def written() -> set[str]:
        pages = [operate(host, "GET", "/admin/audit?limit=1000") for host in pair.hosts.values()]
        rows = [row for page in pages for row in page["rows"] if row["action"].startswith("gateway.")]
        assert wrong[4:] not in json.dumps(rows)
        return {row["action"] for row in rows}

    wait_for(lambda: {"gateway.bad_key", "gateway.no_key", "gateway.forbidden"} <= written(), "the rows")
    logs = "".join(gateway.log.read_text() for gateway in pair.gateways)
    for secret in (wrong, red, blue):
        assert secret[4:] not in logs


def test_metrics_are_for_this_machine_and_for_admins(pair: Cluster, red: str, admin: str) -> None:
    port = pair.gateways[0].port
    shown = ask(port, "GET", "/metrics")
    assert shown.status == 200
    assert b'gateway_hosts{kind="alive"} 2' in shown.body
    assert b"gateway_request_seconds_bucket" in shown.body
    assert ask(port, "GET", "/metrics", X_Forwarded_For="192.0.2.1").status == 403
    assert ask(port, "GET", "/metrics", key=admin, X_Forwarded_For="192.0.2.1").status == 200
    assert ask(port, "GET", "/metrics", key=red).status == 403


def test_health_and_readiness_need_no_key(pair: Cluster) -> None:
    assert ask(pair.gateways[0].port, "GET", "/healthz").json == {"ok": True, "name": "gateway-0"}
    assert ask(pair.gateways[0].port, "GET", "/readyz").json == {"ready": True}


def test_events_stream_through_a_gateway_until_the_end(pair: Cluster, red: str) -> None:
    path = create(pair, red).headers["location"]
    with contextlib.closing(socket.create_connection(("127.0.0.1", pair.gateways[1].port), 30)) as connection:
        head = f"GET {path}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nX-API-Key: {red}\r\n\r\n"
        connection.sendall(head.encode())
        told = b""
        while b"event: running" not in told:
            told += connection.recv(65536)
        assert ask(pair.gateways[0].port, "DELETE", path, key=red).status == 200
        while not told.endswith(b"0\r\n\r\n"):
            told += connection.recv(65536)
    assert b"event: stopped" in told

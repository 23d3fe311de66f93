"""The guest over HTTP: keep-alive, pipelining, limits, and refusals that no request can get around."""

import asyncio
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.guest.client import Client


async def test_health_tells_contract_version_and_that_there_is_no_identity(fresh_guest: Client) -> None:
    told = (await fresh_guest.call("GET", "/health")).json
    quiet_ms, workspace = told.pop("quiet_ms"), told.pop("workspace")
    features = ["run", "git", "archive", "browser", "checkpoint", "layer"]
    assert told == {
        "contract": 1, "version": "0.1.0", "generation": 0, "id": None, "processes": 0, "features": features
    }  # fmt: skip
    assert isinstance(quiet_ms, int)
    assert workspace.startswith("/")


async def test_a_connection_serves_many_requests(guest: Client) -> None:
    conversation = await guest.connect()
    for _ in range(3):
        await conversation.send("GET", "/health")
        assert (await conversation.reply()).status == 200


async def test_pipelined_requests_are_answered_in_order(guest: Client) -> None:
    conversation = await guest.connect()
    conversation.writer.write(b"GET /health HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
    assert [(await conversation.reply()).status for _ in range(3)] == [200, 404, 200]


async def test_connection_close_is_honoured(guest: Client) -> None:
    conversation = await guest.connect()
    await conversation.send("GET", "/health", Connection="close")
    assert (await conversation.reply()).headers["connection"] == "close"
    assert await conversation.reader.read() == b""


async def test_a_client_that_waits_for_100_continue_gets_it(guest: Client) -> None:
    conversation = await guest.connect()
    head = b"POST /files/remove HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 23\r\n\r\n"
    conversation.writer.write(head)
    assert (await conversation.head()).status == 100
    conversation.writer.write(b'{"path": "/nonexistent"}'[:23])
    assert (await conversation.reply()).status == 400


async def test_a_refused_client_that_waits_for_100_continue_is_not_told_to_go_on(guest: Client) -> None:
    conversation = await guest.connect()
    conversation.writer.write(b"PUT /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert (await conversation.reply()).status == 404
    assert await conversation.reader.read() == b""


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/processes/1/2/3", 404, "not_found"),
        ("GET", "/processes/999999", 404, "not_found"),
        ("GET", "/processes/tag:none", 404, "not_found"),
        ("GET", "/processes/%ff", 400, "bad_field"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/processes/1/signal", 405, "method_not_allowed"),
        ("GET", "/logs?lines=x", 400, "bad_field"),
        ("GET", "/events?after=-1", 400, "bad_field"),
        ("GET", "/files/list?path=/&depth=0", 400, "bad_field"),
    ],
)
async def test_what_is_not_there_is_refused_by_name(
    guest: Client, method: str, target: str, status: int, code: str
) -> None:
    reply = await guest.call(method, target)
    assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b'{"a":' + b"[" * 100_000])
async def test_a_body_that_is_no_object_is_a_bad_request(guest: Client, body: bytes) -> None:
    reply = await guest.call("POST", "/processes", body)
    assert (reply.status, reply.code) == (400, "bad_request")


async def test_a_json_body_above_the_limit_is_refused_and_the_connection_lives_on(guest: Client) -> None:
    conversation = await guest.connect()
    await conversation.send("POST", "/processes", b" " * 1_100_000)
    reply = await conversation.reply()
    assert (reply.status, reply.code) == (413, "body_too_large")
    await conversation.send("GET", "/health")
    assert (await conversation.reply()).status == 200


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.binary(min_size=1, max_size=300))
def test_garbage_gives_400_or_nothing_and_never_a_traceback(shared_guest: tuple[str, int, object], data: bytes) -> None:
    async def talk() -> bytes:
        reader, writer = await asyncio.open_unix_connection(shared_guest[0])
        writer.write(data + b"\r\n\r\n")
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    answer = asyncio.run(talk())
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


async def test_garbage_in_the_middle_of_a_body_is_a_bad_request(guest: Client) -> None:
    conversation = await guest.connect()
    conversation.writer.write(
        b"PUT /files/content?path=/tmp/never HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX"
    )
    reply = await conversation.reply()
    assert (reply.status, reply.code) == (400, "bad_request")
    assert await conversation.reader.read() == b""
    assert not os.path.exists("/tmp/never")


async def test_every_error_is_one_json_object(guest: Client) -> None:
    reply = await guest.call("POST", "/processes", {"cmd": 5})
    assert json.loads(reply.body)["error"]["field"] == "cmd"
    assert "5" in reply.json["error"]["message"]
    assert reply.headers["content-type"] == "application/json"


async def test_a_value_of_the_environment_is_never_told(guest: Client) -> None:
    reply = await guest.call("POST", "/processes", {"cmd": "true", "env": {"TOKEN": "s3cret\x00"}})
    assert (reply.status, reply.json["error"]["field"]) == (400, "env.TOKEN")
    assert b"s3cret" not in reply.body

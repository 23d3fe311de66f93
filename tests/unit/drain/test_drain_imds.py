"""The metadata of an instance, as a real server of that contract tells them, and as a broken one does."""

import pytest
from drain_imds import open_imds

from poold.config import Config
from poold.drain import imds as module
from poold.drain.imds import ACTION, Imds, ImdsPlace, ImdsTrouble, Notice, read_action
from poold.errors import ConfigError
from tests.ports import free_port

TERMINATE = b'{"action": "terminate", "time": "2026-11-18T08:22:00Z"}'
AT_MS = 1_794_990_120_000


async def test_nothing_is_told_until_there_is_a_notice() -> None:
    async with open_imds() as server:
        imds = Imds(server.place)
        assert await imds.notice() is None
        server.rebalance(b'{"noticeTime": "2026-11-18T08:20:00Z"}')
        found = await imds.notice()
        assert found is not None
        assert (found.kind, found.at_ms) == ("rebalance", None)
        server.notice(TERMINATE)
        assert await imds.notice() == Notice("terminate", AT_MS, TERMINATE.decode())
        assert server.asked.count("PUT /latest/api/token") == 1


async def test_a_token_that_is_not_taken_any_more_is_replaced_once() -> None:
    async with open_imds() as server:
        imds = Imds(server.place)
        assert await imds.notice() is None
        server.tokens.clear()
        server.notice(TERMINATE)
        assert (await imds.notice() or Notice("", 0, "")).kind == "terminate"
        assert server.asked.count("PUT /latest/api/token") == 2
        server.answers[ACTION] = (401, b"")
        with pytest.raises(ImdsTrouble, match="401"):
            await imds.notice()


async def test_a_token_is_asked_for_anew_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKEN_USE_S", 0.0)
    async with open_imds() as server:
        imds = Imds(server.place)
        await imds.notice()
        await imds.notice()
        assert server.asked.count("PUT /latest/api/token") >= 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na\r\nb",  # a token with a line end would be another header
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_what_makes_no_sense_is_trouble_and_no_notice(raw: bytes) -> None:
    async with open_imds() as server:
        server.raw = raw
        with pytest.raises(ImdsTrouble):
            await Imds(server.place).notice()


async def test_a_service_that_is_slow_or_not_there_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.1)
    async with open_imds() as server:
        server.stalls = True
        with pytest.raises(ImdsTrouble, match="TimeoutError"):
            await Imds(server.place).notice()
    with pytest.raises(ImdsTrouble):
        await Imds(ImdsPlace("127.0.0.1", free_port())).notice()


@pytest.mark.parametrize(
    ("body", "kind", "at_ms"),
    [
        (TERMINATE, "terminate", AT_MS),
        (b'{"action": "stop", "time": "soon"}', "stop", None),
        (b'{"action": "hibernate"}', "hibernate", None),
        (b'{"action": "hibernate", "time": "2026-11-18T08:22:00"}', "hibernate", None),
        (b'{"action": "explode", "time": 1}', "other", None),
        (b'{"action": "explode"}', "other", None),
        (b"[]", "other", None),
        (b"\xff\xfe", "other", None),
    ],
)
def test_a_notice_that_makes_no_sense_is_a_notice_all_the_same(body: bytes, kind: str, at_ms: int | None) -> None:
    assert (read_action(body).kind, read_action(body).at_ms) == (kind, at_ms)


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("off", None),
        ("auto", ImdsPlace("169.254.169.254", 80, is_probed=True)),
        ("http://169.254.169.254", ImdsPlace("169.254.169.254")),
        ("http://127.0.0.1:8111", ImdsPlace("127.0.0.1", 8111)),
    ],
)
def test_the_setting_says_where(setting: str, place: ImdsPlace | None) -> None:
    assert ImdsPlace.of(setting) == place
    made = Config.from_environment({"POOLD_IMDS": setting}, host_memory_mb=1024, host_cpus=1)
    assert made.imds == setting


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="POOLD_IMDS must be off, auto or http://ADDRESS, got 'ftp://x'"):
        Config.from_environment({"POOLD_IMDS": "ftp://x"}, host_memory_mb=1024, host_cpus=1)

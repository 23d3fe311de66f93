"""Both clients against a server that misbehaves: what is tried again, what is not, what is never taken for an end."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.sdk_replies import ID, KEY, ROW, out, sse
from tests.sdk.sdk_stage import HANG_UP, Asked, Stage, open_stage, refusal, reply, stream
from warren import (
    AsyncSandbox,
    AsyncWarren,
    CapacityError,
    Corrupted,
    NotFound,
    PoolExhausted,
    ProtocolError,
    Retries,
    Sandbox,
    StreamBroken,
    Unreachable,
    Warren,
    WarrenError,
)
from warren.calls import event_stream
from warren.models import Info, read

QUICK = Retries(attempts=4, first_s=0.001, longest_s=0.002)
BEGUN = sse("start", {"pid": 7}) + out("stdout", b"half")
EXIT = sse("exit", {"exit_code": 0, "signal": None, "duration_ms": 1})


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


class Face:
    """One of the two clients, asked in one way: `do` is given a client, `on` a sandbox of it."""

    def __init__(self, is_async: bool, stage: Stage) -> None:
        self._is_async, self._stage = is_async, stage

    def do(self, ask: Callable[[Any], Any]) -> Any:
        if self._is_async:
            return asyncio.run(self._async_do(ask))
        with Warren(self._stage.url, KEY, retries=QUICK, timeout_s=5) as warren:
            return _whole(ask(warren))

    def on(self, ask: Callable[[Any], Any]) -> Any:
        kind: Any = AsyncSandbox if self._is_async else Sandbox
        return self.do(lambda warren: ask(kind(warren._line, read(Info, ROW))))

    async def _async_do(self, ask: Callable[[Any], Any]) -> Any:
        async with AsyncWarren(self._stage.url, KEY, retries=QUICK, timeout_s=5) as warren:
            asked = ask(warren)
            if isinstance(asked, Coroutine):
                return await asked
            return [each async for each in asked]


def _whole(asked: Any) -> Any:
    return list(asked) if isinstance(asked, Iterator) else asked


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def face(request: pytest.FixtureRequest, stage: Stage) -> Face:
    return Face(request.param, stage)


def test_the_key_goes_in_a_header(stage: Stage, face: Face) -> None:
    stage.play(reply(200, ROW))
    assert face.do(lambda warren: warren.get(ID)).id == ID
    assert stage.asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_create_is_tried_again_under_the_same_key(stage: Stage, face: Face) -> None:
    stage.play(HANG_UP, refusal(502, "host_unreachable"), refusal(503, "no_capacity", Retry_After="0"), reply(201, ROW))
    assert face.do(lambda warren: warren.create("python")).id == ID
    assert len(stage.asked) == 4
    assert len({asked.headers["idempotency-key"] for asked in stage.asked}) == 1
    assert len({asked.body for asked in stage.asked}) == 1


def test_attempts_come_to_an_end(stage: Stage, face: Face) -> None:
    stage.play(refusal(503, "no_capacity"))
    with pytest.raises(CapacityError) as refused:
        face.do(lambda warren: warren.create())
    assert refused.value.code == "no_capacity"
    assert len(stage.asked) == QUICK.attempts


def test_a_command_is_never_sent_twice(stage: Stage, face: Face) -> None:
    for act in (HANG_UP, refusal(503, "draining", Retry_After="0"), refusal(429, "rate_limited", Retry_After="0")):
        stage.asked.clear()
        stage.play(act)
        with pytest.raises(WarrenError):
            face.on(lambda sandbox: sandbox.run("make"))
        assert len(stage.asked) == 1


def test_a_full_pool_is_told_at_once(stage: Stage, face: Face) -> None:
    stage.play(refusal(429, "pool_exhausted", Retry_After="0"))
    with pytest.raises(PoolExhausted):
        face.do(lambda warren: warren.create())
    assert len(stage.asked) == 1


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_command_whose_stream_ends_without_an_exit_is_an_error(stage: Stage, face: Face, is_whole: bool) -> None:
    stage.play(stream(BEGUN, is_whole=is_whole))
    with pytest.raises(StreamBroken):
        face.on(lambda sandbox: sandbox.run("make"))


def test_a_break_after_the_exit_changes_nothing(stage: Stage, face: Face) -> None:
    stage.play(stream(BEGUN, EXIT, is_whole=False))
    result = face.on(lambda sandbox: sandbox.run("make"))
    assert (result.exit_code, result.stdout) == (0, "half")


def _event(seq: int) -> bytes:
    return sse("kind", {"seq": seq, "kind": "kind", "at_ms": 1, "data": {}}, seq)


def test_events_go_on_where_they_broke_off(stage: Stage, face: Face) -> None:
    over = reply(200, {**ROW, "state": "stopped"})
    stage.play(
        stream(_event(1), _event(2), _event(3)[:9], is_whole=False),
        HANG_UP,
        stream(_event(3), _event(4), is_whole=True),
        reply(200, ROW),  # it lives: whoever ended the stream went away
        stream(_event(5), is_whole=True),
        over,
        reply(200, {"events": [{"seq": 6, "kind": "stopped", "at_ms": 1, "data": {}}]}),
        reply(200, {"events": []}),
    )
    assert [event.seq for event in face.on(lambda sandbox: sandbox.events())] == [1, 2, 3, 4, 5, 6]
    streams = [asked for asked in stage.asked if asked.headers["accept"] == "text/event-stream"]
    assert [asked.headers["last-event-id"] for asked in streams] == ["0", "2", "2", "4"]


def test_events_of_a_host_that_stays_away_end_in_an_error(stage: Stage, face: Face) -> None:
    stage.play(stream(_event(1), is_whole=False), HANG_UP)
    with pytest.raises(Unreachable):
        face.on(lambda sandbox: sandbox.events())


MANY = 101  # one more than the HTTP client allows by itself


def _many_at_once(asked: Asked) -> bytes:
    return stream(b": here\n\n", is_whole=False) if "events" in asked.target else reply(200, ROW)


def test_a_request_does_not_wait_for_those_that_are_open(stage: Stage) -> None:
    stage.is_holding = True
    stage.play(_many_at_once)
    with Warren(stage.url, KEY, retries=QUICK, timeout_s=2) as warren, contextlib.ExitStack() as opened:
        for _ in range(MANY):
            opened.enter_context(warren._line.open(event_stream(ID, 0)))
        assert warren.get(ID).id == ID


async def test_a_request_of_a_task_does_not_wait_for_those_that_are_open(stage: Stage) -> None:
    stage.is_holding = True
    stage.play(_many_at_once)
    async with (
        AsyncWarren(stage.url, KEY, retries=QUICK, timeout_s=2) as warren,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(MANY):
            await opened.enter_async_context(warren._line.open(event_stream(ID, 0)))
        assert (await warren.get(ID)).id == ID


def test_a_download_that_breaks_off_leaves_no_file(stage: Stage, face: Face, tmp_path: Path) -> None:
    stage.play(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    with pytest.raises(StreamBroken):
        face.on(lambda sandbox: sandbox.download("/f", tmp_path / "f"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StreamBroken):
        face.on(lambda sandbox: sandbox.read("/f"))


def test_a_download_of_other_bytes_than_expected_leaves_no_file(stage: Stage, face: Face, tmp_path: Path) -> None:
    stage.play(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf")
    with pytest.raises(Corrupted):
        face.on(lambda sandbox: sandbox.download("/f", tmp_path / "f", sha256="0" * 64))
    assert list(tmp_path.iterdir()) == []


def test_an_upload_is_sent_again_from_its_beginning(stage: Stage, face: Face) -> None:
    stage.play(HANG_UP, lambda asked: reply(200, {"bytes": len(asked.body)}))
    told: list[int] = []
    done = face.on(lambda sandbox: sandbox.upload(b"x" * 300_000, "/f", progress=lambda done, _: told.append(done)))
    assert done.bytes == 300_000
    assert [asked.body for asked in stage.asked] == [b"x" * 300_000] * 2
    assert told == [262_144, 300_000] * 2


class Once(io.BytesIO):
    """A source that cannot be read again, as a pipe."""

    def seekable(self) -> bool:
        return False


def test_an_upload_that_cannot_be_read_again_is_sent_once(stage: Stage, face: Face) -> None:
    stage.play(HANG_UP)
    with pytest.raises(Unreachable):
        face.on(lambda sandbox: sandbox.upload(Once(b"x" * 10), "/f"))
    assert len(stage.asked) == 1


def test_an_upload_of_which_a_part_is_missing_is_an_error(stage: Stage, face: Face) -> None:
    stage.play(reply(200, {"bytes": 4}))
    with pytest.raises(Corrupted):
        face.on(lambda sandbox: sandbox.write("/f", "12345"))


def test_all_pages_are_listed_and_hosts_that_are_missing_are_named(stage: Stage, face: Face) -> None:
    other = {**ROW, "id": "sb-" + "a" * 16}
    pages = [
        reply(200, {"sandboxes": [ROW], "next": "1.x", "incomplete": ["host-b"]}),
        reply(200, {"sandboxes": [other], "next": None, "incomplete": []}),
    ]
    stage.play(*pages)
    listings: list[Any] = []

    def ask(warren: Any) -> Any:
        listings.append(warren.sandboxes())
        return listings[0]

    assert [sandbox.id for sandbox in face.do(ask)] == [ID, other["id"]]
    assert listings[0].incomplete == {"host-b"}
    assert ["before=1.x" in asked.target for asked in stage.asked] == [False, True]


def test_a_block_destroys_its_sandbox_and_tells_what_went_wrong_in_it(stage: Stage) -> None:
    stage.play(reply(201, ROW), refusal(500, "internal"))
    with (
        Warren(stage.url, KEY, retries=QUICK) as warren,
        pytest.raises(ZeroDivisionError),
        warren.create(),
    ):
        raise ZeroDivisionError
    assert [asked.method for asked in stage.asked] == ["POST", "DELETE"]


async def test_a_block_destroys_its_sandbox_also_when_it_is_cancelled(stage: Stage) -> None:
    stage.play(reply(201, ROW), reply(200, {**ROW, "state": "stopped"}))
    is_in = asyncio.Event()

    async def work() -> None:
        async with AsyncWarren(stage.url, KEY, retries=QUICK) as warren, await warren.create():
            is_in.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await is_in.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [asked.method for asked in stage.asked] == ["POST", "DELETE"]


def test_what_is_not_a_gateway_is_told_as_such(stage: Stage, face: Face) -> None:
    stage.play(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")
    with pytest.raises(ProtocolError):
        face.do(lambda warren: warren.get(ID))
    stage.play(b"HTTP/1.1 301 Moved\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(ProtocolError, match="elsewhere"):
        face.do(lambda warren: warren.get(ID))
    stage.play(b"SSH-2.0-OpenSSH\r\n")
    with pytest.raises(Unreachable):
        face.do(lambda warren: warren.get(ID))


def test_nobody_there_is_told_with_the_address(face: Face, stage: Stage) -> None:
    with open_stage() as gone:
        pass
    stage.port = gone.port
    with pytest.raises(Unreachable, match=str(gone.port)):
        face.do(lambda warren: warren.get(ID))


def test_a_refusal_tells_its_request(stage: Stage, face: Face) -> None:
    stage.play(refusal(404, "not_found", X_Request_Id="rq-9"))
    with pytest.raises(NotFound) as refused:
        face.do(lambda warren: warren.get(ID))
    assert refused.value.request_id == "rq-9"
    assert KEY not in str(refused.value)

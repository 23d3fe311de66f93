"""The core of the Python client: what it sends, what it reads, when it tries again. No network."""

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.sdk.sdk_replies import ID, ROW, out, sse
from warren import calls, errors
from warren.calls import Reply
from warren.errors import PoolExhausted, ProtocolError, StreamBroken, Unreachable, WarrenError
from warren.flows import EVENTS, Collected, Download, Execution, Following, Upload
from warren.models import CommandFailed, Event, Exited, Info, Started, Stderr, Stdout, read
from warren.retries import Attempts, Retries
from warren.sse import MAX_EVENT_BYTES, Parser


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


# Server-sent events


@given(some.lists(some.integers(0, 10_000)))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = b": hello\n\n" + sse("a", {"text": "ä\n€"}, 1) + b"\n" + sse("b", [1, None]) + b"data: 1\r\ndata: 2\r\n"
    whole = [*Parser().feed(stream)]
    parser = Parser()
    assert [message for piece in in_pieces(stream, cuts) for message in parser.feed(piece)] == whole
    assert [(message.id, message.kind, message.data) for message in whole] == [
        ("1", "a", {"text": "ä\n€"}),
        ("", "b", [1, None]),
    ]


def test_an_event_that_was_cut_short_is_not_given() -> None:
    assert Parser().feed(sse("a", 1)[:-1]) == []


@pytest.mark.parametrize("piece", [b"x" * 65_536, b"data: " + b"x" * 65_529 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    parser = Parser()
    with pytest.raises(ProtocolError):  # noqa: PT012 — it is refused at some point
        for _ in range(MAX_EVENT_BYTES // len(piece) + 2):
            parser.feed(piece)


# Commands


@given(some.lists(some.integers(0, 10_000)), some.binary(max_size=300))
def test_output_is_byte_for_byte_what_the_command_said(cuts: list[int], said: bytes) -> None:
    stream = sse("start", {"pid": 7}) + out("stdout", said) + out("stderr", b"\xff") + sse("new_kind", {})
    stream += sse("exit", {"exit_code": 3, "signal": None, "duration_ms": 5})
    execution = Execution()
    found = [event for piece in in_pieces(stream, cuts) for event in execution.feed(piece)]
    assert found == [Started(7), Stdout(said), Stderr(b"\xff"), Exited(3, None, 5)]
    execution.end()


def test_a_command_without_an_exit_is_an_error() -> None:
    execution = Execution()
    list(execution.feed(sse("start", {"pid": 7}) + out("stdout", b"half")))
    with pytest.raises(StreamBroken):
        execution.end()
    with pytest.raises(StreamBroken):
        Collected().result()


def test_an_error_within_a_stream_has_its_code_and_its_class() -> None:
    with pytest.raises(errors.DeadlinePassed) as late:
        list(Execution().feed(sse("error", {"code": "deadline_passed", "message": "too slow"})))
    assert late.value.code == "deadline_passed"
    with pytest.raises(errors.WrongState):
        list(Execution().feed(sse("error", {"code": "sandbox_paused", "message": "m"})))
    with pytest.raises(errors.FaultError):
        list(Execution().feed(sse("error", {"code": "machine_died", "message": "m"})))


def test_output_beyond_what_is_kept_is_dropped_and_told() -> None:
    collected = Collected(kept_bytes=4)
    for said in (Stdout(b"abc"), Stdout(b"def"), Stderr(b"1234"), Exited(0, None, 1)):
        collected.add(said)
    result = collected.result()
    assert (result.stdout, result.stderr, result.is_truncated) == ("abcd", "1234", True)


def test_a_result_says_how_a_command_ended() -> None:
    collected = Collected()
    collected.add(Stderr(b"first\nno such file\n"))
    collected.add(Exited(None, "SIGKILL", 1))
    result = collected.result()
    assert not result.ok
    with pytest.raises(CommandFailed, match="signal SIGKILL: no such file"):
        result.check()


# Events


def test_events_are_told_once_over_many_connections() -> None:
    def event(seq: int) -> bytes:
        return sse("kind", {"seq": seq, "kind": "kind", "at_ms": 1, "data": {}}, seq)

    following = Following(EVENTS, ID, 2, Retries())
    assert following.call().headers["Last-Event-ID"] == "2"
    seen = [*following.feed(event(3) + event(4) + event(5)[:-3])]  # the last one is cut
    assert following.call().headers["Last-Event-ID"] == "4"
    seen += following.feed(event(4) + event(5))
    assert [each.seq for each in seen] == [3, 4, 5]


def test_a_stream_that_gets_on_has_all_its_attempts_again() -> None:
    following = Following(EVENTS, ID, 0, Retries(attempts=2))
    for seq in range(1, 10):
        assert following.wait_s(Unreachable("broken")) > 0
        assert [*following.new([Event(seq, "kind", 1, {})])]
    following.wait_s(Unreachable("broken"))
    with pytest.raises(Unreachable):
        following.wait_s(Unreachable("broken"))


def _break(following: Following[Event], now: list[float], *, lived_s: float) -> float:
    """One connection that is heard at its beginning and at its end, and has no event."""
    following.call()
    for after_s in (0.0, lived_s):
        now[0] += after_s
        assert not [*following.feed(b": here\n\n")]
    now[0] += 1000.0  # while nobody answers, no connection lives
    return following.wait_s(StreamBroken("broken"))


def test_a_quiet_stream_that_lived_long_has_all_its_attempts_again() -> None:
    now = [0.0]
    following = Following(EVENTS, ID, 0, Retries(attempts=2, patience_s=60.0), clock=lambda: now[0])
    for _ in range(10):
        assert _break(following, now, lived_s=61.0) > 0


def test_a_server_that_hangs_up_soon_is_not_asked_for_ever() -> None:
    now = [0.0]
    following = Following(EVENTS, ID, 0, Retries(attempts=2, patience_s=60.0), clock=lambda: now[0])
    assert _break(following, now, lived_s=59.0) > 0
    with pytest.raises(StreamBroken):
        _break(following, now, lived_s=59.0)


# Trying again

REFUSED = {
    502: errors.FaultError("m", status=502),
    503: errors.CapacityError("m", status=503),
    504: errors.FaultError("m", status=504),
    429: errors.RateLimited("m", status=429, details={"retry_after_s": 2}),
}


@pytest.mark.parametrize("error", [Unreachable("gone"), StreamBroken("cut"), *REFUSED.values()])
def test_what_passes_by_itself_is_tried_again(error: WarrenError) -> None:
    attempts = Attempts(Retries(attempts=3), is_repeatable=True)
    assert attempts.wait_s(error) > 0
    assert attempts.wait_s(error) > 0
    with pytest.raises(type(error)):
        attempts.wait_s(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.CallerError("m", status=400),
        errors.NotFound("m", status=404),
        errors.FaultError("m", status=500),
        errors.RateLimited("m", status=429),
        PoolExhausted("m", status=429, details={"retry_after_s": 5}),
        ProtocolError("m"),
    ],
)
def test_what_will_fail_again_is_not_tried_again(error: WarrenError) -> None:
    with pytest.raises(type(error)):
        Attempts(Retries(), is_repeatable=True).wait_s(error)


@given(some.integers(1, 9), some.floats(0, 1))
def test_waits_grow_and_are_bounded(attempts: int, luck: float) -> None:
    retries = Retries(attempts=10, first_s=0.25, longest_s=4.0, patience_s=1000)
    counted = Attempts(retries, is_repeatable=True, chance=lambda low, high: low + (high - low) * luck)
    waits = [counted.wait_s(Unreachable("gone")) for _ in range(attempts)]
    assert waits == sorted(waits)
    assert all(0.125 <= wait <= 4.0 for wait in waits)


def test_a_wait_that_is_asked_for_is_kept_and_too_long_a_one_is_not() -> None:
    def asked(seconds: int) -> WarrenError:
        return errors.CapacityError("m", status=503, details={"retry_after_s": seconds})

    assert Attempts(Retries(), is_repeatable=True).wait_s(asked(7)) >= 7
    with pytest.raises(errors.CapacityError):
        Attempts(Retries(patience_s=60), is_repeatable=True).wait_s(asked(61))


SAFE = [
    calls.create("python", {}),
    calls.get(ID),
    calls.kill(ID),
    calls.events(ID, 0),
    calls.event_stream(ID, 0),
    calls.listed(None, None, None, None, None),
    calls.publish(ID, 80, public=True),
    calls.download(ID, "/f", None),
    calls.revoke_key("k"),
]
ONCE = [
    calls.execute(ID, "true", {}),
    calls.pause(ID),
    calls.hibernate(ID),
    calls.resume(ID),
    calls.create_key("o", {}),
    calls.attach(ID),
]


def test_only_what_is_safe_is_sent_twice() -> None:
    assert [call.path for call in SAFE if not call.is_repeatable] == []
    assert [call.path for call in ONCE if call.is_repeatable] == []


# Requests and replies


def test_every_create_has_a_key_of_its_own() -> None:
    one, other = calls.create(None, {}), calls.create(None, {})
    assert one.headers["Idempotency-Key"] != other.headers["Idempotency-Key"]
    assert calls.create(None, {}, "mine").headers["Idempotency-Key"] == "mine"


def test_what_was_not_said_is_not_sent() -> None:
    assert calls.create(None, {}).body == {}
    assert calls.create("python", {"vcpus": 2, "metadata": {"a": "b"}}).body == {
        "image": "python",
        "vcpus": 2,
        "metadata": {"a": "b"},
    }


def test_filters_are_sent_as_the_gateway_reads_them() -> None:
    call = calls.listed(["running", "paused"], {"job": "7"}, "python", "*", "17.sb-x")
    assert dict(call.query) == {
        "state": "running,paused",
        "metadata.job": "7",
        "image": "python",
        "owner": "*",
        "before": "17.sb-x",
        "limit": "1000",
    }


def test_an_id_cannot_lead_to_another_path() -> None:
    assert calls.get("../keys?x=1").path == "/v1/sandboxes/..%2Fkeys%3Fx%3D1"


def test_fields_that_are_not_known_are_skipped_and_missing_ones_are_an_error() -> None:
    assert read(Info, ROW).id == ID
    with pytest.raises(ProtocolError):
        read(Info, {"id": ID})
    with pytest.raises(ProtocolError):
        read(Info, [])


def test_a_refusal_tells_code_message_details_and_request() -> None:
    body = {"error": {"code": "pool_exhausted", "message": "full", "used": {"vcpus": 4}}}
    reply = Reply(429, {"x-request-id": "rq-1", "retry-after": "5"}, json.dumps(body).encode())
    error = calls.refusal(reply)
    assert isinstance(error, PoolExhausted)
    assert (error.code, error.status, error.request_id) == ("pool_exhausted", 429, "rq-1")
    assert error.details == {"used": {"vcpus": 4}, "retry_after_s": 5}
    assert error.retry_after_s == 5


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"x"', b'{"error": 1}', b'{"error": {"code": 1}}'])
def test_a_refusal_of_somebody_else_is_an_error_too(body: bytes) -> None:
    error = calls.refusal(Reply(502, {}, body))
    assert error.code == "http_502"
    assert isinstance(error, errors.FaultError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.CallerError),
        (401, errors.BadKey),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.WrongState),
        (418, errors.CallerError),
        (429, errors.RateLimited),
        (503, errors.CapacityError),
        (500, errors.FaultError),
    ],
)
def test_a_status_has_a_class(status: int, kind: type[WarrenError]) -> None:
    assert type(calls.refusal(Reply(status, {}, b""))) is kind


# Files


def test_a_source_that_can_be_read_again_is(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"0123456789")
    with file.open("rb") as opened:
        opened.seek(4)
        for source, rest in ((b"0123456789", b"0123456789"), (str(file), b"0123456789"), (opened, b"456789")):
            upload = Upload(source, None)
            assert (upload.size, upload.is_repeatable) == (len(rest), True)
            for _ in range(2):
                upload.rewind()
                assert b"".join(iter(upload.piece, b"")) == rest
            assert upload.carried.done(len(rest)).bytes == len(rest)
            upload.close()


def test_a_file_that_grows_is_sent_as_long_as_it_was_announced(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"announced")
    upload = Upload(file, None)
    file.write_bytes(b"announced, and more")
    assert b"".join(iter(upload.piece, b"")) == b"announced"
    upload.close()


def test_an_upload_that_did_not_arrive_as_a_whole_is_an_error() -> None:
    upload = Upload(b"12345", None)
    list(iter(upload.piece, b""))
    with pytest.raises(errors.Corrupted):
        upload.carried.done(4)


def test_a_download_that_was_not_kept_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"before")
    download = Download(target)
    download.write(b"half")
    download.close()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert target.read_bytes() == b"before"


def test_two_downloads_to_one_target_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "f"
    first, second = Download(target), Download(target)
    second.write(b"two")
    first.write(b"the first")
    for download, content in ((first, b"the first"), (second, b"two")):
        download.keep()
        download.close()
        assert target.read_bytes() == content
    assert list(tmp_path.iterdir()) == [target]


def test_a_download_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    download = Download(tmp_path / "f")
    download.keep()
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_download_that_cannot_begin_names_its_target(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        Download(tmp_path / "none" / "f")
    assert refused.value.filename == str(tmp_path / "none" / "f")


def test_a_download_to_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    download = Download(tmp_path / "f")
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), download._file.fileno())
    download.write(b"half")
    with pytest.raises(OSError, match="No space"):
        download.close()
    assert list(tmp_path.iterdir()) == []

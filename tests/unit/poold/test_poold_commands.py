"""What a frame stream means: an exit code is told only if the guest told it."""

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.models import Exec
from poold.commands import FRAMES, DeadlinePassed, Ended, Output, Said, Started, _ended, run
from poold.errors import GuestError
from poold.link.frames import Kind
from tests.unit.poold.poold_hostile import answer, hostile, read_request, silence

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.warren.frames\r\nContent-Length: %d\r\n\r\n"
START = (Kind.START, b'{"pid": 12}')
END = (Kind.END, b'{"exit_code": 0, "duration_ms": 5}')


def stream(*frames: tuple[int, bytes], media_type: str = FRAMES) -> bytes:
    body = b"".join(bytes([kind]) + len(payload).to_bytes(4, "big") + payload for kind, payload in frames)
    return answer(body, "200 OK", f"Content-Type: {media_type}")


async def said_by(sent: bytes, body: bytes = b'{"cmd": "true"}', others: bytes = b"") -> list[Said]:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await read_request(reader)
        writer.write(sent if line.startswith("POST /processes ") else others)
        await silence(reader, writer)

    async with hostile(script) as guest:
        return [said async for said in run(guest.link, Exec.parse(body))]


async def test_a_command_is_told_as_it_happens() -> None:
    out = (Kind.STDOUT, b"out"), (Kind.KEEPALIVE, b""), (Kind.STDERR, b"err")
    assert await said_by(stream(START, *out, END)) == [
        Started(12),
        Output("stdout", b"out"),
        Output("stderr", b"err"),
        Ended(0, None, 5),
    ]


async def test_a_signal_is_not_an_exit_code() -> None:
    said = await said_by(stream(START, (Kind.END, b'{"signal": "SIGKILL", "duration_ms": 5}')))
    assert said[-1] == Ended(None, "SIGKILL", 5)


async def test_a_deadline_is_not_an_exit() -> None:
    with pytest.raises(DeadlinePassed):
        await said_by(stream(START, (Kind.DEADLINE, b"{}")))


BAD_STREAMS = {
    "no end": stream(START, (Kind.STDOUT, b"x")),
    "an empty end": stream(START, (Kind.END, b"{}")),
    "an end without a duration": stream(START, (Kind.END, b'{"exit_code": 0}')),
    "an end without a code": stream(START, (Kind.END, b'{"duration_ms": 5}')),
    "a code that is null": stream(START, (Kind.END, b'{"exit_code": null, "signal": null, "duration_ms": 5}')),
    "a code that is true": stream(START, (Kind.END, b'{"exit_code": true, "duration_ms": 5}')),
    "a code that is text": stream(START, (Kind.END, b'{"exit_code": "0", "duration_ms": 5}')),
    "a code that is a fraction": stream(START, (Kind.END, b'{"exit_code": 0.0, "duration_ms": 5}')),
    "an end that is a list": stream(START, (Kind.END, b"[0]")),
    "an end that is no JSON": stream(START, (Kind.END, b"exit 0")),
    "a start without a pid": stream((Kind.START, b"{}"), END),
    "a pid that is a path": stream((Kind.START, b'{"pid": "../1"}'), END),
    "a terminal that nobody asked for": stream(START, (Kind.PTY, b"x"), END),
    "another media type": stream(START, END, media_type="application/json"),
    "no media type": answer(b""),
}


@pytest.mark.parametrize("sent", BAD_STREAMS.values(), ids=BAD_STREAMS.keys())
async def test_an_exit_is_never_invented(sent: bytes) -> None:
    with pytest.raises(GuestError):
        await said_by(sent)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("exit_code", "signal", "duration_ms", "later"), json_values)))
def test_an_end_has_exactly_one_of_code_and_signal_or_is_refused(facts: dict[str, object]) -> None:
    try:
        ended = _ended(facts)
    except GuestError:
        return
    assert (ended.exit_code is None) != (ended.signal is None)
    assert ended.exit_code is None or ended.exit_code == facts["exit_code"]
    assert ended.duration_ms == facts["duration_ms"]


async def test_standard_input_is_given_once_to_the_process_that_was_started() -> None:
    fed: list[tuple[str, bytes]] = []
    may_end = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, body = await read_request(reader)
        if line.startswith("POST /processes "):
            assert orjson.loads(body)["stdin"] is True
            whole = stream(START, START, END)
            writer.write(whole[:-40])
            await may_end.wait()
            writer.write(whole[-40:])
        else:
            fed.append((line.split()[1], body))
            writer.write(answer(b'{"bytes": 5}'))
            may_end.set()
        await silence(reader, writer)

    async with hostile(script) as guest:
        command = Exec.parse(b'{"cmd": "cat", "stdin": "hello"}')
        said = [said async for said in run(guest.link, command)]
        assert said[-1] == Ended(0, None, 5)
        assert fed == [("/processes/12/stdin?eof=1", b"hello")]


async def test_a_process_that_does_not_want_its_input_has_done_nothing_wrong() -> None:
    refused = answer(b'{"error": {"code": "process_ended", "message": "gone"}}', "409 Conflict")
    body = b'{"cmd": "true", "stdin": "hello"}'
    assert (await said_by(stream(START, END), body, others=refused))[-1] == Ended(0, None, 5)
    assert (await said_by(stream(START, END), body, others=b"garbage"))[-1] == Ended(0, None, 5)


async def test_leaving_early_hangs_up() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(stream(START, END)[:-10])
        await silence(reader, writer)

    async with hostile(script) as guest:
        said = run(guest.link, Exec.parse(b'{"cmd": "sleep 100"}'))
        assert await anext(said) == Started(12)
        await said.aclose()
        await guest.hung_up.wait()

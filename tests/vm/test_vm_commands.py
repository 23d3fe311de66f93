"""Commands in a sandbox, answered as a whole or followed as they go."""

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Sandbox, until

GROWTH_MB = 20
LONG_OUTPUT_BYTES = 200_000_000


def test_output_error_output_and_exit_code_are_told_apart(shared: Sandbox) -> None:
    done = shared.run("echo out; echo err >&2; exit 7")
    assert (done["stdout"], done["stderr"], done["exit_code"], done["signal"]) == ("out\n", "err\n", 7, None)
    assert (done["stdout_truncated"], done["stderr_truncated"]) == (False, False)
    assert done["duration_ms"] > 0


def test_a_command_killed_by_a_signal_has_that_signal_and_no_exit_code(shared: Sandbox) -> None:
    done = shared.run(["/bin/sh", "-c", "kill -KILL $$"])
    assert (done["exit_code"], done["signal"]) == (None, "SIGKILL")


def test_a_command_that_takes_too_long_is_refused_with_408_and_nothing_of_it_is_left(shared: Sandbox) -> None:
    began = time.monotonic()
    reply = shared.execute("sleep 4567 & sleep 4568", timeout_sec=1)
    assert reply.refusal == (408, "deadline_passed")
    assert time.monotonic() - began < 10
    until(lambda: shared.run(["pgrep", "-f", "sleep 456[78]"])["exit_code"] == 1, limit_s=10)


def test_a_stream_of_a_command_that_takes_too_long_ends_with_an_error_and_no_exit(shared: Sandbox) -> None:
    with shared.follow("echo begun; sleep 4569", timeout_sec=2) as events:
        told = list(events)
    assert [kind for kind, _ in told] == ["start", "stdout", "error"]
    assert told[-1][1]["code"] == "deadline_passed"
    until(lambda: shared.run(["pgrep", "-f", "sleep 4569"])["exit_code"] == 1, limit_s=10)


def test_a_command_reads_what_it_is_given_and_then_the_end(shared: Sandbox) -> None:
    text = "zwei Zeilen\nmit Ümlaut" + "x" * 300_000
    assert shared.run(["cat"], stdin=text)["stdout"] == text
    assert shared.run(["wc", "-c"], stdin="")["stdout"].strip() == "0"
    assert shared.run(["wc", "-c"])["stdout"].strip() == "0"
    assert shared.run(["true"], stdin=text)["exit_code"] == 0


def test_a_command_runs_where_and_as_whom_it_is_told(shared: Sandbox) -> None:
    assert shared.run(["pwd"], cwd="/usr/lib")["stdout"] == "/usr/lib\n"
    assert shared.run(["id", "-u"], user="root")["stdout"] == "0\n"
    assert shared.run(["id", "-u"], user="user")["stdout"] == "1000\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cmd": ["no-such-program"]}, "program_not_found"),
        ({"cmd": ["/etc/passwd"]}, "program_not_executable"),
        ({"cmd": ["true"], "cwd": "/no/such/folder"}, "cwd_not_found"),
        ({"cmd": ["true"], "user": "nobody-here"}, "unknown_user"),
    ],
)
def test_what_cannot_be_started_is_refused_with_a_reason_whole_or_followed(
    shared: Sandbox, fields: dict[str, object], code: str
) -> None:
    body = json.dumps(fields).encode()
    for headers in ({}, {"Accept": "text/event-stream"}):
        reply = shared.api.call("POST", f"{shared.path}/exec", body, headers)
        assert reply.refusal == (400, code)


def test_a_shell_that_does_not_find_a_program_says_127(shared: Sandbox) -> None:
    done = shared.run("no-such-program")
    assert done["exit_code"] == 127
    assert "not found" in done["stderr"]


def test_a_stream_tells_start_then_output_of_each_kind_in_order_then_exit(shared: Sandbox) -> None:
    script = "echo one; sleep .3; echo two >&2; sleep .3; echo three; exit 3"
    with shared.follow(script) as events:
        told = list(events)
    assert [kind for kind, _ in told] == ["start", "stdout", "stderr", "stdout", "exit"]
    assert [data["data"] for _, data in told[1:4]] == ["one\n", "two\n", "three\n"]
    assert told[0][1]["pid"] > 1
    assert (told[-1][1]["exit_code"], told[-1][1]["signal"]) == (3, None)


def test_output_comes_while_the_command_still_runs(shared: Sandbox) -> None:
    with shared.follow("rm -f go; mkfifo go; echo first; cat go") as events:
        assert [next(events)[0] for _ in range(2)] == ["start", "stdout"]
        shared.sh("echo second > go")
        kind, data = next(events)
        assert (kind, data["data"]) == ("stdout", "second\n")
        assert next(events)[1]["exit_code"] == 0


def test_bytes_that_are_no_text_come_through_exactly(shared: Sandbox) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    received = b""
    with shared.follow(f"python3 -c '{program}'", encoding="base64") as events:
        for kind, data in events:
            if kind == "stdout":
                received += base64.b64decode(data["data"])
    assert received == bytes(range(256)) * 1000


def test_long_output_is_cut_in_a_whole_reply_which_says_so(shared: Sandbox) -> None:
    done = shared.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert (len(done["stdout"]), done["stdout_truncated"], done["exit_code"]) == (1 << 20, True, 0)


def test_200_mb_of_output_stream_through_with_flat_memory(host: Host, shared: Sandbox) -> None:
    traces.forget_peak(host.process.pid)
    before = host.rss_mb()
    received, last = 0, ""
    with shared.follow(f"yes | head -c {LONG_OUTPUT_BYTES}") as events:
        for kind, data in events:
            received, last = received + len(data.get("data", "")), kind
    assert (received, last) == (LONG_OUTPUT_BYTES, "exit")
    assert traces.peak_mb(host.process.pid) - before < GROWTH_MB


def test_a_client_that_leaves_leaves_the_command_running_and_everything_else_well(host: Host, sandbox: Sandbox) -> None:
    def ticks() -> int:
        return int(sandbox.sh("cat ticks"))

    with sandbox.follow("n=0; while :; do n=$((n+1)); echo $n > new; mv new ticks; seq 20000; done") as events:
        for _ in range(20):
            next(events)
    before = ticks()
    until(lambda: ticks() > before + 2)
    assert host.process.poll() is None


def test_a_slow_reader_slows_the_command_and_costs_no_memory(host: Host, sandbox: Sandbox) -> None:
    traces.forget_peak(host.process.pid)
    before = host.rss_mb()
    with sandbox.follow("for n in $(seq 64); do head -c 1000000 /dev/zero; echo $n > written; done") as events:
        next(events)
        seen = -1
        while seen != (seen := int(sandbox.sh("sleep 1; cat written || echo 0"))):
            """Until it stands still: nobody reads."""
        assert seen < 40
    assert traces.peak_mb(host.process.pid) - before < GROWTH_MB


def test_many_commands_run_at_once_in_one_sandbox(shared: Sandbox) -> None:
    with ThreadPoolExecutor(10) as threads:
        said = list(threads.map(lambda n: shared.run(["/bin/sh", "-c", f"sleep 1; echo {n}"])["stdout"], range(10)))
    assert said == [f"{n}\n" for n in range(10)]

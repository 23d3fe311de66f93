"""`pooldctl exec`: bytes as they come, and the command's own exit code."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.unit.ctl.conftest import LIMIT_S, Ctl
from tests.unit.ctl.ctl_poold import Poold, Refusal, Stream, output, sandbox_id

ONE = sandbox_id("one")
EVERY_BYTE = bytes(range(256)) * 300
START = ("", "start", {"pid": 77})


def _ended(exit_code: int | None = 0, signal_name: str | None = None) -> tuple[str, str, dict[str, object]]:
    return "", "exit", {"exit_code": exit_code, "signal": signal_name, "duration_ms": 3}


def test_output_is_exact_and_goes_where_it_belongs(poold: Poold, environment: dict[str, str]) -> None:
    poold.exec_events = Stream([START, output("stdout", EVERY_BYTE), output("stderr", b"\xff\x00err"), _ended()])
    command = [sys.executable, "-m", "poold.ctl", "exec", ONE, "--", "cat"]
    ran = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=LIMIT_S)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, EVERY_BYTE, b"\xff\x00err")
    assert poold.asked[-1].query == {"encoding": "base64"}


def test_output_is_shown_before_the_command_has_ended(poold: Poold, environment: dict[str, str]) -> None:
    was_read = threading.Event()
    waited: list[bool] = []
    poold.exec_events = Stream(
        [START, output("stdout", b"first\n"), lambda: waited.append(was_read.wait(LIMIT_S)), _ended(7)]
    )
    command = [sys.executable, "-m", "poold.ctl", "sandboxes", "exec", ONE, "--", "make"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        was_read.set()
        assert process.wait(LIMIT_S) == 7
    assert waited == [True]


def test_everything_that_is_asked_for_is_sent(ctl: Ctl, poold: Poold) -> None:
    poold.exec_events = Stream([START, _ended()])
    words = ("exec", "--user", "root", ONE, "--cwd", "/tmp", "--env", "A=b c", "--timeout-sec", "9", "-i", "--")
    assert ctl(*words, "sh", "-c", "x -- --json", stdin="grüße".encode()).code == 0
    assert poold.asked[-1].body == {
        "cmd": ["sh", "-c", "x -- --json"],
        "user": "root",
        "cwd": "/tmp",
        "env": {"A": "b c"},
        "timeout_sec": 9,
        "stdin": "grüße",
    }


def test_words_without_options_need_no_dashes(ctl: Ctl, poold: Poold) -> None:
    poold.exec_events = Stream([START, _ended()])
    assert ctl("exec", ONE, "uname").code == 0
    assert poold.asked[-1].body == {"cmd": ["uname"]}


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (_ended(0), 0),
        (_ended(3), 3),
        (_ended(255), 255),
        (_ended(None, "SIGKILL"), 137),
        (_ended(None, "SIGSEGV"), 139),
    ],
)
def test_it_exits_as_the_command_did(
    ctl: Ctl, poold: Poold, end: tuple[str, str, dict[str, object]], code: int
) -> None:
    poold.exec_events = Stream([START, end])
    assert ctl("exec", ONE, "--", "x").code == code


class TestNotRun:
    def test_a_refusal(self, ctl: Ctl, poold: Poold) -> None:
        refusal = Refusal(400, "program_not_found", "no program 'nonesuch'")
        poold.answers["POST", f"/v1/sandboxes/{ONE}/exec"] = refusal
        ran = ctl("exec", ONE, "--", "nonesuch")
        assert ran.code == 125
        assert "program_not_found: no program 'nonesuch'" in ran.err

    def test_no_such_sandbox(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("exec", sandbox_id("zzz"), "--", "true").code == 125

    def test_no_poold(self, ctl: Ctl) -> None:
        ran = ctl("exec", ONE, "--", "true")
        assert ran.code == 125
        assert "is poold running?" in ran.err

    def test_nothing_to_run_is_a_mistake(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("exec", ONE).code == 2


class TestNoEnd:
    def test_a_machine_that_dies_under_it(self, ctl: Ctl, poold: Poold) -> None:
        died = ("", "error", {"code": "machine_died", "message": "the machine ended"})
        poold.exec_events = Stream([START, output("stdout", b"half"), died])
        ran = ctl("exec", ONE, "--", "make")
        assert (ran.code, ran.out) == (125, "half")
        assert "machine_died: the machine ended" in ran.err

    @pytest.mark.parametrize("is_cut", [True, False])
    def test_a_poold_that_goes_away(self, ctl: Ctl, poold: Poold, is_cut: bool) -> None:
        poold.exec_events = Stream([START, output("stdout", b"half")], is_cut=is_cut)
        ran = ctl("exec", ONE, "--", "make")
        assert (ran.code, ran.out) == (125, "half")
        assert "how it ends is not known" in ran.err

    def test_a_deadline_that_passed(self, ctl: Ctl, poold: Poold) -> None:
        poold.exec_events = Stream([START, ("", "error", {"code": "deadline_passed", "message": "9 s"})])
        assert ctl("exec", ONE, "--timeout-sec", "9", "--", "sleep", "99").code == 124

    def test_one_who_interrupts_it_is_told_that_it_goes_on(self, poold: Poold, environment: dict[str, str]) -> None:
        over = threading.Event()
        poold.exec_events = Stream([START, output("stdout", b"up\n"), lambda: over.wait(LIMIT_S), _ended()])
        command = [sys.executable, "-m", "poold.ctl", "exec", ONE, "--", "sleep", "99"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 130
            assert b"goes on in the sandbox as process 77" in process.stderr.read()
        over.set()


class TestInput:
    def test_the_longest_that_fits_is_sent_whole(self, ctl: Ctl, poold: Poold) -> None:
        poold.exec_events = Stream([START, _ended()])
        text = "ü" * 500_000
        assert ctl("exec", ONE, "-i", "--", "cat", stdin=text.encode()).code == 0
        assert poold.asked[-1].body["stdin"] == text

    @pytest.mark.parametrize("data", [b"x" * (1 << 20) + b"y", b'"' * 600_000], ids=["longer", "longer once quoted"])
    def test_a_longer_one_is_refused_with_the_limit(self, ctl: Ctl, poold: Poold, data: bytes) -> None:
        ran = ctl("exec", ONE, "-i", "--", "cat", stdin=data)
        assert ran.code == 125
        assert "limit of 1 MiB" in ran.err
        assert poold.asked == []

    def test_what_is_not_text_is_refused(self, ctl: Ctl, poold: Poold) -> None:
        ran = ctl("exec", ONE, "-i", "--", "cat", stdin=b"ab\xff")
        assert ran.code == 125
        assert "not UTF-8 text (byte 2)" in ran.err


def test_a_reader_that_has_enough_is_no_error(poold: Poold, environment: dict[str, str]) -> None:
    poold.exec_events = Stream([START, *[output("stdout", b"y\n" * 30_000) for _ in range(40)], _ended()])
    command = f"{sys.executable} -m poold.ctl exec {ONE} -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, check=False, timeout=LIMIT_S)
    assert (ran.stdout, ran.stderr) == (b"y\n141\n", b"")


def test_bytes_in_arguments_that_are_not_text_reach_poold_as_bytes(poold: Poold, environment: dict[str, str]) -> None:
    """poold then refuses what is not UTF-8; we must not crash over it."""
    poold.answers["POST", f"/v1/sandboxes/{ONE}/exec"] = Refusal(400, "bad_request", "the body is not JSON")
    command = [sys.executable.encode(), b"-m", b"poold.ctl", b"exec", ONE.encode(), b"--", b"echo", b"\xfe\xff"]
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, check=False, timeout=LIMIT_S)
    assert ran.returncode == 125
    assert b"Traceback" not in ran.stderr

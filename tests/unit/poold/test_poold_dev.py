"""`make up` and `make down` without machines: how programs in the background are started, found and stopped."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from poold import dev
from poold.dev import Program
from tests.vm.client import until

WAITS = "import time\ntime.sleep(600)\n"
ENDS = "raise SystemExit('gateway: GATEWAY_LISTEN=127.0.0.1:8080 cannot be listened on')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dev, "FOLDER", tmp_path)
    monkeypatch.setattr(dev, "READY_LIMIT_S", 30.0)
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "ends.py").write_text(ENDS)
    return tmp_path


def program(folder: Path, module: str) -> Program:
    return Program(f"the-{module}", module, {"PYTHONPATH": str(folder)})


def test_one_that_was_started_is_known_to_run_before_the_kernel_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "python"
    other.write_text("#!/bin/sh\nexec sleep 600\n")  # nothing in its command line says what it is
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(other))
    started = program(folder, "waits")
    assert started.start()
    try:
        started.must_run()
    finally:
        started.stop()
    assert started.pid() is None


def test_one_that_runs_is_found_by_a_later_call_and_not_started_twice(folder: Path) -> None:
    first, later = program(folder, "waits"), program(folder, "waits")
    assert first.start()
    try:
        until(lambda: later.pid() is not None, limit_s=30.0)  # its command line is not there at once
        assert not later.start()
    finally:
        later.stop()
    assert later.pid() is None
    until(lambda: first.pid() is None)  # its command line is gone a moment before it is


def test_of_one_that_ended_only_the_log_of_this_run_is_shown(folder: Path) -> None:
    ended = program(folder, "ends")
    ended.log.write_text("an old trouble\n")
    assert ended.start()
    until(lambda: ended.pid() is None, limit_s=30.0)
    with pytest.raises(SystemExit) as caught:
        ended.must_run()
    assert "GATEWAY_LISTEN=127.0.0.1:8080 cannot be listened on" in str(caught.value)
    assert "POOLD_LISTEN=127.0.0.1:7080 make up" in str(caught.value)
    assert "an old trouble" not in str(caught.value)


def test_when_one_does_not_start_the_others_are_stopped_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, gateway = program(folder, "waits"), program(folder, "ends")
    monkeypatch.setattr(dev, "prepare", lambda: None)
    monkeypatch.setattr(dev, "hosts", lambda: {"one": host})
    monkeypatch.setattr(dev, "gateway", lambda: gateway)
    with pytest.raises(SystemExit) as caught:
        dev.up()
    assert caught.value.code == 1
    assert host.pid() is None
    assert not list(folder.glob("*.pid"))


def test_what_ran_before_is_left_alone_when_another_does_not_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = program(folder, "waits")
    assert before.start()
    try:
        until(lambda: program(folder, "waits").pid() is not None, limit_s=30.0)
        monkeypatch.setattr(dev, "prepare", lambda: None)
        monkeypatch.setattr(dev, "hosts", lambda: {"one": program(folder, "waits")})
        monkeypatch.setattr(dev, "gateway", lambda: program(folder, "ends"))
        with pytest.raises(SystemExit):
            dev.up()
        before.must_run()
    finally:
        before.stop()


def test_both_hosts_move_with_the_first_ones_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "FIRST_HOST", "127.0.0.1:7080")
    assert dev.addresses() == {"one": "127.0.0.1:7080", "two": "127.0.0.1:7081"}


def test_what_up_tells_an_operator_to_type_is_understood(folder: Path) -> None:
    lines = [line.strip() for line in dev.hint("wrn_x").splitlines()]
    (exported,) = [line for line in lines if line.startswith("export POOLD_")]
    told = dict(word.split("=", 1) for word in exported.split()[1:])
    assert told["POOLD_SOCKET"] == "/run/warren-one/poold.sock"
    assert dev.hosts()["one"].variables["POOLD_RUN_DIR"] == "/run/warren-one"
    environment = {**os.environ, **told, "POOLD_SOCKET": str(folder / "none.sock"), "POOLD_REGISTRY": str(folder)}
    asked = {words: _ctl(environment, *words.split()) for words in ("status", "keys list")}
    assert str(folder / "none.sock") in asked["status"].stderr
    assert asked["keys list"].returncode == 0, asked["keys list"].stderr


def _ctl(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "poold.ctl", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

"""The command `warren` as people have it: a real process on the real service."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import LIMIT_S, Cli
from tests.sdk.sdk_service import BARE, Service
from tests.terminal import open_screen
from warren import Sandbox, Warren

DETACH = b"\x1d"
CTRL_C = b"\x03"


@pytest.fixture(scope="module")
def shared(service: Service) -> Iterator[Sandbox]:
    """One sandbox for the tests that do not mind company."""
    with Warren(service.url, service.key) as warren, warren.create(metadata={"name": "shared"}, env=BARE) as sandbox:
        yield sandbox


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


# Sandboxes


def test_a_sandbox_is_created_looked_at_and_removed(cli: Cli) -> None:
    made = cli(
        "create", "--name", "web", "--metadata", "job=7", "--env", "WORD=hi", "--env", "HOME=/", "--timeout", "30m"
    )
    assert made.code == 0, made.err
    name = made.out.strip()
    assert re.fullmatch(r"sb-[a-z2-7]{16}", name)
    listed = cli("ls")
    assert re.search(rf"{name}  web +running .* job=7\n", listed.out)
    assert cli("ls", "-q", "--metadata", "name=web").out == f"{name}\n"
    assert cli("ls", "--json").json["sandboxes"][0]["id"] == name
    assert re.search(r"^rules +destroy after 30m$", cli("get", "web").out, re.MULTILINE)
    assert cli("get", name[:9], "--json").json["metadata"] == {"job": "7", "name": "web"}
    assert cli("exec", "web", "echo $WORD").out == "hi\n"
    assert cli("timeout", "web", "2h").out.startswith(f"{name} destroy in")
    assert cli("rm", name.removeprefix("sb-")[:6]).out == f"{name} stopped\n"
    assert name not in cli("ls").out
    assert name in cli("ls", "--all").out


def test_what_is_not_there_is_told_with_what_to_do(cli: Cli, shared: Sandbox) -> None:
    for typed in ("nobody", "sb-zzzz", "sb-" + "a" * 16):
        missing = cli("get", typed)
        assert (missing.code, missing.out) == (4, "")
        assert missing.err.startswith("warren: ")
        assert missing.err.count("\n") == 1


def test_a_name_of_two_sandboxes_is_refused(cli: Cli, warren: Warren) -> None:
    with (
        warren.create(metadata={"name": "twin"}, env=BARE) as one,
        warren.create(metadata={"name": "twin"}, env=BARE) as other,
    ):
        refused = cli("rm", "twin")
        assert refused.code == 2
        assert one.id in refused.err
        assert {one.refresh().state, other.refresh().state} == {"running"}


def test_one_that_fails_does_not_keep_the_others(cli: Cli, warren: Warren) -> None:
    with warren.create(env=BARE) as sandbox:
        done = cli("rm", "nobody", sandbox.id)
        assert done.code == 4
        assert done.out == f"{sandbox.id} stopped\n"


# Commands


def test_output_is_byte_for_byte_and_the_exit_code_is_the_commands(cli: Cli, shared: Sandbox) -> None:
    done = cli("exec", "shared", r"printf '\xff\x00ab'; echo err >&2; exit 7")
    assert done.code == 7
    assert done.out.encode("utf-8", "surrogateescape") == b"\xff\x00ab"
    assert done.err == "err\n"
    assert cli("exec", "shared", "kill -9 $$").code == 137


def test_options_of_the_command_are_the_commands(cli: Cli, shared: Sandbox) -> None:
    assert cli("exec", "shared", "printf", "%s|", "-u", "--json", "a b").out == "-u|--json|a b|"
    assert cli("exec", "--cwd", "/", "shared", "--", "pwd").out == "/\n"
    assert cli("exec", "shared", "--env", "A=b", "--", "sh", "-c", "echo $A").out == "b\n"


def test_our_own_failures_are_125_and_its_time_is_124(cli: Cli, shared: Sandbox) -> None:
    assert cli("exec", "nobody", "true").code == 125
    assert cli("exec", "shared", "no-such-program", "x").code == 125
    assert cli("exec", "shared", "--timeout", "1", "sleep", "60").code == 124
    assert cli("exec", "shared").code == 2


@pytest.mark.parametrize("given", [b"", b"text\n", b"\xff\x00binary", b"x" * 3_000_000])
def test_standard_input_arrives_whatever_it_is(cli: Cli, shared: Sandbox, given: bytes) -> None:
    done = cli("exec", "-i", "shared", "cat", stdin=given)
    assert done.code == 0, done.err
    assert done.out.encode("utf-8", "surrogateescape") == given
    assert shared.run("ls /tmp/.warren-* 2>/dev/null").stdout == ""


def test_without_i_standard_input_is_ours(cli: Cli, shared: Sandbox) -> None:
    assert cli("exec", "shared", "cat", stdin=b"not for it").out == ""


def _exec(environment: dict[str, str], *words: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "warren.cli", "exec", *words]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")])
def test_a_signal_for_us_is_for_the_command(
    environment: dict[str, str], shared: Sandbox, number: signal.Signals, name: str
) -> None:
    line = f'trap "echo got; exit 9" {name}; echo ready; while :; do sleep 0.1; done'
    with _exec(environment, shared.id, line) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (9, b"got\n"), err


def test_the_second_interrupt_kills_the_command(environment: dict[str, str], shared: Sandbox) -> None:
    with _exec(environment, shared.id, "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 137


def test_a_reader_that_has_enough_ends_the_command(environment: dict[str, str], shared: Sandbox) -> None:
    with _exec(environment, shared.id, "echo $$; exec yes") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.stdout.close()
        assert process.wait(LIMIT_S) == 141
    until(lambda: not shared.signal(pid, "0"))


# Copies


def test_a_file_goes_in_and_comes_out(cli: Cli, shared: Sandbox, tmp_path: Path) -> None:
    here, there = tmp_path / "script.sh", f"{tmp_path}/in/there"
    here.write_bytes(os.urandom(700_000))
    here.chmod(0o750)
    assert cli("cp", str(here), f"shared:{there}").code == 0
    assert cli("cp", f"shared:{there}", str(tmp_path / "back"), "--json").json["bytes"] == 700_000
    assert (tmp_path / "back").read_bytes() == here.read_bytes()
    assert shared.run(["stat", "-c", "%a", there]).stdout == "750\n"
    (tmp_path / "folder").mkdir()
    assert cli("cp", str(here), f"shared:{tmp_path}/folder").code == 0
    assert cli("cp", f"shared:{there}", str(tmp_path / "folder")).code == 0
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["script.sh", "there"]


def test_streams_are_copied(cli: Cli, shared: Sandbox, tmp_path: Path) -> None:
    data = os.urandom(400_000)
    assert cli("cp", "-", f"shared:{tmp_path}/f", stdin=data).code == 0
    assert cli("cp", f"shared:{tmp_path}/f", "-").out.encode("utf-8", "surrogateescape") == data


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "empty").mkdir(parents=True)
    (folder / "src" / "größe.py").write_text("print()\n")
    (folder / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("src/größe.py")
    return folder


def _tree(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (stat.S_IMODE(path.stat().st_mode), path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def test_a_folder_goes_in_and_comes_out(cli: Cli, shared: Sandbox, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    there = tmp_path / "there"
    assert cli("cp", str(folder), f"shared:{there}").code == 0
    assert cli("cp", str(folder), f"shared:{there}").code == 0  # it is there now: into it
    assert _tree(there / "project") == _tree(folder)
    back = cli("cp", f"shared:{there}/project", str(tmp_path / "back"))
    assert (back.code, back.err) == (0, "")
    assert _tree(tmp_path / "back") == _tree(folder)
    assert shared.run("ls /tmp/.warren-* 2>/dev/null").stdout == ""


def test_copies_that_cannot_be_are_refused(cli: Cli, shared: Sandbox, tmp_path: Path) -> None:
    assert cli("cp", "a", "b").code == 2
    assert cli("cp", "shared:/a", "shared:/b").code == 2
    missing = cli("cp", str(tmp_path / "nothing"), "shared:/x")
    assert missing.code == 1
    assert "No such file" in missing.err
    assert cli("cp", f"shared:{tmp_path}/nothing", str(tmp_path / "x")).code == 4


# Terminals


@pytest.mark.parametrize("way", [(), ("--via-gateway",)], ids=["direct", "gateway"])
def test_a_terminal_is_attached_left_and_found_again(
    environment: dict[str, str], shared: Sandbox, way: tuple[str, ...]
) -> None:
    with open_screen("warren.cli", "attach", "shared", *way, environment=environment) as screen:
        screen.sees(rb"in process \d+ of sb-\w+; ctrl-\] leaves it running")
        screen.types(b"echo mark-$((40 + 2)); stty size\n")
        screen.sees(rb"mark-42\r\n30 100\r\n")
        screen.resizes(77, 22)
        screen.types(b"until [ \"$(stty size)\" = '22 77' ]; do :; done; echo resized-$((1 + 1))\n")
        screen.sees(rb"resized-2")
        screen.types(DETACH)
        assert screen.ends() == 0
        screen.sees(rb"come back with: warren attach sb-")
    with open_screen("warren.cli", "attach", "shared", *way, environment=environment) as screen:
        screen.sees(rb"back in process")
        screen.sees(rb"mark-42")
        screen.types(b"exit 6\n")
        assert screen.ends() == 6


def test_control_c_typed_in_exec_ends_the_remote_command(environment: dict[str, str], shared: Sandbox) -> None:
    with open_screen("warren.cli", "exec", "shared", "echo ready; exec sleep 300", environment=environment) as screen:
        screen.sees(rb"ready")
        screen.types(CTRL_C)
        assert screen.ends() == 130


def test_attach_without_a_terminal_is_refused(cli: Cli, shared: Sandbox) -> None:
    assert cli("attach", "shared").code == 2


# What happened


def test_events_and_logs_are_told(cli: Cli, warren: Warren) -> None:
    with warren.create(env=BARE) as sandbox:
        sandbox.run("true")
        assert re.search(r"^ +1  \S+ \S+  created ", cli("events", sandbox.id).out, re.MULTILINE)
        assert cli("logs", sandbox.id).code == 0
        sandbox.kill()
    followed = cli("events", "-f", "--json", sandbox.id)
    assert followed.out.strip().splitlines()[-1].find('"kind": "stopped"') > 0
    assert len(cli("events", sandbox.id, "--json", "--after", "2").json["events"]) == len(followed.out.splitlines()) - 2


# The person's own side


def test_a_login_is_tried_and_kept_for_its_owner_only(cli: Cli, service: Service, tmp_path: Path) -> None:
    bad = cli("login", service.url, stdin=b"wrn_" + b"0" * 40 + b"\n", WARREN_URL="", WARREN_API_KEY="")
    assert bad.code == 1
    assert "bad_key" in bad.err
    file = tmp_path / ".config" / "warren" / "config.json"
    assert not file.exists()
    good = cli("login", service.url, stdin=service.key.encode() + b"\n", WARREN_URL="", WARREN_API_KEY="")
    assert good.code == 0, good.err
    assert service.key not in good.out + good.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cli("ls", WARREN_URL="", WARREN_API_KEY="").code == 0
    assert cli("logout").code == 0
    assert cli("ls", WARREN_URL="", WARREN_API_KEY="").code == 1


def test_nobody_there_is_told_in_one_line(cli: Cli) -> None:
    gone = cli("ls", WARREN_URL="http://127.0.0.1:9", WARREN_API_KEY="wrn_x")
    assert gone.code == 3
    assert gone.err.count("\n") == 1
    assert "127.0.0.1:9" in gone.err


def test_completion_knows_commands_options_and_sandboxes(cli: Cli, shared: Sandbox) -> None:
    assert cli("__complete", "--", "at").out == "attach\n"
    assert cli("__complete", "--", "create", "--on").out == "--on-timeout\n"
    assert cli("__complete", "--", "create", "--on-timeout", "").out == "destroy\npause\n"
    assert shared.id in cli("__complete", "--", "exec", "").out.splitlines()
    assert "shared" in cli("__complete", "--", "exec", "sh").out.splitlines()
    assert cli("__complete", "--", "cp", "shar").out == "shared:\n"
    for shell in ("bash", "zsh", "fish"):
        assert "warren __complete" in cli("completion", shell).out


def test_completion_knows_images_states_and_files_here(
    cli: Cli, shared: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shard").mkdir()
    (tmp_path / "sharp").touch()
    monkeypatch.chdir(tmp_path)
    assert cli("__complete", "--", "cp", "shar").out == "shard/\nshared:\nsharp\n"
    assert cli("__complete", "--", "cp", "x", "sharp").out == "sharp\n"
    assert cli("__complete", "--", "cp", "./shar").out == ""
    assert shared.info.image in cli("__complete", "--", "create", "--image", "").out.splitlines()
    assert cli("__complete", "--", "ls", "--state", "p").out == "paused\npending\n"
    assert cli("__complete", "--", "ls", "--state", "paused,p").out == "paused,pending\n"


def test_who_may_not_ask_the_hosts_is_offered_images_too(cli: Cli, service: Service) -> None:
    key = service.cluster.key("plain", scopes=("sandboxes",))
    assert cli("__complete", "--", "create", "--image", "", WARREN_API_KEY=key).out == "minimal\npython\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("get shar", "shared\n"),
        ("cp x shar", "nospace\nshared:\n"),
        ("cp my", "my\\ file\n"),
    ],
)
def test_the_script_for_bash_completes(
    environment: dict[str, str], shared: Sandbox, tmp_path: Path, words: str, offered: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "my file").touch()
    command = tmp_path / "bin" / "warren"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m warren.cli "$@"\n')
    command.chmod(0o755)
    script = f"""source <(warren completion bash); compopt() {{ echo "$2"; }}
        COMP_WORDS=(warren {words}); COMP_CWORD={len(words.split())}; _warren; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**environment, "PATH": f"{command.parent}:{environment['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == offered


def test_help_and_version_need_no_gateway(cli: Cli) -> None:
    assert cli("--version", WARREN_URL="").out.startswith("warren 0.")
    assert "exit codes" in cli("--help", WARREN_URL="").out

"""A sandbox is a computer of its own, with what a coding agent needs in it."""

import os

from tests.vm.client import Api, Sandbox
from tests.vm.conftest import SMALL_DISK


def test_a_sandbox_runs_a_kernel_that_is_not_the_hosts(shared: Sandbox) -> None:
    assert shared.sh("uname -r") not in ("", os.uname().release)


def test_a_command_runs_as_the_ordinary_user_in_the_workspace(shared: Sandbox) -> None:
    assert shared.sh("id -un; id -u; pwd").split() == ["user", "1000", "/workspace"]


def test_the_ordinary_user_may_write_the_workspace_and_become_root_without_a_password(shared: Sandbox) -> None:
    assert shared.sh("echo mine > here && stat -c %U here") == "user"
    assert shared.sh("sudo -n id -u") == "0"


def test_git_curl_and_python_are_there_and_work(shared: Sandbox) -> None:
    script = "git init -q repo && cd repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    assert shared.sh(f"{script} && git log --format=%s") == "one"
    assert shared.sh("curl --version").startswith("curl ")
    assert shared.python("import json, ssl, sqlite3; print(json.dumps(6 * 7))") == 42


def test_a_sandbox_is_called_by_its_id(shared: Sandbox) -> None:
    assert shared.sh("hostname; cat /etc/hostname").split() == [shared.id] * 2


def test_what_was_asked_for_at_creation_comes_back_and_the_environment_only_to_commands(api: Api) -> None:
    metadata = {"team": "α", "empty": ""}
    with api.sandbox(env={"GREETING": "hello there", "LATER": "0"}, metadata=metadata, timeout_sec=77) as sandbox:
        for view in (sandbox.created, sandbox.view):
            assert view["state"] == "running"
            assert view["metadata"] == metadata
            assert (view["image"], view["vcpus"], view["memory_mb"], view["disk_mb"]) == ("minimal", 1, 256, 2048)
            assert view["expires_ms"] - view["created_ms"] == 77_000
            assert "hello there" not in str(view)
        assert sandbox.sh('echo "$GREETING"; echo "$LATER"', env={"LATER": "1"}).splitlines() == ["hello there", "1"]


def test_a_machine_has_the_size_that_was_asked_for(api: Api) -> None:
    with api.sandbox(**SMALL_DISK) as sandbox:
        assert sandbox.sh("nproc") == "2"
        memory_kb = int(sandbox.sh("awk '/MemTotal/ {print $2}' /proc/meminfo"))
        assert 256 << 10 < memory_kb < 320 << 10
        disk_kb = int(sandbox.sh("df -k --output=size /workspace | tail -1"))
        assert 96 << 10 < disk_kb <= 128 << 10


def test_the_python_image_starts_and_can_make_a_virtual_environment(api: Api) -> None:
    with api.sandbox(image="python") as sandbox:
        assert sandbox.created["image"] == "python"
        assert sandbox.sh("python -m venv --without-pip env && env/bin/python -c 'print(6 * 7)'") == "42"

"""Whatever an agent does to its machine: a clear outcome, bounded memory, nothing of the host in what it leaves."""

import os
import subprocess
import tarfile
from pathlib import Path

from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task
from tests.tasks.stage import ARCHIVE_MB, REAL_MB, Stage
from tests.vm import traces

PRINT_MB = int(os.environ.get("WARREN_TASKS_PRINT_MB", "64"))
GIB = 1 << 30
# Poold has a few dozen megabytes, and everything of a guest passes through it piece by piece.
MOST_MB = 200.0
GUEST_MB = 96.0


class Watched:
    """How much memory poold took at most during the block, more than before."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> "Watched":
        self._before = self._stage.host.rss_mb()
        traces.forget_peak(self._stage.host.process.pid)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            more = traces.peak_mb(self._stage.host.process.pid) - self._before
            assert more < MOST_MB, f"poold took {more:.0f} MB"


def guest_peak_mb(task: Task) -> float:
    """Of PID 1 in the machine of a task that has ended and whose sandbox is kept."""
    sandbox = task.view["sandbox"]
    reply = task.caller.post(f"/v1/sandboxes/{sandbox}/exec", cmd="grep VmHWM /proc/1/status", user="root")
    assert reply.status == 200, reply
    peak = int(reply.json["stdout"].split()[1]) / 1024
    assert task.caller.call("DELETE", f"/v1/sandboxes/{sandbox}").status == 200
    return peak


def test_a_prompt_of_a_megabyte_arrives_as_it_was_sent(stage: Stage, alice: Caller) -> None:
    prompt = ("A long story about café, 漢字 and 🐇. " * 40_000)[: 1 << 20]
    with Watched(stage):
        task = alice.task(prompt)
        view = task.ended()
    assert view["prompt_chars"] == 1 << 20
    assert view["prompt"] == prompt[:2000]
    with opened(task) as archive:
        assert archive.found("AGENT_TASK.md").read_text().rstrip() == prompt.rstrip()


def test_an_agent_that_prints_without_end_is_ended_by_its_cap(stage: Stage, alice: Caller) -> None:
    cap = min(PRINT_MB // 16, 64) << 20
    with Watched(stage):
        task = alice.task(f"print {PRINT_MB << 20}\nsleep 600", caps={"output_bytes": cap}, keep_minutes=10)
        view = task.ended("failed")
    assert (view["reason"]["code"], view["reason"]["cap"]) == ("cap", "output_bytes")
    assert view["usage"]["output_bytes"] <= cap + (1 << 20)
    assert guest_peak_mb(task) < GUEST_MB


def test_output_that_is_no_text_is_told_as_text(stage: Stage, alice: Caller) -> None:
    with Watched(stage):
        task = alice.task(r"noise 300000" + "\n" + r"run printf '\xff\xfe\x00 bytes'" + "\nsay still here")
        task.ended()
    assert "still here" in str(task.of("agent.message"))
    (step,) = (step for step in task.steps() if step["tool"] == "Bash")
    assert "bytes" in step["output"]


def test_a_long_output_of_a_tool_is_cut_in_its_step_and_whole_as_an_artifact(alice: Caller) -> None:
    task = alice.task("run seq 1 100000")
    task.ended()
    step = task.steps()[-1]
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert step["output_bytes"] == len(whole)
    assert len(step["output"]) < 20_000
    assert task.get(f"/artifacts/{step['output_artifact']}").body.decode() == whole


def test_a_binary_file_is_in_the_diff_as_git_would_have_it(alice: Caller, tmp_path: Path) -> None:
    task = alice.task("run head -c 100000 /dev/urandom > blob.bin; sha256sum blob.bin\ncommit Add a blob")
    view = task.ended()
    digest = task.steps()[-2]["output"].split()[0]
    patch = task.get("/diff")
    assert b"GIT binary patch" in patch.body
    assert view["result"]["diff"]["bytes"] == len(patch.body)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "apply", "-"], input=patch.body, check=True)
    said = subprocess.run(["sha256sum", tmp_path / "blob.bin"], capture_output=True, text=True, check=True).stdout
    assert said.split()[0] == digest


def test_a_workspace_of_five_gigabytes_that_is_mostly_holes_is_archived_as_such(stage: Stage, alice: Caller) -> None:
    holes = "edit .gitignore *.bin\nrun truncate -s 5G holes.bin; printf end >> holes.bin"
    real = f"\nrun head -c {REAL_MB}M /dev/urandom > real.bin" if REAL_MB else ""
    with Watched(stage):
        task = alice.task(holes + real)
        view = task.ended(limit_s=1200)
    assert view["result"]["archive"]["bytes"] < (REAL_MB + 16) << 20
    with opened(task) as archive:
        path = archive.found("holes.bin")
        assert path.stat().st_size == 5 * GIB + 3
        assert path.stat().st_blocks * 512 < 1 << 20
        if REAL_MB:
            assert archive.found("real.bin").stat().st_size == REAL_MB << 20


def test_a_workspace_that_is_larger_than_an_archive_may_be_has_none(stage: Stage, alice: Caller) -> None:
    with Watched(stage):
        task = alice.task(f"edit .gitignore *.bin\nrun head -c {ARCHIVE_MB + 40}M /dev/zero > bomb.bin")
        view = task.ended()
    assert view["result"]["archive"] is None
    assert str(ARCHIVE_MB << 20) in view["result"]["problems"]["archive"]
    assert alice.call("GET", f"{task.path}/archive").refusal == (404, "not_found")


def test_links_that_lead_out_of_the_workspace_lead_nowhere(alice: Caller) -> None:
    links = (
        "ln -s /etc/shadow shadow; ln -s / root; ln -s ../../../../etc/passwd up; mkfifo pipe; ln /etc/hostname hard"
    )
    task = alice.task(f"run {links}; true\nedit seen.txt seen")
    task.ended()
    with opened(task) as archive:
        kinds = {Path(member.name).name: member for member in archive.members}
        for name, target in (("shadow", "/etc/shadow"), ("root", "/"), ("up", "../../../../etc/passwd")):
            assert kinds[name].issym()
            assert kinds[name].linkname == target
        assert not any(member.name.startswith(("/", "..")) for member in archive.members)
        assert all(
            member.type
            in (
                tarfile.REGTYPE,
                tarfile.DIRTYPE,
                tarfile.SYMTYPE,
                tarfile.FIFOTYPE,
                tarfile.LNKTYPE,
                tarfile.GNUTYPE_SPARSE,
            )
            for member in archive.members
        )
    assert b"root:x:" not in task.get("/diff").body


def test_a_repository_that_is_a_trap_is_not_sprung(alice: Caller) -> None:
    """Hooks, filters and configuration of the workspace are the agent's own: nobody runs them but the agent."""
    traps = [
        "run git init -q . ; printf '#!/bin/sh\\nid > /tmp/sprung\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*",
        "run git config core.fsmonitor 'id -un > /tmp/sprung; false'; git config diff.external 'id > /tmp/sprung'",
        "edit a.txt not committed",
    ]
    task = alice.task("\n".join(traps), keep_minutes=10)
    view = task.ended()
    path = f"/v1/sandboxes/{view['sandbox']}"
    reply = alice.post(f"{path}/exec", cmd="cat /tmp/sprung", user="root")
    assert alice.call("DELETE", path).status == 200
    assert "root" not in reply.json["stdout"]

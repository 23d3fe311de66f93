"""Control groups, with the kernel of this computer where it has them."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warren_guest.accounts import Accounts
from warren_guest.groups import Group, Groups
from warren_guest.spawn import Program, spawn

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="groups need root")

LIMIT_S = 20.0
HIDES = "setsid env -i sh -c 'exec sleep 607' >/dev/null 2>&1 & exec sleep 608"


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def members(group: Group) -> list[str]:
    """The command lines of those that live there."""
    found = []
    for pid in Path(group.door).read_text().split():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
    return sorted(found)


def start(group: Group, script: str) -> int:
    account = Accounts("nobody").find(None)
    program = Program("/bin/sh", ("-c", script), {}, "/", account, stdin=True, no_new_privs=True, group=group.door)
    child = spawn(program, contextlib.nullcontext())
    for fd in (*child.outputs.values(), child.stdin):
        if fd is not None:
            os.close(fd)
    return child.pid


@pytest.fixture
def groups() -> Iterator[Groups]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for root in [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]:
        folder = root / f"warren-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / "cgroup.kill").exists():
                yield Groups(str(folder))
                return
        finally:
            for path in [entry for entry in folder.iterdir() if entry.is_dir()] + [folder]:
                path.rmdir()
    pytest.skip("there is no cgroup2 here whose groups can be killed")


def test_who_drops_its_environment_and_its_session_is_killed_with_its_group(groups: Groups) -> None:
    group = groups.make("one")
    pids = [start(group, HIDES)]
    until(lambda: members(group) == ["sleep 607", "sleep 608"])
    other = groups.make("other")
    pids.append(start(other, "exec sleep 609"))
    until(lambda: members(other) == ["sleep 609"])
    group.kill()
    os.waitpid(pids[0], 0)
    until(lambda: members(group) == [])
    assert members(other) == ["sleep 609"]
    other.kill()
    os.waitpid(pids[1], 0)
    until(lambda: members(other) == [])


def test_an_ordinary_user_cannot_leave_its_group(groups: Groups) -> None:
    group = groups.make("one")
    outside = f"{os.path.dirname(group.path)}/cgroup.procs"
    pid = start(group, f"exec 2> /dev/null; echo 0 > {outside}; exec sleep 610")
    until(lambda: members(group) == ["sleep 610"])
    group.kill()
    os.waitpid(pid, 0)
    until(lambda: members(group) == [])


@pytest.fixture
def ticks() -> Iterator[Path]:
    """A file that anybody may write to."""
    with tempfile.NamedTemporaryFile(prefix="warren-ticks-") as file:
        Path(file.name).chmod(0o666)
        yield Path(file.name)


def test_who_is_frozen_stands_still_whatever_it_did_to_hide_and_then_goes_on(groups: Groups, ticks: Path) -> None:
    group = groups.make("one")
    counts = f"setsid env -i sh -c 'while :; do echo >> {ticks}; done' >/dev/null 2>&1 & exec sleep 612"
    pid = start(group, counts)
    until(lambda: ticks.stat().st_size > 0)
    group.freeze()
    before = ticks.stat().st_size
    time.sleep(0.2)
    assert ticks.stat().st_size == before
    group.thaw()
    until(lambda: ticks.stat().st_size > before)
    group.kill()
    os.waitpid(pid, 0)
    until(lambda: members(group) == [])


def test_groups_in_which_nobody_lives_are_removed_with_the_next(groups: Groups) -> None:
    empty, used = groups.make("empty"), groups.make("used")
    assert not Path(empty.path).exists()
    pid = start(used, "exec sleep 611")
    new = groups.make("new")
    assert Path(used.path).exists()
    assert Path(new.path).exists()
    used.kill()
    os.waitpid(pid, 0)
    until(lambda: members(used) == [])


def test_a_group_that_was_taken_away_is_killed_without_a_word(groups: Groups) -> None:
    group = groups.make("gone")
    Path(group.path).rmdir()
    group.kill()

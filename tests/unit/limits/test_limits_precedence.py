"""What keeps the guest's supervisor answering, in processes of the tests' own; the whole of it in machines."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warren_guest import precedence

from tests.unit.guest.client import GUEST


def run_apart(code: str) -> Any:
    """What `code` prints, as JSON, in a process of its own: these calls cannot be taken back."""
    argv = [
        sys.executable,
        "-c",
        f"import json, os, resource, subprocess, sys\nfrom warren_guest import precedence\n{code}",
    ]
    done = subprocess.run(argv, check=False, cwd=GUEST, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def may(call: str) -> bool:
    """Whether this host lets us: a container may not."""
    return subprocess.run([sys.executable, "-c", call], check=False, capture_output=True, timeout=20).returncode == 0


def test_what_a_process_touches_stays_in_memory_and_its_children_are_free() -> None:
    if not may("import ctypes; raise SystemExit(ctypes.CDLL(None).mlockall(7))"):
        pytest.skip("this host does not let us keep memory")
    told = run_apart(
        "def locked(): return int(open('/proc/self/status').read().split('VmLck:')[1].split()[0])\n"
        "before = locked()\n"
        "precedence.stay_in_memory()\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if locked() == 0 else 1)\n"
        "child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "print(json.dumps([before, locked() > 0, child]))\n"
    )
    assert told == [0, True, 0]


def test_processes_are_limited_for_what_is_started() -> None:
    hard = subprocess.check_output(["/bin/sh", "-c", "ulimit -Hp 2>/dev/null || ulimit -Hu"], text=True).strip()
    limit = precedence.process_limit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"))
    if hard != "unlimited" and int(hard) < limit:
        pytest.skip("this host has a lower limit already")
    told = run_apart("precedence.limit_processes(); print(json.dumps(resource.getrlimit(resource.RLIMIT_NPROC)))")
    assert told == [limit, limit]


@given(st.integers(0, 1 << 44), st.integers(0, 1 << 40))
def test_more_memory_never_means_fewer_processes(memory: int, more: int) -> None:
    assert 256 <= precedence.process_limit(memory) <= precedence.process_limit(memory + more)


def test_a_small_machine_has_room_for_work_and_a_large_one_for_more() -> None:
    assert precedence.process_limit(218 << 20) == 256
    assert precedence.process_limit(4 << 30) == 4096

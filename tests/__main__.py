"""The tests, in four runs, three of them side by side: much of their time they wait. `make test` runs this.

None is tried again: one that fails only beside others, on a machine that has more to do than it can, shows a defect.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests import snapshots

ROOT = Path(__file__).parents[1]
# Of tasks in real machines what shows each part at work; `make test-tasks` has all of them, and takes its time.
TASKS = (
    "tests/tasks/test_tasks_mock.py",
    "tests/tasks/test_tasks_kills.py",
    "tests/tasks/test_tasks_steer.py",
    "tests/tasks/test_tasks_agents.py::test_claude_code_does_what_its_model_says",
    "tests/tasks/test_tasks_agents.py::test_codex_does_what_its_model_says",
)
# The first is told as it goes, the others when all are done. Each has about as much to do.
RUNS = (
    ("tests/vm",),
    ("tests/unit", "tests/structure", "tests/conformance", "tests/faults"),
    ("tests/egress", *TASKS),
    ("tests/gateway", "tests/sdk", "tests/browser", "tests/cluster", "tests/fuzz"),
)
AT_ONCE = 3  # more of them only get into each other's way on two cores


def main() -> int:
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-snapshots-"))
        os.environ[snapshots.VARIABLE] = shared
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in RUNS[1:]]
        codes = _run_all([None, *said])
        for folders, output in zip(RUNS[1:], said, strict=True):
            print(f"\n· beside it: {' '.join(folders)}")
            output.seek(0)
            print(output.read(), flush=True)
    return int(any(codes))


def _run_all(outputs: Sequence[IO[str] | None]) -> list[int]:
    """Each of the runs, some at once. Their exit codes."""
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for folders, output in zip(RUNS, outputs, strict=True):
            while sum(test.poll() is None for test in begun) >= AT_ONCE:
                time.sleep(0.2)
            begun.append(_pytest(folders, output))
        return [test.wait() for test in begun]
    finally:  # if we are interrupted they are, too, and clear up
        for test in begun:
            if test.poll() is None:
                test.send_signal(signal.SIGINT)
        for test in begun:
            test.wait()


def _pytest(folders: Sequence[str], output: IO[str] | None) -> subprocess.Popen[bytes]:
    cache = f"cache_dir={ROOT / 'build' / 'tests' / Path(folders[0]).name}"
    argv = [sys.executable, "-m", "pytest", "-o", cache, "--durations=10", *folders]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

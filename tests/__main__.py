"""The tests, a folder at a time, three of them side by side: much of their time they wait. `make test` runs this.

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
# Those that take longest first: at the end the short ones fill up what is left.
RUNS = (
    ("tests/vm",),
    ("tests/unit", "tests/structure"),
    ("tests/egress",),
    TASKS,
    ("tests/cluster",),
    ("tests/conformance",),
    ("tests/gateway",),
    ("tests/sdk",),
    ("tests/faults",),
    ("tests/fuzz",),
    ("tests/browser",),
)
AT_ONCE = 3  # more of them only get into each other's way on two cores


def main() -> int:
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-snapshots-"))
        os.environ[snapshots.VARIABLE] = shared
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in RUNS]
        return int(any(_run_all(outputs)))


def _run_all(outputs: Sequence[IO[str]]) -> list[int]:
    """Each of the runs, some at once, and what it said when it is over. Their exit codes."""
    waiting = list(zip(RUNS, outputs, strict=True))
    running: list[tuple[subprocess.Popen[bytes], IO[str]]] = []
    codes = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                folders, output = waiting.pop(0)
                print(f"· {' '.join(folders)}", flush=True)
                running.append((_pytest(folders, output), output))
            for test, output in [each for each in running if each[0].poll() is not None]:
                running.remove((test, output))
                codes.append(test.returncode)
                output.seek(0)
                print(output.read(), flush=True)
            time.sleep(0.2)
        return codes
    finally:  # if we are interrupted they are, too, and clear up
        for test, _ in running:
            if test.poll() is None:
                test.send_signal(signal.SIGINT)
        for test, _ in running:
            test.wait()


def _pytest(folders: Sequence[str], output: IO[str]) -> subprocess.Popen[bytes]:
    cache = f"cache_dir={ROOT / 'build' / 'tests' / Path(folders[0]).name}"
    argv = [sys.executable, "-m", "pytest", "-o", cache, "--durations=10", *folders]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

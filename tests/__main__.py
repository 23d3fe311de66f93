"""The tests, a folder at a time, three of them side by side: much of their time they wait. `make test` runs this.

What fails beside others, on a machine that has more to do than it can, is told and tried once more when nothing else
runs: what fails then, too, fails. A test that needs that is a defect to be looked for, and its first failure is shown.
"""

import contextlib
import os
import secrets
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
DAEMON = ("tests/unit/poold", "tests/unit/tasks")
HOST = tuple(f"tests/unit/{name}" for name in ("lease", "replica", "hibernate", "store", "ledger"))
UNITS = sorted(f"tests/unit/{path.name}" for path in (ROOT / "tests/unit").iterdir() if path.is_dir())
OTHERS = tuple(path for path in UNITS if path not in (*DAEMON, *HOST) and not path.endswith("__pycache__"))
# Those that take longest first: at the end the short ones fill up what is left.
RUNS = (
    ("tests/vm",),
    DAEMON,
    ("tests/egress",),
    HOST,
    (*OTHERS, "tests/structure"),
    TASKS,
    ("tests/nemesis",),
    ("tests/cluster",),
    ("tests/conformance",),
    ("tests/gateway",),
    ("tests/sdk",),
    ("tests/faults",),
    ("tests/fuzz",),
    ("tests/browser",),
)
AT_ONCE = 3  # more of them only get into each other's way on two cores
SOME_FAILED = 1  # of pytest: all other codes but 0 say that it did not run to its end


def main() -> int:
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-snapshots-"))
        os.environ[snapshots.VARIABLE] = shared
        os.environ.setdefault("WARREN_NEMESIS_SEED", str(secrets.randbits(32)))  # what is tried again is the same round
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in RUNS]
        codes = _run_all(outputs)
        left = [_once_more(folders, code) for folders, code in zip(RUNS, codes, strict=True)]
        return int(any(left))


def _run_all(outputs: Sequence[IO[str]]) -> list[int]:
    """Each of the runs, some at once, and what it said when it is over. Their exit codes."""
    waiting = list(zip(RUNS, outputs, strict=True))
    running: list[tuple[subprocess.Popen[bytes], IO[str]]] = []
    codes: dict[IO[str], int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                folders, output = waiting.pop(0)
                print(f"· {' '.join(folders)}", flush=True)
                running.append((_pytest(folders, output), output))
            for test, output in [each for each in running if each[0].poll() is not None]:
                running.remove((test, output))
                codes[output] = test.returncode
                output.seek(0)
                print(output.read(), flush=True)
            time.sleep(0.2)
        return [codes[output] for output in outputs]
    finally:  # if we are interrupted they are, too, and clear up
        for test, _ in running:
            if test.poll() is None:
                test.send_signal(signal.SIGINT)
        for test, _ in running:
            test.wait()


def _once_more(folders: Sequence[str], code: int) -> int:
    """What a run comes to when those of its tests that failed are run alone."""
    if code != SOME_FAILED:
        return code
    print(f"\n· once more, alone: what failed of {' '.join(folders)}", flush=True)
    return _pytest(folders, None, "--last-failed", "--last-failed-no-failures=none").wait()


def _pytest(folders: Sequence[str], output: IO[str] | None, *options: str) -> subprocess.Popen[bytes]:
    cache = f"cache_dir={ROOT / 'build' / 'tests' / Path(folders[0]).name}"
    argv = [sys.executable, "-m", "pytest", "-o", cache, "--durations=10", *options, *folders]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

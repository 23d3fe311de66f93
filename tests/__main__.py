"""The tests, in four runs side by side: much of their time they wait. `make test` runs this."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

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
    ("tests/gateway", "tests/sdk", "tests/browser", "tests/cluster", "tests/fuzz"),
    ("tests/egress", *TASKS),
)


def main() -> int:
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in RUNS[1:]]
        begun = [_pytest(folders, output) for folders, output in zip(RUNS, [None, *said], strict=True)]
        try:
            codes = [test.wait() for test in begun]
        finally:  # if we are interrupted they are, too, and clear up
            for test in begun:
                if test.poll() is None:
                    test.send_signal(signal.SIGINT)
            for test in begun:
                test.wait()
        for folders, output in zip(RUNS[1:], said, strict=True):
            print(f"\n· beside it: {' '.join(folders)}")
            output.seek(0)
            print(output.read(), flush=True)
    return int(any(codes))


def _pytest(folders: Sequence[str], output: IO[str] | None) -> subprocess.Popen[bytes]:
    cache = f"cache_dir={ROOT / 'build' / 'tests' / Path(folders[0]).name}"
    argv = [sys.executable, "-m", "pytest", "-o", cache, "--durations=10", *folders]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

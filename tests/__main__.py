"""Every test, in three runs side by side: much of their time they wait. `make test` runs this.

What failed beside the others is run once more, alone, and said so: only what fails then, too, is a failure. A machine
that is too busy breaks a limit of time here and there, and says nothing about the code.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
SOME_FAILED = 1  # pytest's code; any other is no matter of a single test
# The first is told as it goes, the others when all are done. Each has about as much to do.
RUNS = (
    ("tests/vm",),
    ("tests/unit", "tests/structure", "tests/conformance", "tests/faults"),
    ("tests/gateway", "tests/sdk", "tests/browser", "tests/cluster", "tests/fuzz"),
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
    ends = [_once_more(run) if code == SOME_FAILED else code for run, code in zip(RUNS, codes, strict=True)]
    return int(any(ends))


def _once_more(folders: Sequence[str]) -> int:
    print(f"\n· once more, alone: what failed in {' '.join(folders)}", flush=True)
    return _pytest(folders, None, "--last-failed").wait()


def _pytest(folders: Sequence[str], output: IO[str] | None, *options: str) -> subprocess.Popen[bytes]:
    cache = f"cache_dir={ROOT / 'build' / 'tests' / Path(folders[0]).name}"
    argv = [sys.executable, "-m", "pytest", "-o", cache, "--durations=10", *options, *folders]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

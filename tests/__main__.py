"""Every test: those of the whole daemon with microVMs and, beside them, all others. `make test` runs this."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

MACHINES = ("tests/vm", "tests/faults", "tests/fuzz")
ALL_ELSE = (
    "tests/unit",
    "tests/structure",
    "tests/conformance",
    "tests/gateway",
    "tests/sdk",
    "tests/browser",
    "tests/cluster",
)


def main() -> int:
    with tempfile.TemporaryFile("w+") as said:
        begun = [_pytest(MACHINES), _pytest(ALL_ELSE, said)]
        try:
            codes = [test.wait() for test in begun]
        finally:  # if we are interrupted they are, too, and clear up
            for test in begun:
                if test.poll() is None:
                    test.send_signal(signal.SIGINT)
                test.wait()
        print(f"\n· {' '.join(ALL_ELSE)}, which ran beside these:")
        said.seek(0)
        print(said.read(), flush=True)
    return int(any(codes))


def _pytest(folders: tuple[str, ...], output: IO[str] | None = None) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=10", *folders]
    return subprocess.Popen(argv, cwd=Path(__file__).parents[1], stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())

"""A host's wall clock that can be set while it runs: on the path of its programs, this is loaded before they are.

Only the clock of the day is another one, as when somebody sets it: what counts from the boot goes on as it was. Linux
cannot set the clock of one host of several on one kernel (its time namespaces have none of the day), and libfaketime
breaks `time.sleep` of this Python.
"""

import os
import time
from pathlib import Path

_OFFSET = Path(os.environ["WARREN_NEMESIS_CLOCK"])
_LOOK_NS = 200_000_000
_true_ns, _counted_ns = time.time_ns, time.monotonic_ns
_looked_ns = 0
_offset_ns = 0


def time_ns() -> int:
    global _looked_ns, _offset_ns  # noqa: PLW0603
    if _counted_ns() >= _looked_ns + _LOOK_NS:
        _looked_ns = _counted_ns()
        _offset_ns = int(_OFFSET.read_text()) * 1_000_000_000
    return _true_ns() + _offset_ns


time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9

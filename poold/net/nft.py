"""nftables by its own library: a text of commands is applied as one transaction.

The library waits with `select`, which knows no descriptor above 1,023 and aborts the process that has one. So it is
used in this process while that has few files open, which takes a millisecond, and in a process of its own if not.
"""

import os
import subprocess
import sys

from poold.errors import NetError
from poold.net import libnft

# At most half of what `select` knows: what other threads open meanwhile does not make up for the rest.
FEW_FILES = 512
_LIMIT_S = 60.0


def run_nft(commands: str) -> str:
    """Apply `commands`, all or none of them, to this thread's namespace, and return what they print."""
    try:
        few = len(os.listdir("/proc/self/fd")) < FEW_FILES  # noqa: PTH208
        is_done, said = libnft.apply(commands) if few else _elsewhere(commands)
    except OSError as exc:
        raise NetError("load", libnft.LIBRARY, hint="apt install libnftables1") from exc
    except subprocess.TimeoutExpired as exc:
        raise NetError("apply", "nftables rules", hint=f"no answer within {_LIMIT_S:.0f} s") from exc
    if not is_done:
        raise NetError("apply", "nftables rules", hint=said)
    return said


def _elsewhere(commands: str) -> tuple[bool, str]:
    """As `libnft.apply`, in a process with no files of ours, which begins in the namespace of this thread."""
    argv = [sys.executable, "-I", "-S", libnft.__file__]
    ended = subprocess.run(argv, input=commands, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    return ended.returncode == 0, ended.stdout if ended.returncode == 0 else ended.stdout or ended.stderr.strip()[-500:]

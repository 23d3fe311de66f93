"""Ports of loopback for what a test starts."""

import contextlib
import random
import socket
from collections import deque

# Below those that the kernel hands out by itself: between the choice and its use nobody else gets it by chance.
PORTS = range(20_000, 32_000)
KEPT = 200  # more than any test uses at once
_marks: deque[socket.socket] = deque()


def free_port() -> int:
    """A port that nobody listens on. No other process gets it from here before this one ends or has asked for many."""
    for port in random.sample(PORTS, len(PORTS)):
        mark = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as probe:
            mark.bind(f"\0warren-test-port-{port}")
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _marks.append(mark)
            if len(_marks) > KEPT:
                _marks.popleft().close()
            return port
        mark.close()
    raise RuntimeError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")

"""Servers on every address of the host, that no guest may reach: who comes there is remembered."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator, Sequence

from tests.egress.spaces import Space

PORTS = (22, 80, 443, 3128, 5432, 7070, 8080)


@contextlib.contextmanager
def open_baits(space: Space, ports: Sequence[int] = PORTS) -> Iterator[list[str]]:
    """Listen in `space` during the block. Gives the list of those who came, which grows."""
    came: list[str] = []
    with contextlib.ExitStack() as stack:

        def listen() -> list[socket.socket]:
            return [
                stack.enter_context(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True))
                for port in ports
            ]

        listeners = space.do(listen)
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())

        def watch() -> None:
            while ours not in (ready := select.select([ours, *listeners], [], [])[0]):
                for listener in ready:
                    connection, peer = listener.accept()
                    came.append(f"{peer[0]} to port {listener.getsockname()[1]}")
                    connection.close()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield came
        finally:
            theirs.close()
            thread.join()

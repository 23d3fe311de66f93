"""Starts the guest: as the first process of a machine (`--init`), or on a developer's computer (`--socket`)."""

import argparse
import asyncio
import gc
import os
import pwd
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from warren_guest import VERSION, init, syscalls
from warren_guest.git.places import beside
from warren_guest.guest import Config, Guest
from warren_guest.identity import HostMachine
from warren_guest.logs import Ring, open_log
from warren_guest.routes import respond
from warren_guest.server import Connection, PeerCheck

_BACKLOG = 512
# Connections that are taken before anything else is done. asyncio takes as many as may wait: after the only one it asks
# once more, in vain, and the kernel makes a socket for that and throws it away.
_AT_ONCE = 1


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("warren-guest", description="The first process of a Warren machine.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--init", action="store_true", help="be the first process of a machine")
    mode.add_argument("--socket", type=Path, metavar="PATH", help="serve on a unix socket of this computer")
    parser.add_argument("--workspace", type=Path, default=Path("/workspace"), help="where processes start")
    parser.add_argument("--user", metavar="NAME", help="who processes run as, if not asked for otherwise")
    parser.add_argument("--version", action="version", version=VERSION)
    return parser.parse_args(argv)


async def serve(
    config: Config, ring: Ring, listener: socket.socket, is_served: PeerCheck, ready: Callable[[], None]
) -> None:
    """Answer requests on `listener` until SIGTERM, then end everything that was started."""
    loop = asyncio.get_running_loop()
    guest = Guest(config, ring)
    guest.open()
    connections = guest.connections
    server = await loop.create_server(
        lambda: Connection(lambda request: respond(guest, request), is_served, connections),
        sock=listener,
        backlog=_AT_ONCE,
    )
    listener.listen(_BACKLOG)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # The first process must survive both; a handler, unlike ignoring, is not inherited by what it starts.
        loop.add_signal_handler(number, (lambda: None) if os.getpid() == 1 else stop.set)
    # Nothing that exists now is ever garbage: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    ready()
    await stop.wait()
    server.close()
    for connection in list(connections):
        connection.hang_up()
    await guest.close()


def _serve_machine(ring: Ring) -> None:
    booted = init.become_init()
    asyncio.run(serve(booted.config, ring, booted.listener, booted.is_served, booted.say_ready))


def _serve_locally(arguments: argparse.Namespace, ring: Ring) -> None:
    # Modes of new files are exact; what we start gets the usual mask.
    os.umask(0)
    _heed_signals()
    syscalls.become_subreaper()
    path: Path = arguments.socket
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    user = arguments.user or pwd.getpwuid(os.geteuid()).pw_name
    workspace = str(arguments.workspace.absolute())
    outputs = f"{path.absolute()}.outputs"
    home = Path(f"{path.absolute()}.home")
    home.mkdir(0o700, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(home, user)
    config = Config(HostMachine(), user, workspace=workspace, outputs=outputs, git=beside(path), session_home=str(home))

    def ready() -> None:
        sys.stdout.write(f"warren-guest ready on {path}\n")
        sys.stdout.flush()

    try:
        asyncio.run(serve(config, ring, listener, lambda _peer: True, ready))
    finally:
        path.unlink(missing_ok=True)


def _heed_signals() -> None:
    """What we start ignores no signal, even if whoever started us did (`nohup`, a shell's `&`)."""
    for number in signal.valid_signals():
        if (
            signal.getsignal(number) is signal.SIG_IGN and number != signal.SIGPIPE
        ):  # Python's own; undone at each start
            signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> None:
    arguments = _arguments(argv)
    ring = open_log()
    if arguments.init:
        _serve_machine(ring)
    else:
        _serve_locally(arguments, ring)


if __name__ == "__main__":
    main()

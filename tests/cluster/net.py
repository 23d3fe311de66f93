"""A network of our own: one namespace a machine, all on one bridge. Nothing of it is in the host's own namespace."""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
LAN = "lan"


@dataclass(frozen=True)
class Net:
    """The machines of the network by name, and what can be done to them."""

    folder: Path
    addresses: dict[str, str]

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that runs on the machine `name`."""
        return ["nsenter", f"--net={self.folder / name}", *argv]

    def cut(self, name: str) -> None:
        """From now on nobody reaches the machine, and it reaches nobody. Connections hang, as with a pulled cable."""
        self._link(name, "down")

    def mend(self, name: str) -> None:
        self._link(name, "up")

    def connect(self, name: str, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A connection from the machine `name`, for whoever runs elsewhere."""

        def connected() -> socket.socket:
            return socket.create_connection(address, timeout_s)

        return self._there(name, connected)

    def listen(self, name: str, port: int) -> socket.socket:
        """A socket that listens on the machine `name`, for whoever runs elsewhere."""
        return self._there(name, lambda: socket.create_server((self.addresses[name], port), backlog=512))

    def _link(self, name: str, state: str) -> None:
        _run(*self.inside(LAN, ["ip", "link", "set", f"to-{name}", state]))

    def _there(self, name: str, do: Callable[[], T]) -> T:
        """Do something in a thread that is on the machine `name`: what it opens stays there."""
        done: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with (self.folder / name).open("rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {name}")
                done.append(do())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return done[0]


@contextlib.contextmanager
def open_net(names: Sequence[str]) -> Iterator[Net]:
    """Machines that reach each other during the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"warren-net-{os.getpid()}-", dir="/run"))
    net = Net(folder, {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)})
    try:
        for name in (LAN, *names):
            (folder / name).touch()
            _run("unshare", f"--net={folder / name}", "ip", "link", "set", "lo", "up")
        _run(*net.inside(LAN, ["ip", "link", "add", "br0", "type", "bridge"]))
        _run(*net.inside(LAN, ["ip", "link", "set", "br0", "up"]))
        for name, address in net.addresses.items():
            _plug(net, name, address)
        yield net
    finally:
        for name in (LAN, *names):
            subprocess.run(["umount", "--lazy", folder / name], check=False, capture_output=True)
        shutil.rmtree(folder)


def _plug(net: Net, name: str, address: str) -> None:
    """One cable from the machine to the bridge."""
    peer = ["peer", "name", "eth0", "netns", str(net.folder / name)]
    _run(*net.inside(LAN, ["ip", "link", "add", f"to-{name}", "type", "veth", *peer]))
    _run(*net.inside(LAN, ["ip", "link", "set", f"to-{name}", "master", "br0", "up"]))
    _run(*net.inside(name, ["ip", "address", "add", f"{address}/24", "dev", "eth0"]))
    _run(*net.inside(name, ["ip", "link", "set", "eth0", "up"]))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")

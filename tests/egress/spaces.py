"""Network namespaces that a process keeps for us. When it ends they are gone, whatever became of the test."""

import contextlib
import ctypes
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
# It dies with us: nobody else would end it if we were killed.
KEEP = "echo ready; exec setpriv --pdeathsig KILL sleep infinity"


@dataclass(frozen=True)
class Space:
    """A network namespace and a mount namespace."""

    name: str
    pid: int  # of the process that keeps it

    def inside(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that runs in here. Its process is the one that is started."""
        # Root and folder are said: they would be those of the namespace of mounts, and not of whoever made it.
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--root", "--wd", *argv]

    def run(self, *argv: str) -> str:
        done = subprocess.run(self.inside(argv), check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"in {self.name}: {' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def asked(self, *argv: str) -> Any:
        """What a command that speaks JSON says."""
        return json.loads(self.run(*argv) or "[]")

    def do(self, work: Callable[[], T]) -> T:
        """Do something in a thread that is in here: the sockets that it opens stay here."""
        done: list[T] = []
        failed: list[BaseException] = []

        def enter() -> None:
            try:
                with Path(f"/proc/{self.pid}/ns/net").open("rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
                done.append(work())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return done[0]


@contextlib.contextmanager
def open_space(name: str) -> Iterator[Space]:
    """A new, empty namespace during the block: loopback is up, and there is nothing else."""
    argv = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", f"ip link set lo up; {KEEP}"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the namespace of {name} cannot be made: are we root?")
            yield Space(name, keeper.pid)
        finally:
            keeper.kill()

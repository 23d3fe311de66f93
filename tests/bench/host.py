"""A poold of our own for a benchmark or a test: a real process with its own folders, on a free port of loopback."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import snapshots
from tests.ports import free_port
from tests.signing import Gateway

NAME = "bench"
ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = Path(os.environ.get("WARREN_IMAGES", ROOT / "build" / "images"))
WARM_LIMIT_S = 240.0
STOP_LIMIT_S = 60.0


@dataclass
class Host:
    """A running poold, and one kept-alive connection to it."""

    port: int
    process: "subprocess.Popen[bytes]"
    folder: Path
    state: Path
    connection: http.client.HTTPConnection
    socket: Path  # for pooldctl
    environment: dict[str, str]
    gateway: Gateway  # who signs for those who ask
    prefix: Sequence[str] = ()  # of its command, if it lives elsewhere

    def start(self) -> None:
        """Start poold, again if it was stopped."""
        with (self.folder / "log").open("ab") as log:
            argv = [*self.prefix, sys.executable, "-m", "poold"]
            self.process = subprocess.Popen(argv, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    def stop(self) -> None:
        """Stop poold as its operator would. Its sandboxes run on."""
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        """Kill poold in the middle of whatever it does."""
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def stop_all(self, **variables: str) -> None:
        """End every machine that a stopped poold left. Some variables may be others than it had."""
        with (self.folder / "log").open("ab") as log:
            argv = [*self.prefix, sys.executable, "-m", "poold", "--stop-all"]
            environment = {**self.environment, **variables}
            done = subprocess.run(argv, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"poold --stop-all failed:\n{self.log()[-3000:]}")

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, self.gateway.headers(method, path))
        reply = self.connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None

    def wait_until_serving(self) -> None:
        """Poold answers, on its socket too."""
        self._wait_until("does not answer", lambda _: self.socket.exists())

    def wait_until_warm(self) -> None:
        """Every share of the pool has what it wants."""
        self._wait_until(
            "has no warm machine", lambda health: all(share["warm"] >= share["wanted"] for share in health["pool"])
        )
        snapshots.lend(self.state)

    def _wait_until(self, problem: str, is_so: Callable[[Any], bool]) -> None:
        give_up = time.monotonic() + WARM_LIMIT_S
        while True:
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"poold {problem}:\n{self.log()[-3000:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, health = self.call("GET", "/healthz")
                if status == 200 and is_so(health):
                    return
            self.connection.close()
            time.sleep(0.05)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


class UnixConnection(http.client.HTTPConnection):
    """A connection to the operator's entrance."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def open_host(*, pool: str, state: Path | None = None, prefix: Sequence[str] = (), **variables: str) -> Iterator[Host]:
    """Run a poold during the block. After it, poold and all its machines are gone. `state` may be used again.

    With a `prefix` to its command it may be in namespaces of its own, and is asked by the operator's entrance.
    """
    folder = Path(tempfile.mkdtemp(prefix="warren-"))
    run_dir = Path(tempfile.mkdtemp(prefix="warren-", dir="/run"))
    state = state or folder / "state"
    port, gateway = free_port(), Gateway(NAME)
    environment = {
        **os.environ,
        "POOLD_LISTEN": f"127.0.0.1:{port}",
        "POOLD_STATE_DIR": str(state),
        "POOLD_RUN_DIR": str(run_dir),
        "POOLD_IMAGES": str(IMAGES),
        "POOLD_POOL": pool,
        "POOLD_NAME": NAME,
        "POOLD_PKI": str(gateway.write(folder / "pki")),
        **variables,
    }
    socket_path = Path(environment["POOLD_RUN_DIR"]) / "poold.sock"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    if prefix:
        connection = UnixConnection(socket_path, timeout=120)
    known = (folder, state, connection, socket_path, environment, gateway, prefix)
    host = Host(port, None, *known)  # type: ignore[arg-type]
    snapshots.borrow(state)
    host.start()
    try:
        yield host
    finally:
        host.connection.close()
        try:
            host.stop()
            host.stop_all()
            snapshots.lend(state)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(run_dir, ignore_errors=True)

"""Five hosts and three gateways, each on a machine of its own, with real certificates and real microVMs."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from poold.ledger.driver import sqlite3
from tests import snapshots
from tests.bench.host import IMAGES, ROOT
from tests.cluster.net import Net, open_net

T = TypeVar("T")
HOSTS = ("h1", "h2", "h3", "h4", "h5")
GATEWAYS = ("g1", "g2", "g3")
ME = "me"  # where the tests' clients are
HOST_PORT, GATEWAY_PORT = 7070, 8443
OWNER = "alice"
LIMIT_S = 60.0
START_LIMIT_S = 300.0  # a host boots and freezes its first machine on few processors
BASE_UID = 300_000
SLOTS = 28
MEMORY_MB = 8192  # for more machines than there are slots: these are the room


def until(is_so: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    """Wait for a state, with a limit."""
    give_up = time.monotonic() + limit_s
    while not (so := is_so()):
        assert time.monotonic() < give_up, f"it did not come about within {limit_s:g} s"
        time.sleep(0.05)
    return so


@dataclass
class Reply:
    status: int
    json: Any


@dataclass
class Cluster:
    """The programs that run, by the name of their machine."""

    net: Net
    folder: Path
    key: str = ""
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    # What a client does.

    @contextlib.contextmanager
    def line(self, gateway: str, limit_s: float = LIMIT_S) -> Iterator[http.client.HTTPSConnection]:
        """A connection to one gateway, for many requests."""
        connection = http.client.HTTPSConnection("gateway", GATEWAY_PORT)
        with contextlib.closing(connection):
            plain = self.net.connect(ME, (self.net.addresses[gateway], GATEWAY_PORT), 5.0)
            plain.settimeout(limit_s)
            connection.sock = self._trusting().wrap_socket(plain, server_hostname=self.net.addresses[gateway])
            yield connection

    def ask(self, line: http.client.HTTPSConnection, method: str, path: str, body: Any = None) -> Reply:
        """A request. Raises OSError or HTTPException if there is no whole answer."""
        headers = {"Authorization": f"Bearer {self.key}"}
        line.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = line.getresponse()
        content = answer.read()
        return Reply(answer.status, json.loads(content) if content else None)

    def call(self, gateway: str, method: str, path: str, body: Any = None) -> Reply:
        """A request on a connection of its own."""
        with self.line(gateway) as line:
            return self.ask(line, method, path, body)

    def create(self, gateway: str, limit_s: float = LIMIT_S, **fields: Any) -> dict[str, Any]:
        with self.line(gateway, limit_s) as line:
            reply = self.ask(line, "POST", "/v1/sandboxes", {"image": "minimal", **fields})
        assert reply.status == 201, reply
        made: dict[str, Any] = reply.json
        return made

    def unreachable(self, gateway: str, boxes: Sequence[str]) -> list[str]:
        """Those whose own guests do not answer, asked through `gateway`."""
        with contextlib.suppress(OSError, http.client.HTTPException), self.line(gateway) as line:
            return [box for box in boxes if self.ask(line, "GET", f"/v1/sandboxes/{box}/health").status != 200]
        return list(boxes)

    def hosts(self, gateway: str) -> dict[str, dict[str, Any]]:
        """What a gateway knows of the hosts."""
        reply = self.call(gateway, "GET", "/v1/hosts")
        assert reply.status == 200, reply
        return {host["name"]: host for host in reply.json["hosts"]}

    def host_of(self, sandbox_id: str) -> str:
        """Where a sandbox really is, found by looking at the hosts' disks."""
        for name in HOSTS:
            ledger = self.state(name) / "ledger.db"
            if ledger.exists():
                with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
                    if db.execute("SELECT 1 FROM sandboxes WHERE id = ?", [sandbox_id]).fetchone():
                        return name
        raise AssertionError(f"no host has {sandbox_id}")

    # What happens to machines.

    def start_host(self, name: str) -> None:
        pki = self.folder / name / "pki"
        pki.parent.mkdir(exist_ok=True)
        if not pki.exists():
            address = self.net.addresses[name]
            self.ctl("pki", "issue", str(self.folder / "ca"), "host", name, "--address", address, "--out", str(pki))
        snapshots.borrow(self.state(name), *(self.state(other) for other in HOSTS if other != name))
        self._start(name, "poold", **self._of_host(name))

    def stop_machines(self, name: str) -> None:
        """End every machine that a stopped host left."""
        argv = self.net.inside(name, [sys.executable, "-m", "poold", "--stop-all"])
        environment = {**os.environ, **self._of_host(name)}
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    def _of_host(self, name: str) -> dict[str, str]:
        return {
            "POOLD_NAME": name,
            "POOLD_LISTEN": f"{self.net.addresses[name]}:{HOST_PORT}",
            "POOLD_STATE_DIR": str(self.state(name)),
            "POOLD_RUN_DIR": self._run_dir(name),
            "POOLD_IMAGES": str(IMAGES),
            "POOLD_POOL": "minimal=1-2",
            "POOLD_DEFAULT_IMAGE": "minimal",
            "POOLD_SLOTS": str(SLOTS),
            "POOLD_MEMORY_MB": str(MEMORY_MB),
            "POOLD_BASE_UID": str(BASE_UID + HOSTS.index(name) * SLOTS),
            "POOLD_CGROUP": f"warren-cluster-{os.getpid()}-{name}",
            "POOLD_REGISTRY": str(self.folder / "registry"),
            "POOLD_PKI": str(self.folder / name / "pki"),
        }

    def _run_dir(self, name: str) -> str:
        return str(self.net.folder / f"run-{name}")

    def start_gateway(self, name: str) -> None:
        address = self.net.addresses[name]
        pki = self.folder / name / "pki"
        pki.parent.mkdir(exist_ok=True)
        if not pki.exists():
            ca = str(self.folder / "ca")
            self.ctl("pki", "issue", ca, "gateway", name, "--address", address, "--out", str(pki))
        self._start(
            name,
            "gateway",
            GATEWAY_NAME=name,
            GATEWAY_LISTEN=f"{address}:{GATEWAY_PORT}",
            GATEWAY_TLS_CERT=str(pki / "gateway.pem"),
            GATEWAY_TLS_KEY=str(pki / "gateway.key"),
            GATEWAY_REGISTRY=str(self.folder / "registry"),
            GATEWAY_PKI=str(pki),
        )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def drain(self, name: str) -> None:
        self.ctl("drain", "--in-place", POOLD_RUN_DIR=self._run_dir(name))

    def undrain(self, name: str) -> None:
        self.ctl("undrain", POOLD_RUN_DIR=self._run_dir(name))

    def ctl(self, *words: str, **variables: str) -> str:
        argv = [sys.executable, "-m", "poold.ctl", *words]
        done = subprocess.run(
            argv, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"pooldctl {words}: {done.stderr}"
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def stop(self) -> None:
        """Everything that was started is gone, machines too."""
        for name in list(self.running):
            self.running[name].send_signal(signal.SIGTERM)
        for name, process in self.running.items():
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"{name} did not stop:\n{self.log(name)[-2000:]}") from None
        self.running.clear()

    def _start(self, name: str, module: str, **variables: str) -> None:
        argv = self.net.inside(name, [sys.executable, "-m", module])
        with (self.folder / name / "log").open("ab") as log:
            environment = {**os.environ, **variables}
            self.running[name] = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def _trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca" / "ca.pem"))


def together(each: Callable[[T], Any], of: Sequence[T], threads: int = 12) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(each, of))


@contextlib.contextmanager
def open_cluster(hosts: Sequence[str]) -> Iterator[Cluster]:
    """`hosts` and all gateways during the block, with warm machines. After it nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="warren-cluster-"))
    with open_net([*HOSTS, *GATEWAYS, ME]) as net:
        cluster = Cluster(net, folder)
        try:
            (folder / "registry").mkdir()
            cluster.ctl("pki", "init", str(folder / "ca"))
            made = cluster.ctl("keys", "create", "--registry", str(folder / "registry"), "--owner", OWNER,
                               "--scope", "sandboxes", "--scope", "tasks", "--scope", "admin", "--vcpus", "1000",
                               "--memory-mb", "1000000", "--rate", "10000", "--json")  # fmt: skip
            cluster.key = json.loads(made)["secret"]
            for name in GATEWAYS:
                cluster.start_gateway(name)
            cluster.start_host(hosts[0])
            until(lambda: _has_booted(cluster, hosts[0]), limit_s=START_LIMIT_S)  # the others use what it has booted
            for name in hosts[1:]:
                cluster.start_host(name)
            until(lambda: _is_up(cluster, hosts), limit_s=START_LIMIT_S)
            yield cluster
            snapshots.lend(cluster.state(hosts[0]))
        finally:
            try:
                cluster.stop()
            finally:
                _stop_machines(cluster)
                shutil.rmtree(folder, ignore_errors=True)


def _has_booted(cluster: Cluster, name: str) -> bool:
    assert cluster.running[name].poll() is None, f"{name} ended:\n{cluster.log(name)[-3000:]}"
    return snapshots.are_there(cluster.state(name))


def _is_up(cluster: Cluster, hosts: Sequence[str]) -> bool:
    for name, process in cluster.running.items():
        assert process.poll() is None, f"{name} ended:\n{cluster.log(name)[-3000:]}"
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        known = [cluster.hosts(gateway) for gateway in GATEWAYS]
        return all(name in each and each[name]["health"] == "alive" for each in known for name in hosts)
    return False


def _stop_machines(cluster: Cluster) -> None:
    for name in HOSTS:
        if cluster.state(name).exists():
            cluster.stop_machines(name)

"""A small cluster of real processes on loopback: poolds (local engine), gateways before them, one registry."""

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from contract.keys import Key, Scope, key_id, new_secret
from tests import snapshots
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
EVERYTHING = (Scope.SANDBOXES, Scope.TASKS, Scope.ADMIN)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Program:
    """One process with its log."""

    name: str
    port: int
    argv: list[str]
    environment: dict[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, cwd=ROOT, env=self.environment, stdout=log, stderr=log)

    def wait_until(self, path: str, is_so: Callable[[Reply], bool]) -> None:
        wait_for(lambda: is_so(ask(self.port, "GET", path)), f"{self.name}: {path}", self.told)

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal and wait for its end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@dataclass
class Cluster:
    folder: Path
    hosts: dict[str, Program] = field(default_factory=dict)
    gateways: list[Program] = field(default_factory=list)

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    def key(self, owner: str, **fields: Any) -> str:
        """A new key's secret, which every gateway knows."""
        secret = new_secret(secrets.token_bytes)
        key = replace(Key(key_id(secret), owner, rate=10_000), **fields)
        self.write_key(key)
        for gateway in self.gateways:
            wait_for(lambda port=gateway.port: is_known(port, secret), "the key", gateway.told)
        return secret

    def write_key(self, key: Key) -> None:
        folder = self.registry / "keys"
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{key.id}.{secrets.token_hex(4)}"
        beside.write_bytes(key.encode())
        beside.rename(folder / f"{key.id}.json")

    def add_host(self, name: str, **variables: str | None) -> Program:
        """None: the variable is not set."""
        folder = self.folder / name
        folder.mkdir()
        port = free_port()
        told = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'guest'}",
            "POOLD_ENGINE": "local",
            "POOLD_LISTEN": f"127.0.0.1:{port}",
            "POOLD_NAME": name,
            "POOLD_STATE_DIR": str(folder / "state"),
            "POOLD_RUN_DIR": str(folder / "run"),
            "POOLD_REGISTRY": str(self.registry),
            "POOLD_PKI": str(self.folder / "pki"),
            "POOLD_POOL": "host=0-2",
            "POOLD_SLOTS": "16",
            "POOLD_MIN_MEMORY_MB": "1",
            "POOLD_MIN_DISK_MB": "1",
            **variables,
        }
        environment = {name: value for name, value in told.items() if value is not None}
        host = Program(name, port, [sys.executable, "-m", "poold"], environment, folder / "log")
        self.hosts[name] = host
        if environment["POOLD_ENGINE"] == "qemu":
            snapshots.borrow(folder / "state")
        host.start()
        return host

    def add_gateway(self, **variables: str) -> Program:
        number, port = len(self.gateways), free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'guest'}",
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "GATEWAY_REGISTRY": str(self.registry),
            "GATEWAY_PKI": str(self.folder / "pki"),
            "GATEWAY_NAME": f"gateway-{number}",
            **variables,
        }
        argv = [sys.executable, "-m", "gateway"]
        gateway = Program(f"gateway-{number}", port, argv, environment, self.folder / f"gateway-{number}.log")
        self.gateways.append(gateway)
        gateway.start()
        return gateway

    def wait_until_alive(self) -> None:
        """Every host serves, and every gateway knows that every host lives."""
        for host in self.hosts.values():
            host.wait_until("/healthz", lambda reply: reply.status == 200)
        for gateway in self.gateways:
            gateway.wait_until("/metrics", lambda reply: alive_in(reply) >= len(self.hosts))

    def stop(self) -> None:
        for program in (*self.gateways, *self.hosts.values()):
            if program.process is not None and program.process.poll() is None:
                program.process.terminate()
        for program in (*self.gateways, *self.hosts.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.kill(signal.SIGTERM)
        for host in self.hosts.values():
            argv = [sys.executable, "-m", "poold", "--stop-all"]
            subprocess.run(argv, cwd=ROOT, env=host.environment, capture_output=True, timeout=LIMIT_S, check=True)


@contextlib.contextmanager
def clustered() -> Iterator[Cluster]:
    """A cluster without hosts and gateways. After the block nothing of those that were added is left."""
    folder = Path(tempfile.mkdtemp(prefix="warren-gw-"))
    cluster = Cluster(folder)
    (cluster.registry / "keys").mkdir(parents=True)
    try:
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_cluster(hosts: int, gateways: int, **variables: str) -> Iterator[Cluster]:
    """Real poolds and gateways during the block, on loopback without TLS."""
    with clustered() as cluster:
        write_pki(cluster.folder / "pki")
        for number in range(hosts):
            cluster.add_host(f"host-{number}", **variables)
        for _ in range(gateways):
            cluster.add_gateway()
        cluster.wait_until_alive()
        yield cluster


def write_pki(folder: Path) -> None:
    """Only what tickets need: on loopback there is no TLS."""
    folder.mkdir()
    key = Ed25519PrivateKey.generate()
    (folder / "tickets.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "tickets.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def ask(  # noqa: PLR0917
    port: int,
    method: str,
    path: str,
    body: object = None,
    key: str | None = None,
    address: str = "127.0.0.1",
    **headers: str,
) -> Reply:
    """Ask a gateway from one of this machine's addresses."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S, source_address=(address, 0))
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        told["Authorization"] = f"Bearer {key}"
    with contextlib.closing(connection):
        connection.request(method, path, data, told)
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


def is_known(port: int, secret: str) -> bool:
    """Asked from another address than tests have: one with many wrong keys is throttled."""
    return ask(port, "GET", "/v1/usage", key=secret, address="127.0.0.99").status in (200, 403)


def alive_in(metrics: Reply) -> int:
    found = re.search(rb'gateway_hosts\{kind="alive"\} (\d+)', metrics.body)
    return int(found[1]) if found else 0


def wait_for(is_so: Callable[[], bool], what: str, told: Callable[[], str] = lambda: "") -> None:
    give_up = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if is_so():
                return
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come about within {LIMIT_S} s\n{told()}")
        time.sleep(0.05)


class OperatorsConnection(http.client.HTTPConnection):
    """A connection to poold's unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(self._path))


def operate(host: Program, method: str, path: str, body: object = None) -> Any:
    """Ask a host as its operator."""
    with contextlib.closing(OperatorsConnection(Path(host.environment["POOLD_RUN_DIR"]) / "poold.sock")) as connection:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        reply = connection.getresponse()
        data = reply.read()
        assert reply.status < 300, data
        return json.loads(data) if reply.headers["content-type"] == "application/json" else data

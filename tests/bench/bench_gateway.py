"""What the gateway costs, beside nginx as the same reverse proxy in front of the same host. Prints `name=value` lines.

python -m tests.bench.bench_gateway

One worker each, on loopback, plain HTTP; the gateway with keys, rates and tickets on. Rounds are interleaved and the
ratios are medians over them, so that whatever else the machine does weighs on both. Neither writes an access log.
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contract.keys import MAX_RATE, Key, key_id, new_secret
from tests.bench import gateway_load
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
SANDBOX = "/v1/sandboxes/sb-abcdefghijklmn23"
ROUNDS = 12
SECONDS = 1
CONNECTIONS = 32
STREAMS = 1000
SOCKETS = 500
IDLE = 1000
READY_S = 20.0

NGINX = """daemon off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map $http_upgrade $passed {{ default upgrade; "" ""; }}
  upstream host {{ server 127.0.0.1:{host}; keepalive 128; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024; client_max_body_size 0;
    location / {{
      proxy_pass http://host; proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off;
      proxy_set_header Connection $passed; proxy_set_header Upgrade $http_upgrade;
      proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Request-Id $request_id;
      proxy_set_header Authorization "";
    }}
  }}
}}
"""


@contextlib.contextmanager
def running(argv: list[str], port: int, log: Path, **environ: str) -> Iterator[int]:
    """A program during the block, once its port is open. Its pid."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    with log.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=output, env=environment) as program:
        try:
            until = time.monotonic() + READY_S
            while not is_open(port):
                if program.poll() is not None or time.monotonic() > until:
                    sys.exit(f"{argv[0]} does not serve:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield program.pid
        finally:
            program.terminate()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def host_argv(port: int) -> list[str]:
    granian = [sys.executable, "-m", "granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", str(port)]
    options = ["--workers", "1", "--loop", "uvloop", "--backpressure", "20000", "--no-access-log"]
    return [*granian, *options, "--log-level", "error", "tests.bench.gateway_host:app"]


def gateway_environment(folder: Path, host: int, port: int, secret: str) -> dict[str, str]:
    """The folders that a gateway needs, with one key in them whose rate is no limit."""
    for name in ("registry/keys", "registry/hosts", "pki"):
        (folder / name).mkdir(parents=True)
    key = Key(key_id(secret), "bench", rate=MAX_RATE)
    (folder / "registry/keys" / f"{key.id}.json").write_bytes(key.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "pki/tickets.key").write_bytes(Ed25519PrivateKey.generate().private_bytes(*form))
    return {
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "GATEWAY_REGISTRY": str(folder / "registry"),
        "GATEWAY_PKI": str(folder / "pki"),
        "GATEWAY_HOSTS": f"bench=http://127.0.0.1:{host}",
        "GATEWAY_ACCESS_LOG": "off",  # as nginx's
    }


class Wrk:
    """One run of wrk and what it said."""

    def __init__(self, port: int, path: str, secret: str, *, connections: int, seconds: int = SECONDS) -> None:
        url = f"http://127.0.0.1:{port}{SANDBOX}{path}"
        options = ["-t1", f"-c{connections}", f"-d{seconds}", "--latency", "-H", f"Authorization: Bearer {secret}"]
        self._said = subprocess.run(["wrk", *options, url], capture_output=True, text=True, check=True).stdout
        if "Non-2xx" in self._said or "Socket errors" in self._said:
            sys.exit(f"not every request to port {port} was answered:\n{self._said}")

    @property
    def per_s(self) -> float:
        return float(self._found(r"Requests/sec:\s+([\d.]+)")[1])

    @property
    def mb_per_s(self) -> float:
        found = self._found(r"Transfer/sec:\s+([\d.]+)(KB|MB|GB)")
        return float(found[1]) * {"KB": 1 / 1024, "MB": 1, "GB": 1024}[found[2]]

    def ms(self, share: int) -> float:
        found = self._found(rf"\s{share}%\s+([\d.]+)(us|ms|s)")
        return float(found[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[found[2]]

    def _found(self, pattern: str) -> re.Match[str]:
        found = re.search(pattern, self._said)
        if found is None:
            sys.exit(f"wrk did not say what was asked:\n{self._said}")
        return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def say(name: str, value: float, digits: int = 2) -> None:
    print(f"{name}={value:.{digits}f}", flush=True)


def rates(ports: dict[str, int], secret: str) -> None:
    rounds = [
        {name: Wrk(port, "", secret, connections=CONNECTIONS) for name, port in ports.items()} for _ in range(ROUNDS)
    ]
    for name in ports:
        say(f"{name}_rps", statistics.median(each[name].per_s for each in rounds), 0)
    say("gateway_vs_nginx_rps", statistics.median(each["gateway"].per_s / each["nginx"].per_s for each in rounds))


def bodies(ports: dict[str, int], secret: str) -> None:
    both = {name: port for name, port in ports.items() if name != "host"}
    rounds = [{name: Wrk(port, "/files", secret, connections=2) for name, port in both.items()} for _ in range(ROUNDS)]
    for name in both:
        say(f"{name}_mbps", statistics.median(each[name].mb_per_s for each in rounds), 0)
    ratio = statistics.median(each["gateway"].mb_per_s / each["nginx"].mb_per_s for each in rounds)
    say("gateway_vs_nginx_mbps", ratio)


def added(ports: dict[str, int], secret: str) -> None:
    """What one request at a time waits longer than without anybody between."""
    rounds = [{name: Wrk(port, "", secret, connections=1) for name, port in ports.items()} for _ in range(ROUNDS)]
    for name in ("gateway", "nginx"):
        for share in (50, 99):
            say(
                f"{name}_added_ms_p{share}",
                statistics.median(each[name].ms(share) - each["host"].ms(share) for each in rounds),
            )


async def streams(ports: dict[str, int], request: bytes) -> None:
    for name in ("host", "nginx", "gateway"):
        asked = request % b"/events"
        delays = await gateway_load.subscribe(ports[name], asked, STREAMS, 5.0)
        prefix = "sse" if name == "gateway" else f"sse_{name}"
        say(f"{prefix}_events_per_s", len(delays) / 5.0, 0)
        for share in (50, 99):
            say(f"{prefix}_delay_ms_p{share}", percentile(delays, share / 100))
        await asyncio.sleep(1)


async def sockets(ports: dict[str, int], secret: str) -> None:
    headers = {"Authorization": f"Bearer {secret}"}
    for name in ("host", "nginx", "gateway"):
        took = await gateway_load.echo(ports[name], f"{SANDBOX}/terminal", headers, SOCKETS, 6)
        prefix = "ws_echo" if name == "gateway" else f"ws_{name}_echo"
        for share in (50, 99):
            say(f"{prefix}_ms_p{share}", percentile(took, share / 100))


def resident_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


async def idle(port: int, pid: int, request: bytes) -> None:
    before = resident_kb(pid)
    writers = await gateway_load.idle(port, request % b"", IDLE)
    say("idle_connection_kb", (resident_kb(pid) - before) / IDLE)
    for writer in writers:
        writer.close()


def measure(folder: Path) -> None:
    secret = new_secret(secrets.token_bytes)
    ports = {"host": free_port(), "nginx": free_port(), "gateway": free_port()}
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, host=ports["host"], port=ports["nginx"]))
    environment = gateway_environment(folder, ports["host"], ports["gateway"], secret)
    host, gateway = host_argv(ports["host"]), [sys.executable, "-m", "gateway"]
    nginx = ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    asked = b"GET %s%%b HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n\r\n" % (
        SANDBOX.encode(),
        secret.encode(),
    )
    with (
        running(host, ports["host"], folder / "host.log"),
        running(nginx, ports["nginx"], folder / "nginx.log"),
        running(gateway, ports["gateway"], folder / "gateway.log", **environment) as pid,
    ):
        uvloop.run(idle(ports["gateway"], pid, asked))
        rates(ports, secret)
        bodies(ports, secret)
        added(ports, secret)
        uvloop.run(streams(ports, asked))
        uvloop.run(sockets(ports, secret))
        say("gateway_resident_mb", resident_kb(pid) / 1024, 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


if __name__ == "__main__":
    main()

"""What a machine's own proxy costs, beside a cable and beside squid as the same proxy. Prints `name=value` lines.

python -m tests.bench.bench_egress

A client, a host and an internet, each a namespace: the client reaches the internet's server by a cable of its own, by a
proxy at its slot, and by squid on the host, both asked with CONNECT. Rounds are interleaved and the ratios are medians
over them, so that whatever else the machine does weighs on all. No machine is emulated, which would be slower than all
three. Names are found in /etc/hosts by both proxies. Neither writes an access log, but ours tells of each connection.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.egress.spaces import Space, open_space

ROUNDS = 5
MB = 400
SECONDS = 2
CLIENTS = 8
IDLE = 100
READY_S = 20.0
SERVER = "93.184.215.10"
WAYS = {
    "direct": ("-", SERVER),
    "egress": ("172.16.0.1:3128", "web.example.com"),
    "squid": ("10.99.0.1:3128", "web.example.com"),
}
SQUID = """http_port 10.99.0.1:3128
http_access allow all
cache deny all
access_log none
cache_log {folder}/cache.log
pid_filename none
coredump_dir {folder}
hosts_file /etc/hosts
pinger_enable off
netdb_filename none
shutdown_lifetime 0 seconds
visible_hostname bench
max_filedescriptors 8192
"""


def wire(host: Space, internet: Space, client: Space) -> None:
    """The host and the client have a cable to the internet each; another one is between them, for squid."""
    for one, other, cable, ours, theirs in (
        (host, internet, "up", "93.184.216.2", "93.184.216.1"),
        (client, internet, "direct", "93.184.217.2", "93.184.217.1"),
        (client, host, "squid", "10.99.0.2", "10.99.0.1"),
    ):
        one.run("ip", "link", "add", f"{cable}0", "type", "veth", "peer", "name", f"{cable}1", "netns", str(other.pid))
        for space, link, address in ((one, f"{cable}0", ours), (other, f"{cable}1", theirs)):
            space.run("ip", "address", "add", f"{address}/24", "dev", link)
            space.run("ip", "link", "set", link, "up")
    internet.run("ip", "address", "add", f"{SERVER}/32", "dev", "lo")
    host.run("ip", "route", "add", "default", "via", "93.184.216.1")
    client.run("ip", "route", "add", "default", "via", "93.184.217.1")
    for space in (host, internet, client):
        space.run("sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1", "net.ipv4.ip_local_port_range=1024 65535")


@contextlib.contextmanager
def running(argv: list[str], log: Path, ready: str = "") -> Iterator[None]:
    """A program during the block; if it says when it is ready, from then on. It ends with its input, or is ended."""
    with (
        log.open("wb") as output,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as program,
    ):
        try:
            assert program.stdin is not None
            assert program.stdout is not None
            if ready and program.stdout.readline().decode().strip() != ready:
                sys.exit(f"{argv} is not ready:\n{log.read_text()[-2000:]}")
            yield
        finally:
            program.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(10 if ready else 0.1)
            program.terminate()


@contextlib.contextmanager
def open_squid(host: Space, folder: Path) -> Iterator[None]:
    if shutil.which("squid") is None:
        sys.exit("squid is not installed: make bench-packages")
    shutil.chown(folder, "proxy")
    (folder / "squid.conf").write_text(SQUID.format(folder=folder))
    with running(host.inside(["squid", "-N", "-f", str(folder / "squid.conf")]), folder / "squid.log"):
        yield


def load(client: Space, *words: str) -> list[float]:
    argv = client.inside([sys.executable, "-m", "tests.bench.egress_load", *words])
    return [float(word) for word in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()]


def until_answered(client: Space) -> None:
    give_up = time.monotonic() + READY_S
    for proxy, name in WAYS.values():
        while True:
            try:
                load(client, "connect", proxy, name, "0.05", "1")
                break
            except subprocess.CalledProcessError as error:
                if time.monotonic() > give_up:
                    sys.exit(f"no way by {proxy}: {error.stderr}")
                time.sleep(0.2)


def measure(client: Space) -> None:
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, (proxy, name) in WAYS.items():
            speeds[way] += load(client, "download", proxy, name.replace("web", "big"), str(MB))
            rates[way].append(load(client, "connect", proxy, name, str(SECONDS), str(CLIENTS))[0])
            times[way].append(load(client, "connect", proxy, name, "1", "1")[1])
    for way in WAYS:
        say(f"{way}_mbps", statistics.median(speeds[way]), 0)
        say(f"{way}_connects_per_s", statistics.median(rates[way]), 0)
        say(f"{way}_connect_ms_p50", statistics.median(times[way]), 3)
    say("egress_vs_direct_mbps", ratio(speeds, "egress", "direct"))
    say("egress_vs_squid_mbps", ratio(speeds, "egress", "squid"))
    say("egress_vs_squid_rps", ratio(rates, "egress", "squid"))
    say("egress_added_ms_p50", added(times, "egress"), 3)
    say("squid_added_ms_p50", added(times, "squid"), 3)


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))


def added(times: dict[str, list[float]], way: str) -> float:
    return statistics.median(a - b for a, b in zip(times[way], times["direct"], strict=True))


def measure_idle(host: Space, log: Path) -> None:
    argv = host.inside([sys.executable, "-m", "tests.bench.egress_slots", "idle", str(IDLE)])
    with log.open("wb") as output:
        said = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output).stdout
    each_mb, percent, processes = said.split()
    say("egress_idle_proxies", int(processes) - 1, 0)
    say("egress_mb_per_vm", float(each_mb))
    say("egress_idle_cpu_percent", float(percent), 3)


def say(name: str, value: float, digits: int = 2) -> None:
    print(f"{name}={value:.{digits}f}", flush=True)


def main() -> None:
    os.chdir(Path(__file__).resolve().parents[2])
    with contextlib.ExitStack() as stack:
        host, internet, client = (stack.enter_context(open_space(name)) for name in ("host", "internet", "client"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-bench-")))
        wire(host, internet, client)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{SERVER} web.example.com big.example.com\n")
        host.run("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
        serve = internet.inside([sys.executable, "-m", "tests.bench.egress_load", "serve"])
        stack.enter_context(running(serve, folder / "server.log"))
        slot = host.inside([sys.executable, "-m", "tests.bench.egress_slots", "cable", str(client.pid)])
        with running(slot, folder / "slot.log", ready="ready"), open_squid(host, folder):
            until_answered(client)
            measure(client)
        measure_idle(host, folder / "idle.log")


if __name__ == "__main__":
    main()

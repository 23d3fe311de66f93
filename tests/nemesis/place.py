"""Where the nemesis works: five hosts, three gateways and an S3 server, each on a machine of its own.

Hosts run machines of the local engine and have a disk of their own, which can be filled, and a wall clock of their own,
which can be set. The S3 server is reached through a proxy (`tests/s3faults.py`) that alone is on the store's machine.
What ends is started again after a moment, as a supervisor does it, unless it is held down.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poold.devstore import BUCKET, S3Server
from tests import snapshots
from tests.bench.host import ROOT
from tests.cluster.cluster import GATEWAYS, HOST_PORT, HOSTS, ME, OWNER, START_LIMIT_S, Cluster, until
from tests.cluster.net import open_net
from tests.nemesis.effects import Effects, open_effects
from tests.nemesis.leases import Leases
from tests.s3faults import S3Faults, open_faults
from tests.s3server import raw_client, running_s3

STORE = "s3"  # the machine of the store
WORLD = "world"  # the machine of whatever tasks have effects on
STORE_PORT, WORLD_PORT = 8333, 8080
LEASE_S = 5  # the least with which hosts get on beside other tests on two cores
DISK_MB = 192
AGAIN_S = 1.0  # until what ended is started again
CLOCK = Path(__file__).parent / "clock"
PREFIX = "nemesis"
FOLDERS = (
    Path(tempfile.gettempdir(), "warren-nemesis-"),
    Path("/run/warren-net-"),
)  # the number of who made it follows


@dataclass
class Place(Cluster):
    """A cluster with a store. Safe to use from many threads."""

    hosts_here: Sequence[str] = HOSTS
    engine: str = "local"
    variables: dict[str, str] = field(default_factory=dict)  # of every host
    store: "Store | None" = None
    effects: Effects | None = None
    ended: list[str] = field(default_factory=list)  # what the supervisor found dead and nobody had killed
    _down: set[str] = field(default_factory=set)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @property
    def once_url(self) -> str:
        return f"http://{self.net.addresses[WORLD]}:{WORLD_PORT}"

    def start_host(self, name: str) -> None:
        pki = self.folder / name / "pki"
        if not pki.exists():
            address = self.net.addresses[name]
            self.ctl("pki", "issue", str(self.folder / "ca"), "host", name, "--address", address, "--out", str(pki))
        if self.engine == "qemu":
            snapshots.borrow(self.state(name), *(self.state(other) for other in self.hosts_here if other != name))
        self._start(name, "poold", **self._of_host(name))

    def _of_host(self, name: str) -> dict[str, str]:
        told = {
            **super()._of_host(name),
            "POOLD_ENGINE": self.engine,
            "POOLD_STORE": f"s3://{BUCKET}/{PREFIX}",
            "POOLD_LEASE_SEC": str(LEASE_S),
            "POOLD_SLOTS": "6",
            **self.variables,
        }
        if self.engine == "local":
            told |= {"POOLD_LISTEN": f"127.0.0.1:{HOST_PORT}"}
            told |= {"POOLD_ADVERTISE": f"https://{self.net.addresses[name]}:{HOST_PORT}"}
            told |= {"POOLD_POOL": "host=0-1", "POOLD_DEFAULT_IMAGE": "host"}
            told |= {"POOLD_MIN_MEMORY_MB": "1", "POOLD_MIN_DISK_MB": "1"}
            told |= self._clock_of(name)
        return told

    # Clocks.

    def _clock_of(self, name: str) -> dict[str, str]:
        """Its wall clock only: a lease's time is that of CLOCK_BOOTTIME, which nobody can set."""
        if not self._clock(name).exists():
            self.set_clock(name, 0)
        return {"PYTHONPATH": str(CLOCK), "WARREN_NEMESIS_CLOCK": str(self._clock(name))}

    def set_clock(self, name: str, seconds: int) -> None:
        """The host's wall clock is off by so much from now on."""
        beside = self._clock(name).with_suffix(".new")
        beside.write_text(str(seconds))
        beside.replace(self._clock(name))

    def _clock(self, name: str) -> Path:
        return self.folder / name / "clock"

    # Life and death.

    def start(self, name: str) -> None:
        with self._turn:
            self._down.discard(name)
            if name not in self.running:
                (self.start_gateway if name in GATEWAYS else self.start_host)(name)

    def hold_down(self, name: str) -> None:
        """Nobody starts it again until `start`."""
        with self._turn:
            self._down.add(name)

    def kill_program(self, name: str) -> None:
        """The gateway or the poold, and nothing else."""
        with self._turn:
            if name in self.running:
                self.kill(name)

    def lose(self, name: str) -> None:
        """All of the host is gone at once, as with its power: poold, its warden, Litestream, and every machine."""
        with self._turn:
            for _ in range(3):  # what was just being started is found the next time
                for pid in self.processes(name):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            self.kill_program(name)

    def processes(self, name: str, word: str = "") -> list[int]:
        """Those of a host, with `word` in their arguments."""
        return _told(f"{self.folder / name}/".encode(), f"{self._run_dir(name)}/".encode(), word=word.encode())

    def machines(self, name: str) -> list[int]:
        return self.processes(name, f"{self.state(name)}/{self.engine}/machines/")

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        """During the block, what ended is started again."""
        stop = threading.Event()
        thread = threading.Thread(target=self._supervise, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _supervise(self, stop: threading.Event) -> None:
        while not stop.wait(AGAIN_S):
            with self._turn:
                for name, process in list(self.running.items()):
                    if process.poll() is not None and name not in self._down:
                        self.ended.append(f"{name} ended with {process.returncode}: {self.log(name)[-600:]}")
                        del self.running[name]
                        self.start(name)

    # Cables and disks.

    def part(self, name: str, others: Sequence[str]) -> None:
        """Nothing passes between the host and `others`: packets are dropped, in both directions."""
        addresses = ", ".join(self.net.addresses[other] for other in others)
        rules = f"""table ip nemesis {{
            chain in {{ type filter hook input priority -300; ip saddr {{ {addresses} }} drop; }}
            chain out {{ type filter hook output priority -300; ip daddr {{ {addresses} }} drop; }}
        }}"""
        subprocess.run(self.net.inside(name, ["nft", "-f", "-"]), input=rules.encode(), check=True)

    def join(self, name: str) -> None:
        subprocess.run(self.net.inside(name, ["nft", "delete", "table", "ip", "nemesis"]), check=True)

    def fill_disk(self, name: str) -> None:
        with contextlib.suppress(OSError), (self.state(name) / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def empty_disk(self, name: str) -> None:
        (self.state(name) / "filler").unlink(missing_ok=True)

    def open_port(self, name: str) -> None:
        """An engine that isolates nothing is served on loopback only: on this network it is reached there."""
        subprocess.run(self.net.inside(name, ["sysctl", "-qw", "net.ipv4.conf.eth0.route_localnet=1"]), check=True)
        rules = f"""table ip door {{
            chain in {{
                type nat hook prerouting priority -100; iifname "eth0" tcp dport {HOST_PORT} dnat to 127.0.0.1;
            }}
        }}"""
        subprocess.run(self.net.inside(name, ["nft", "-f", "-"]), input=rules.encode(), check=True)

    def mount(self, name: str) -> None:
        """Machines have a disk of their own: a full one is that of poold, and not what an agent works on."""
        for folder in self._disks(name):
            folder.mkdir(parents=True)
            size = f"size={DISK_MB}m,mode=0700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "warren-nemesis", folder], check=True)

    def unmount(self, name: str) -> None:
        for folder in reversed(self._disks(name)):
            subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)

    def _disks(self, name: str) -> list[Path]:
        return [self.state(name), self.state(name) / "local"]


def _told(*folders: bytes, word: bytes = b"") -> list[int]:
    """Processes that were told of one of these, by their arguments; without a `word` also by their environment."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            told = arguments + (b"" if word else Path(f"/proc/{pid}/environ").read_bytes())
            if pid != os.getpid() and word in arguments and any(folder in told for folder in folders):
                found.append(pid)
    return found


class Store:
    """The proxy before the S3 server, in a thread of its own."""

    def __init__(self, faults: S3Faults, loop: asyncio.AbstractEventLoop, leases: Leases) -> None:
        self._faults, self._loop, self.leases = faults, loop, leases

    def do(self, change: Callable[[S3Faults], None]) -> None:
        """In the proxy's thread, done when this returns."""
        done = threading.Event()

        def work() -> None:
            change(self._faults)
            done.set()

        self._loop.call_soon_threadsafe(work)
        assert done.wait(60), "the proxy before the store hangs"


@contextlib.contextmanager
def _open_store(place: Place, server: S3Server, seed: int) -> Iterator[Store]:
    listener = place.net.listen(STORE, STORE_PORT)
    leases = Leases()
    found: list[Store] = []
    is_open, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with open_faults(server.ports[0], seed=seed, listener=listener) as faults:
            faults.on_put = leases.put
            found.append(Store(faults, asyncio.get_running_loop(), leases))
            is_open.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_open.wait(60)
    try:
        yield found[0]
    finally:
        found[0]._loop.call_soon_threadsafe(stop.set)
        thread.join()


@contextlib.contextmanager
def open_place(hosts: Sequence[str], *, seed: int, engine: str = "local") -> Iterator[Place]:
    """Everything that runs, once it is up. After the block nothing of it is left, also if somebody ends us."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS[0].name}{os.getpid()}-"))
    with (
        ended_in_order() as undisturbed,
        running_s3() as server,
        open_net([*HOSTS, *GATEWAYS, ME, STORE, WORLD]) as net,
        contextlib.ExitStack() as stack,
    ):
        place = Place(net, folder, hosts_here=hosts, engine=engine)
        place.effects = stack.enter_context(open_effects(net.listen(WORLD, WORLD_PORT), raw_client(server), BUCKET))
        place.store = stack.enter_context(_open_store(place, server, seed))
        url = f"http://{net.addresses[STORE]}:{STORE_PORT}"
        place.variables |= {**server.client(), "AWS_ENDPOINT_URL": url}
        try:
            with place.supervised():
                _begin(place)
                yield place
        finally:
            undisturbed()
            _end(place)
            shutil.rmtree(folder, ignore_errors=True)


def _begin(place: Place) -> None:
    (place.folder / "registry").mkdir()
    place.ctl("pki", "init", str(place.folder / "ca"))
    made = place.ctl("keys", "create", "--registry", str(place.folder / "registry"), "--owner", OWNER,
                     "--scope", "sandboxes", "--scope", "tasks", "--scope", "admin", "--vcpus", "1000",
                     "--memory-mb", "1000000", "--rate", "10000", "--json")  # fmt: skip
    place.key = json.loads(made)["secret"]
    for name in place.hosts_here:
        (place.folder / name).mkdir()
        if place.engine == "local":
            place.mount(name)
            place.open_port(name)
    for name in (*GATEWAYS, *place.hosts_here):
        place.start(name)
        if name in place.hosts_here:  # one after the other: all at once have too little of a busy computer
            _wait_for(place, lambda: '"what":"serving"' in place.log(name))  # noqa: B023 — it is called here
        if place.engine == "qemu" and name == place.hosts_here[0]:  # the others use what it has booted
            _wait_for(place, lambda: snapshots.are_there(place.state(place.hosts_here[0])))
    _wait_for(place, lambda: are_alive(place))


def _wait_for(place: Place, is_so: Callable[[], bool]) -> None:
    try:
        until(is_so, limit_s=START_LIMIT_S)
    except AssertionError as error:
        raise AssertionError("\n".join(["not all hosts came up", *place.ended])) from error


def are_alive(place: Place) -> bool:
    """Every gateway knows that every host lives."""
    with contextlib.suppress(OSError, AssertionError, ValueError):
        known = [place.hosts(gateway) for gateway in GATEWAYS]
        return all(each.get(name, {}).get("health") == "alive" for each in known for name in place.hosts_here)
    return False


def _end(place: Place) -> None:
    """What a host of the local engine has is found by its folder; a real machine is ended by who made it."""
    try:
        with contextlib.suppress(AssertionError):
            place.stop()
    finally:
        for name in filter(lambda name: place.state(name).exists(), place.hosts_here):
            if place.engine == "qemu":
                argv = place.net.inside(name, [sys.executable, "-m", "poold", "--stop-all"])
                environment = {**os.environ, **place._of_host(name)}
                subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=120)
            place.lose(name)
            place.unmount(name)


@contextlib.contextmanager
def ended_in_order() -> Iterator[Callable[[], None]]:
    """During the block SIGTERM is as good as Ctrl-C. Once what is given was called, neither disturbs who clears up."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def undisturbed() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield undisturbed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sweep() -> None:
    """End what a round has left that was killed before it could clear up: folders have its number in their names."""
    for pattern in FOLDERS:
        for folder in pattern.parent.glob(f"{pattern.name}*-*"):
            pid = folder.name.removeprefix(pattern.name).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                _remove(folder)


def _remove(folder: Path) -> None:
    """With whoever knows of it, and whatever is mounted there."""
    for pid in _told(f"{folder}/".encode()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)

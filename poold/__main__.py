"""The front door: environment, clock, randomness and signals are read here and handed on."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import uvloop

from contract.__about__ import __version__
from poold import daemon
from poold.cluster import StoppedBefore
from poold.config import Config
from poold.errors import ConfigError, Fenced, HostFault
from poold.logs import open_log
from poold.sandboxes import Sources
from poold.store.errors import Corrupt, Full, Refused, Unreachable, WrongStore

USAGE = """usage: poold [--stop-all | --version]

The daemon of one Warren host. When it is stopped, sandboxes run on, and the next poold takes them over;
`poold --stop-all` ends them all instead, when no poold runs. It is told by environment variables what to do:

  POOLD_LISTEN       address and port                      127.0.0.1:7070
                     another than loopback needs POOLD_PKI
  POOLD_PKI          folder made by pooldctl pki issue:    none: only /healthz is
                     certificates, keys for tickets        answered on the port
  POOLD_NAME         of this host among the others         the machine's name
  POOLD_REGISTRY     where this host's record is written:  registry in POOLD_STORE
                     a folder, or s3://BUCKET/PREFIX
  POOLD_LEASE_SEC    this host goes on so long without     10
                     the store that it shares with others
  POOLD_IMDS         off, auto or http://ADDRESS: where    off
                     a spot instance learns of its end
  POOLD_ADVERTISE    address for gateways                  made from POOLD_LISTEN
  POOLD_ENGINE       qemu, or local (isolates nothing)     qemu
  POOLD_STATE_DIR    ledger, snapshots, drives             /var/lib/warren
  POOLD_RUN_DIR      network namespaces, pooldctl's socket /run/warren
  POOLD_IMAGES       where images were built               $POOLD_STATE_DIR/images
  POOLD_POOL         warm machines: image=floor-ceiling    python=2-8
  POOLD_SLOTS        machines on this host at most         64
  POOLD_MEMORY_MB    memory for machines                   80 % of the host's
  POOLD_MIN_MEMORY_MB, POOLD_MIN_DISK_MB                   512, 2048
                     free on the host, or nothing new is started
  POOLD_EGRESS_MOST  deny, registries or open: for any sandbox  open
  POOLD_REGISTRIES, POOLD_EGRESS_PRIVATE, POOLD_GUEST_CA   none
                     more registries, private addresses, a certificate
  POOLD_STORE        what hosts share: a folder, or s3://BUCKET/PREFIX   none
  POOLD_DURABILITY   replicated, or local: what is         replicated with S3
                     acknowledged is in the store, or here
  POOLD_KEEP_SANDBOXES_DAYS, POOLD_KEEP_AUDIT_DAYS         30, 365
"""

STORE_ERRORS = (Corrupt, Full, Refused, Unreachable, WrongStore)
log = logging.getLogger("poold")

SOURCES = Sources(now_ms=lambda: time.time_ns() // 1_000_000, unix_ns=time.time_ns, entropy=os.urandom)


def main() -> None:
    """Run until SIGTERM or SIGINT. Exits 2 when the environment asks for what cannot be."""
    if sys.argv[1:] == ["--version"]:
        print(f"poold {__version__}")  # noqa: T201 — this is its output
        return
    stops_all = sys.argv[1:] == ["--stop-all"]
    if sys.argv[1:] and not stops_all:
        print(USAGE)  # noqa: T201 — this is its output
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    open_log()
    _reap()
    try:
        config = Config.from_environment(
            os.environ, host_memory_mb=_memory_mb(), host_cpus=os.cpu_count() or 1, hostname=socket.gethostname()
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(daemon.stop_all(config, SOURCES) if stops_all else _serve(config))
    except (ConfigError, HostFault, *STORE_ERRORS) as error:
        sys.exit(f"poold: {error}")
    except BaseExceptionGroup as errors:
        if errors.subgroup(Fenced) is None:
            raise
        _start_anew()


def _start_anew() -> NoReturn:
    """As whoever starts us would: the same process with nothing of what it knew, under the same supervision."""
    log.warning("starting anew, as a host that was away")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 — this is what we are


def _reap() -> None:
    """What we had started before we started anew was killed, and nobody else waits for it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _must_be_free(config)
    try:
        await daemon.run(config, SOURCES, stop=stop, ready=lambda: None, start_anew=_start_anew)
    except* StoppedBefore:
        pass


def _must_be_free(config: Config) -> None:
    """Before anything is started: the server shares its port with whoever else wants to."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        socket.create_server((config.host, config.port), family=family).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        told = f"POOLD_LISTEN={config.host}:{config.port} cannot be listened on: {why}"
        raise ConfigError(f"{told}; set it to another address or port") from error


def _memory_mb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    raise ConfigError("/proc/meminfo has no MemTotal")


if __name__ == "__main__":
    main()

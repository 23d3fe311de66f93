"""The front door: environment, clock, randomness and signals are read here and handed on."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import uvloop

from contract.__about__ import __version__
from gateway.config import Config
from gateway.errors import ConfigError
from gateway.logs import open_log
from gateway.serving import Sources, must_be_free, run

USAGE = """usage: gateway [--version]

One address for many Warren hosts. It keeps nothing that it cannot find again: start as many as you like.
It is told by environment variables what to do:

  GATEWAY_LISTEN     address and port; not on loopback only with TLS   127.0.0.1:8080
  GATEWAY_TLS_CERT, GATEWAY_TLS_KEY
                     certificate and key (PKCS#8) for clients, in PEM
  GATEWAY_REGISTRY   records of keys and hosts: a folder, or s3://BUCKET/PREFIX
  GATEWAY_REGISTRY_ADDRESSING, GATEWAY_REGISTRY_TIMEOUT_SEC
                     in S3: auto, path or virtual; of one request      auto, 5
  GATEWAY_HOSTS      hosts in place of the registry's: NAME=https://ADDRESS:PORT,…
  GATEWAY_PKI        folder that `pooldctl pki issue … gateway` made
  GATEWAY_DOMAIN     previews are at PORT-ID.DOMAIN                    (only /p/ID/PORT/)
  GATEWAY_PREVIEW_RATE
                     requests a second for previews without a key,
                     from one address; 0: no limit                     200
  GATEWAY_NAME       its name in the audit                             the machine's
  GATEWAY_WORKERS    processes that share the port                     1
  GATEWAY_ACCESS_LOG a line for each request: on or off                on
  GATEWAY_JOBS_AGENT the agent of jobs that name none                  claude
"""

SOURCES = Sources(now_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
STOPPING = (signal.SIGTERM, signal.SIGINT)
WORKER = "--worker"  # one of several: its parent has the signals


def main() -> None:
    """Run until SIGTERM or SIGINT. Exits 2 when the environment asks for what cannot be."""
    if sys.argv[1:] == ["--version"]:
        print(f"gateway {__version__}")  # noqa: T201 — this is its output
        return
    if sys.argv[1:] not in ([], [WORKER]):
        print(USAGE)  # noqa: T201 — this is its output
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    open_log()
    try:
        config = Config.from_environment(os.environ, hostname=socket.gethostname())
        if config.workers > 1 and sys.argv[1:] != [WORKER]:
            must_be_free(config)
            sys.exit(_run_workers(config.workers))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except ConfigError as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 — before there is anything else to tell
        sys.exit(2)


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop.set)
    await run(config, SOURCES, stop=stop)


def _run_workers(count: int) -> int:
    """So many processes on one port. When one ends all do: whoever started us starts us anew."""
    told: list[int] = []
    for number in STOPPING:
        signal.signal(number, lambda number, _: told.append(number))
    argv = [sys.executable, "-m", "gateway", WORKER]
    workers = [subprocess.Popen(argv, start_new_session=True) for _ in range(count)]
    while not told and all(worker.poll() is None for worker in workers):
        time.sleep(0.1)
    for worker in workers:
        worker.terminate()
    # One that has only just begun does not listen to the signal yet: it ends by it, as it was told to.
    return 0 if {worker.wait() for worker in workers} <= {0, -signal.SIGTERM} else 1


if __name__ == "__main__":
    main()

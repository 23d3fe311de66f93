"""The stage of all tests of tasks: a host with real microVMs and a gateway before it, in a world that is closed.

internet   models, git, webhooks: servers of the tests, by name, with certificates
  │        (the only way out, through each machine's own proxy and its policy)
host       poold, its machines, a gateway; nothing of it is connected to the machine that the tests run on
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.keys import Key, key_id, new_secret
from tests.bench.host import ROOT, Host, open_host
from tests.egress.internet import Internet, open_internet
from tests.egress.spaces import Space
from tests.egress.world import open_world
from tests.gateway.cluster import write_pki
from tests.tasks.client import Caller
from tests.tasks.places import Places
from tests.vm.client import until

POOLD_PORT, GATEWAY_PORT = 7070, 8080
SLOTS = 24
# Nobody else's: the tests of other rooms may run on this host at the same time, and another run of these.
BASE_UID = 330_000 + os.getpid() % 40 * 200
OWNER, OTHER = "alice", "mallory"
AUTHOR = "Warren Agent <agent@example.com>"
PROTECTED = "main,release/*"
# Of one task's workspace. The long forms of tests have larger ones.
REAL_MB = int(os.environ.get("WARREN_TASKS_REAL_MB", "0"))
ARCHIVE_MB = 64 + REAL_MB
START_LIMIT_S = 240.0
STOP_LIMIT_S = 60.0
# What the operator says that a model costs whose agent does not tell: dollars for a million tokens.
PRICES = {"gpt-5.5": {"input": 2.0, "output": 10.0, "cache_read": 0.5, "cache_write": 2.0}}


@dataclass
class Stage:
    space: Space  # where poold and the gateway are
    internet: Internet
    places: Places
    host: Host
    folder: Path
    gateway: "subprocess.Popen[bytes]"
    keys: dict[str, str]  # of each owner

    def caller(self, owner: str = OWNER) -> Caller:
        return Caller(self.host, GATEWAY_PORT, self.keys[owner], self.space)

    def kill_poold(self) -> None:
        self.host.kill()

    def start_poold(self) -> None:
        """Poold, again, and the gateway knows of it."""
        self.host.start()
        self.host.wait_until_serving()
        caller = self.caller()
        until(lambda: caller.call("GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa").status == 404)

    def secret(self, name: str, value: str, owner: str = "all") -> None:
        """What the operator keeps for tasks, by name."""
        file = self.folder / "secrets" / owner / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(value)

    def logs(self) -> str:
        return self.host.log() + (self.folder / "gateway.log").read_text(errors="replace")


@contextlib.contextmanager
def open_stage(*, pool: str, image: str, **variables: str) -> Iterator[Stage]:
    """The stage during the block. After it nothing is left."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-tasks-")))
        world = stack.enter_context(open_world())
        (folder / "internet").mkdir()
        internet = stack.enter_context(open_internet(world.internet, folder / "internet"))
        settings: dict[str, Any] = {**furnished(folder, internet), "POOLD_DEFAULT_IMAGE": image, **variables}
        host = stack.enter_context(open_host(pool=pool, prefix=world.host.inside([]), **settings))
        keys = {owner: write_key(folder / "registry", owner) for owner in (OWNER, OTHER)}
        gateway = stack.enter_context(open_gateway(folder, world.host.inside([])))
        stage = Stage(world.host, internet, Places(world.internet, internet), host, folder, gateway, keys)
        host.wait_until_warm()
        until(lambda: is_answering(stage.caller()), limit_s=START_LIMIT_S)
        yield stage


def furnished(folder: Path, internet: Internet) -> dict[str, str]:
    """The folders of a host and its gateway, and what poold is told of them."""
    write_pki(folder / "pki")
    for name in ("registry/keys", "registry/hosts", "secrets"):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / "prices.json").write_text(json.dumps(PRICES))
    return {
        "POOLD_LISTEN": f"127.0.0.1:{POOLD_PORT}",
        "POOLD_SLOTS": str(SLOTS),
        "POOLD_BASE_UID": str(BASE_UID),
        "POOLD_GUEST_CA": str(internet.certificates.ca),
        "POOLD_PKI": str(folder / "pki"),
        "POOLD_REGISTRY": str(folder / "registry"),
        "POOLD_SECRETS": str(folder / "secrets"),
        "POOLD_PRICES": str(folder / "prices.json"),
        "POOLD_ARCHIVE_MB": str(ARCHIVE_MB),
        "SSL_CERT_FILE": str(internet.certificates.ca),  # of what poold itself calls: webhooks
        "POOLD_GIT_AUTHOR": AUTHOR,
        "POOLD_GIT_PROTECTED": PROTECTED,
    }


@contextlib.contextmanager
def open_gateway(
    folder: Path, prefix: Sequence[str] = (), port: int = GATEWAY_PORT
) -> Iterator["subprocess.Popen[bytes]"]:
    """A gateway with the folders in `folder` during the block. Its log is there, too."""
    settings = {
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "GATEWAY_REGISTRY": str(folder / "registry"),
        "GATEWAY_PKI": str(folder / "pki"),
        "GATEWAY_NAME": "gateway-0",
    }
    argv = [*prefix, sys.executable, "-m", "gateway"]
    with (folder / "gateway.log").open("wb") as log:
        gateway = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        yield gateway
    finally:
        gateway.send_signal(signal.SIGTERM)
        try:
            gateway.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            gateway.kill()
            gateway.wait()
            raise


def write_key(registry: Path, owner: str) -> str:
    """A new key's secret."""
    secret = new_secret(secrets.token_bytes)
    key = Key(key_id(secret), owner, rate=10_000)
    (registry / "keys" / f"{key.id}.json").write_bytes(key.encode())
    return secret


def is_answering(caller: Caller) -> bool:
    """The gateway knows a host that lives."""
    with contextlib.suppress(OSError), contextlib.closing(caller.line(5.0)) as line:
        line.request("GET", "/metrics")
        return b'gateway_hosts{kind="alive"} 1' in line.getresponse().read()
    return False

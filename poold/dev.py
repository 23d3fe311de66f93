"""`make up` and `make down`: a gateway and two hosts on this machine, for trying Warren out and for developing it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "build" / "up"
REGISTRY = FOLDER / "registry"
CA = FOLDER / "pki"
KEY = FOLDER / "key.json"
GATEWAY = os.environ.get("GATEWAY_LISTEN", "127.0.0.1:8080")
HOSTS = {"one": os.environ.get("POOLD_LISTEN", "127.0.0.1:7070"), "two": "127.0.0.1:7071"}
BASE_UIDS = {"one": 230_000, "two": 234_096}
OWNER = "you"
READY_LIMIT_S = 180.0  # the first time each image is booted and frozen
STOP_LIMIT_S = 60.0

HINT = """
Warren is up: the gateway at {url}, two hosts behind it; their logs are in {folder}

  export WARREN_URL={url} WARREN_API_KEY={key}
  {warren} create
  {warren} exec ID -- uname -a
  {warren} attach ID

Or with curl:

  ID=$(curl -sS -X POST $WARREN_URL/v1/sandboxes -H "Authorization: Bearer $WARREN_API_KEY" -d '{{"image": "python"}}' \
| sed 's/.*"id":"\\([^"]*\\)".*/\\1/')
  curl -sS $WARREN_URL/v1/sandboxes/$ID/exec -H "Authorization: Bearer $WARREN_API_KEY" -d '{{"cmd": "uname -a"}}'

The interface: {url}/docs
Stop it with: make down
"""


@dataclass(frozen=True)
class Program:
    """A program in the background, that a later call of us finds again."""

    name: str
    module: str
    variables: Mapping[str, str] = field(repr=False)

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}.log"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    def start(self) -> None:
        """Start it unless it runs."""
        if self.pid() is not None:
            return
        say(f"· starting {self.name}")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self._pid_file.write_text(str(process.pid))

    def stop(self) -> None:
        """Succeeds if it does not run."""
        pid = self.pid()
        if pid is not None:
            say(f"· stopping {self.name}")
            os.kill(pid, signal.SIGTERM)
            give_up = time.monotonic() + STOP_LIMIT_S
            while self.pid() is not None:
                if time.monotonic() > give_up:
                    sys.exit(f"{self.name} (process {pid}) did not stop within {STOP_LIMIT_S:g} s; its log: {self.log}")
                time.sleep(0.05)
        self._pid_file.unlink(missing_ok=True)

    def pid(self) -> int | None:
        """Its process, if it runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            if self.module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return None

    def must_run(self) -> None:
        if self.pid() is None:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
            sys.exit(f"{self.name} does not run. The end of {self.log}:\n{end}")

    @property
    def _pid_file(self) -> Path:
        return FOLDER / f"{self.name}.pid"


def main() -> None:
    actions = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit("usage: python -m poold.dev up|down")
    actions[sys.argv[1]]()


def up() -> None:
    """Start what does not run, wait until machines are warm, show that it works, and say how to use it."""
    prepare()
    programs = [*hosts().values(), gateway()]
    for program in programs:
        program.start()
    wait_until_warm(programs)
    key = json.loads(KEY.read_text())["secret"]
    show(key)
    warren = Path(sys.executable).with_name("warren")
    say(HINT.format(url=f"http://{GATEWAY}", folder=FOLDER, key=key, warren=warren))


def down() -> None:
    """Stop all programs and then every machine. Succeeds if nothing runs."""
    gateway().stop()
    for host in hosts().values():
        host.stop()
        if Path(host.variables["POOLD_STATE_DIR"]).is_dir():  # machines outlive their daemon, also one that was killed
            with host.log.open("ab") as log:
                argv = [sys.executable, "-m", "poold", "--stop-all"]
                done = subprocess.run(argv, env=host.environment, stderr=log, check=False)
            if done.returncode:
                sys.exit(f"stopping the machines of {host.name} failed; the log: {host.log}")
        for empty in (Path(host.variables["POOLD_RUN_DIR"]) / "netns", Path(host.variables["POOLD_RUN_DIR"])):
            with contextlib.suppress(FileNotFoundError):
                empty.rmdir()


def hosts() -> dict[str, Program]:
    return {name: Program(f"host-{name}", "poold", _of_host(name, address)) for name, address in HOSTS.items()}


def _of_host(name: str, address: str) -> dict[str, str]:
    return {
        "POOLD_NAME": name,
        "POOLD_LISTEN": address,
        "POOLD_STATE_DIR": str(FOLDER / name / "state"),
        "POOLD_RUN_DIR": f"/run/warren-{name}",
        "POOLD_IMAGES": os.environ.get("POOLD_IMAGES", str(FOLDER.parent / "images")),
        "POOLD_POOL": os.environ.get("POOLD_POOL", "python=1-4,minimal=1-2"),
        "POOLD_MEMORY_MB": os.environ.get("POOLD_MEMORY_MB", str(_memory_mb() * 4 // 10)),
        "POOLD_BASE_UID": str(BASE_UIDS[name]),
        "POOLD_REGISTRY": str(REGISTRY),
        "POOLD_PKI": str(FOLDER / name / "pki"),
    }


def gateway() -> Program:
    variables = {
        "GATEWAY_LISTEN": GATEWAY,
        "GATEWAY_REGISTRY": str(REGISTRY),
        "GATEWAY_PKI": str(FOLDER / "gateway-pki"),
        "GATEWAY_DOMAIN": os.environ.get("GATEWAY_DOMAIN", "localhost"),
    }
    return Program("gateway", "gateway", variables)


def prepare() -> None:
    """A key pair for tickets and an API key for the user, once. On one machine nobody needs certificates."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    REGISTRY.mkdir(exist_ok=True)
    if not CA.exists():
        say("· making keys")
        _ctl("pki", "init", str(CA))
    for name in HOSTS:
        (FOLDER / name / "pki").mkdir(parents=True, exist_ok=True)
        (FOLDER / name / "pki" / "tickets.pub").write_bytes((CA / "tickets.pub").read_bytes())
    if not (FOLDER / "gateway-pki").exists():
        _ctl("pki", "issue", str(CA), "gateway", "local", "--out", str(FOLDER / "gateway-pki"))
    if not KEY.exists():
        scopes = ["--scope", "sandboxes", "--scope", "tasks", "--scope", "admin"]
        made = _ctl("keys", "create", "--registry", str(REGISTRY), "--owner", OWNER, *scopes, "--json")
        beside = KEY.with_suffix(".new")
        beside.touch(0o600)
        beside.write_text(made)
        beside.rename(KEY)


def _ctl(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "poold.ctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"pooldctl {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def wait_until_warm(programs: list[Program]) -> None:
    """Tell what there is to wait for, and return when the gateway answers and every host has warm machines."""
    started = time.monotonic()
    shown = ""
    while time.monotonic() - started < READY_LIMIT_S:
        for program in programs:
            program.must_run()
        healths = {name: ask(f"http://{address}/healthz") for name, address in HOSTS.items()}
        state = "; ".join(f"{name}: {_warm(health)}" for name, health in healths.items())
        if state != shown:
            say(f"· warm machines: {state} ({time.monotonic() - started:.0f} s)")
            shown = state
        if all(map(_is_warm, healths.values())) and ask(f"http://{GATEWAY}/readyz") is not None:
            return
        time.sleep(0.1)
    sys.exit(f"no warm machine within {READY_LIMIT_S:g} s; the logs are in {FOLDER}")


def _warm(health: Any) -> str:
    if health is None:
        return "starting"
    return ", ".join(f"{share['warm']} of {share['floor']} {share['image']}" for share in health["pool"])


def _is_warm(health: Any) -> bool:
    return health is not None and all(share["warm"] >= min(1, share["floor"]) for share in health["pool"])


def ask(url: str) -> Any:
    """What the program there says, or None if it does not."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 — only ours, on loopback
            return json.load(reply)
    except (OSError, urllib.error.URLError, ValueError):
        return None


def show(key: str) -> None:
    """Run a command in a sandbox, as a user would."""
    environment = {**os.environ, "WARREN_URL": f"http://{GATEWAY}", "WARREN_API_KEY": key}

    def warren(*words: str) -> str:
        argv = [sys.executable, "-m", "warren.cli", *words]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"warren {' '.join(words)} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    sandbox = json.loads(warren("create", "--json"))["id"]
    try:
        say(f"\n$ warren exec {sandbox} -- uname -a\n{warren('exec', sandbox, '--', 'uname', '-a')}")
    finally:
        warren("rm", sandbox)


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 — this is its output


if __name__ == "__main__":
    main()

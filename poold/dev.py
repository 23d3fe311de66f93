"""`make up` and `make down`: a gateway and two hosts on this machine, for trying Warren out and for developing it."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poold import devstore, places

FOLDER = Path(__file__).resolve().parent.parent / "build" / "up"
REGISTRY = FOLDER / "registry"
CA = FOLDER / "pki"
S3_FOLDER = FOLDER / "s3"
GATEWAY = os.environ.get("GATEWAY_LISTEN", "127.0.0.1:8080")
STORE = os.environ.get("STORE", "")
KEY = (S3_FOLDER if STORE else FOLDER) / "key.json"
S3_STORE = f"s3://{devstore.BUCKET}/up"
S3_PORT = os.environ.get("S3_PORT", "8333")
FIRST_HOST = os.environ.get("POOLD_LISTEN", "127.0.0.1:7070")
BASE_UIDS = {"one": 230_000, "two": 234_096}
OWNER = "you"
TASK = "Plan how to say hello"
READY_LIMIT_S = 180.0  # the first time each image is booted and frozen
STOP_LIMIT_S = 60.0

HINT = """
Warren is up: the gateway at {url}, two hosts behind it; their logs are in {folder}

  export WARREN_URL={url} WARREN_API_KEY={key}
  export POOLD_SOCKET={socket} {registry}
  {warren} create
  {warren} exec ID -- uname -a
  {warren} attach ID
  {warren} run "what is to be done" --agent mock   # or claude, codex: with the image agent (make images)
  {pooldctl} status            # of the first host; the second is at {second}

Or with curl:

  ID=$(curl -sS -X POST $WARREN_URL/v1/sandboxes -H "Authorization: Bearer $WARREN_API_KEY" -d '{{"image": "python"}}' \
| sed 's/.*"id":"\\([^"]*\\)".*/\\1/')
  curl -sS $WARREN_URL/v1/sandboxes/$ID/exec -H "Authorization: Bearer $WARREN_API_KEY" -d '{{"cmd": "uname -a"}}'

The interface: {url}/docs
Stop it with: make down
"""


PORTS = """
If a port is taken by another program, choose others:

  GATEWAY_LISTEN=127.0.0.1:8090 POOLD_LISTEN=127.0.0.1:7080 make up

The second host has the port after the first one's. S3 (STORE=s3) has five ports from S3_PORT on.
"""


@dataclass
class Program:
    """A program in the background, that a later call of us finds again."""

    name: str
    module: str
    variables: Mapping[str, str] = field(repr=False)
    words: Sequence[str] = ()  # of its command, if it is none of ours
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)  # if we started it
    _log_from: int = field(default=0, init=False, repr=False)  # where the part of this run begins

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}.log"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}

    @property
    def argv(self) -> Sequence[str]:
        return self.words or [sys.executable, "-m", self.module]

    def start(self) -> bool:
        """Start it unless it runs. Whether we did."""
        if self.pid() is not None:
            return False
        say(f"· starting {self.name}")
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                cwd=FOLDER if self.words else None,
            )
        self._pid_file.write_text(str(self._process.pid))
        return True

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
        """Its process, if it runs. One of ours is asked itself: until it has begun, the kernel has no name for it."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            if {*map(os.fsencode, self.argv[1:])} <= {*Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")}:
                return pid
        return None

    def must_run(self) -> None:
        if self.pid() is None:
            told = self.log.read_bytes()[self._log_from :].decode(errors="replace")
            end = "\n".join(told.splitlines()[-5:])
            sys.exit(f"{self.name} does not run. The end of {self.log}:\n{end}\n{PORTS if '_LISTEN' in end else ''}")

    @property
    def _pid_file(self) -> Path:
        return FOLDER / f"{self.name}.pid"


def main() -> None:
    actions = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit("usage: python -m poold.dev up|down")
    actions[sys.argv[1]]()


def up() -> None:
    """Start what does not run, wait until machines are warm, show that it works, and say how to use it.

    If that comes to nothing, what was started here is stopped again.
    """
    started: list[Program] = []
    try:
        if STORE:
            started += [program for program in (s3(),) if program.start()]
            wait_for_s3()
        prepare()
        programs = [*hosts().values(), gateway()]
        started += [program for program in programs if program.start()]
        wait_until_warm(programs)
        key = json.loads(KEY.read_text())["secret"]
        show(key)
    except SystemExit as error:
        say(str(error))
        stop(started)
        sys.exit(1)
    say(hint(key))


def hint(key: str) -> str:
    programs = Path(sys.executable).parent
    first, second = (Path(_run_dir(name)) / "poold.sock" for name in BASE_UIDS)
    return HINT.format(
        url=f"http://{GATEWAY}",
        folder=FOLDER,
        key=key,
        warren=programs / "warren",
        pooldctl=programs / "pooldctl",
        socket=first,
        second=second,
        registry=" ".join(f"{name}={value}" for name, value in registry("POOLD_REGISTRY").items()),
    )


def down() -> None:
    """Stop all programs and then every machine. Succeeds if nothing runs."""
    stop([*([s3()] if S3_FOLDER.exists() else []), *hosts().values(), gateway()])


def stop(programs: Iterable[Program]) -> None:
    """The last first, and with a host every machine of its: those outlive their daemon, also one that was killed."""
    for program in reversed(list(programs)):
        program.stop()
        if program.module == "poold":
            _clear(program)
        elif program.module == "weed":
            s3_server().clear()


def _clear(host: Program) -> None:
    if Path(host.variables["POOLD_STATE_DIR"]).is_dir():
        with host.log.open("ab") as log:
            argv = [sys.executable, "-m", "poold", "--stop-all"]
            done = subprocess.run(argv, env=host.environment, stderr=log, check=False)
        if done.returncode:
            sys.exit(f"stopping the machines of {host.name} failed; the log: {host.log}")
    for empty in (Path(host.variables["POOLD_RUN_DIR"]) / "netns", Path(host.variables["POOLD_RUN_DIR"])):
        with contextlib.suppress(OSError):  # it is not there, or something in it is not ours
            empty.rmdir()


def addresses() -> dict[str, str]:
    """Of the hosts: the second one has the next port."""
    host, _, port = FIRST_HOST.rpartition(":")
    if not port.isdigit():
        sys.exit(f"POOLD_LISTEN must be ADDRESS:PORT, got {FIRST_HOST!r}")
    return {name: f"{host}:{int(port) + number}" for number, name in enumerate(BASE_UIDS)}


def hosts() -> dict[str, Program]:
    return {name: Program(f"host-{name}", "poold", _of_host(name, address)) for name, address in addresses().items()}


def _of_host(name: str, address: str) -> dict[str, str]:
    return {
        "POOLD_NAME": name,
        "POOLD_LISTEN": address,
        "POOLD_STATE_DIR": str(FOLDER / name / "state"),
        "POOLD_RUN_DIR": _run_dir(name),
        "POOLD_IMAGES": os.environ.get("POOLD_IMAGES", str(FOLDER.parent / "images")),
        "POOLD_POOL": os.environ.get("POOLD_POOL", "python=1-4,minimal=1-2"),
        "POOLD_MEMORY_MB": os.environ.get("POOLD_MEMORY_MB", str(_memory_mb() * 4 // 10)),
        "POOLD_BASE_UID": str(BASE_UIDS[name]),
        "POOLD_PKI": str(FOLDER / name / "pki"),
        **({"POOLD_STORE": S3_STORE} if STORE else {"POOLD_WORKSPACES": str(FOLDER / "workspaces")}),
        **registry("POOLD_REGISTRY"),
    }


def registry(variable: str) -> dict[str, str]:
    """Where keys and hosts' records are, as whoever reads or writes them is told: in S3, if there is one."""
    if STORE:
        return {variable: f"{S3_STORE}/{places.REGISTRY}", **s3_server().client()}
    return {variable: str(REGISTRY)}


def _run_dir(name: str) -> str:
    return f"/run/warren-{name}"


def s3_server() -> devstore.S3Server:
    if STORE not in ("", "s3") or not S3_PORT.isdigit():
        sys.exit(f"STORE must be s3 or nothing, and S3_PORT a port, got {STORE!r} and {S3_PORT!r}")
    return devstore.kept_server(S3_FOLDER, int(S3_PORT))


def s3() -> Program:
    server = s3_server()
    return Program("s3", "weed", server.environment(), server.argv())


def wait_for_s3() -> None:
    server, program = s3_server(), s3()
    give_up = time.monotonic() + READY_LIMIT_S
    while not server.is_ready():
        program.must_run()
        if time.monotonic() > give_up:
            sys.exit(f"S3 does not answer within {READY_LIMIT_S:g} s; its log: {program.log}")
        time.sleep(0.1)


def gateway() -> Program:
    variables = {
        "GATEWAY_LISTEN": GATEWAY,
        **registry("GATEWAY_REGISTRY"),
        "GATEWAY_PKI": str(FOLDER / "gateway-pki"),
        "GATEWAY_DOMAIN": os.environ.get("GATEWAY_DOMAIN", "localhost"),
    }
    return Program("gateway", "gateway", variables)


def prepare() -> None:
    """A key pair for tickets and an API key for the user, once. On one machine nobody needs certificates."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not STORE:
        REGISTRY.mkdir(exist_ok=True)
    if not CA.exists():
        say("· making keys")
        _ctl("pki", "init", str(CA))
    for name in BASE_UIDS:
        (FOLDER / name / "pki").mkdir(parents=True, exist_ok=True)
        for file in [*CA.glob("tickets.pub"), *CA.glob("seal.key")]:
            shutil.copy2(file, FOLDER / name / "pki" / file.name)  # with who may read it
    if not (FOLDER / "gateway-pki").exists():
        _ctl("pki", "issue", str(CA), "gateway", "local", "--out", str(FOLDER / "gateway-pki"))
    if not KEY.exists():
        scopes = ["--scope", "sandboxes", "--scope", "tasks", "--scope", "admin"]
        made = _ctl("keys", "create", "--owner", OWNER, *scopes, "--json", **registry("POOLD_REGISTRY"))
        beside = KEY.with_suffix(".new")
        beside.touch(0o600)
        beside.write_text(made)
        beside.rename(KEY)


def _ctl(*words: str, **variables: str) -> str:
    argv, told = [sys.executable, "-m", "poold.ctl", *words], {**os.environ, **variables}
    done = subprocess.run(argv, env=told, capture_output=True, text=True, check=False)
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
        healths = {name: ask(f"http://{address}/healthz") for name, address in addresses().items()}
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
    """Run a command in a sandbox, and a task, as a user would."""
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
    say(f"\n$ warren run {shlex.quote(TASK)} --agent mock")
    argv = [sys.executable, "-m", "warren.cli", "run", TASK, "--agent", "mock"]
    if subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"the task failed; the logs are in {FOLDER}")


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 — this is its output


if __name__ == "__main__":
    main()

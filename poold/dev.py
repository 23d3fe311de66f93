"""`make up` and `make down`: one poold in the background, for trying Warren out and for developing it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "build" / "up"
LOG = FOLDER / "poold.log"
PID = FOLDER / "poold.pid"
ADDRESS = os.environ.get("POOLD_LISTEN", "127.0.0.1:7070")
SOCKET = Path(os.environ.get("POOLD_RUN_DIR", "/run/warren")) / "poold.sock"
READY_LIMIT_S = 180.0  # the first time each image is booted and frozen
STOP_LIMIT_S = 60.0
STOP_ALL = [sys.executable, "-m", "poold", "--stop-all"]

HINT = """
Warren is up: poold at http://{address} for gateways, its log in {log}

Create a sandbox, and run a command in it, as the operator of this host:

  curl -sS --unix-socket {socket} -X POST http://warren/v1/sandboxes -d '{{"image": "python"}}'
  curl -sS --unix-socket {socket} http://warren/v1/sandboxes/ID/exec -d '{{"cmd": "uname -a"}}'

Look at it: .venv/bin/python -m poold.ctl status
Stop it with: make down
"""


def main() -> None:
    actions = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit("usage: python -m poold.dev up|down")
    actions[sys.argv[1]]()


def up() -> None:
    """Start poold unless it runs, wait until machines are warm, and say how to use it."""
    if _running() is None:
        _start()
    _wait_until_warm()
    print(HINT.format(address=ADDRESS, socket=SOCKET, log=LOG))  # noqa: T201 — this is its output


def down() -> None:
    """Stop poold and then every machine. Succeeds if nothing runs."""
    pid = _running()
    if pid is not None:
        print("· stopping poold and its machines")  # noqa: T201
        os.kill(pid, signal.SIGTERM)
        give_up = time.monotonic() + STOP_LIMIT_S
        while _running() is not None:
            if time.monotonic() > give_up:
                sys.exit(f"poold (process {pid}) did not stop within {STOP_LIMIT_S:g} s; its log: {LOG}")
            time.sleep(0.05)
        PID.unlink(missing_ok=True)
    if (FOLDER / "state").is_dir():  # machines outlive their daemon, also one that was killed
        with LOG.open("ab") as log:
            done = subprocess.run(STOP_ALL, env=_environment(), stderr=log, check=False)
        if done.returncode:
            sys.exit(f"stopping the machines failed; the log: {LOG}")


def _environment() -> dict[str, str]:
    return {
        "POOLD_LISTEN": ADDRESS,
        "POOLD_STATE_DIR": str(FOLDER / "state"),
        "POOLD_IMAGES": str(FOLDER.parent / "images"),
        "POOLD_POOL": "python=2-8,minimal=1-4",
        **os.environ,
    }


def _start() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"· starting poold on {ADDRESS}")  # noqa: T201
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "poold"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )
    PID.write_text(str(process.pid))


def _running() -> int | None:
    """The pid of the poold that `up` started, if it runs."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(PID.read_text())
        if b"poold" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def _wait_until_warm() -> None:
    """Tell what there is to wait for, and return when every image of the pool has a warm machine."""
    started = time.monotonic()
    shown = ""
    while time.monotonic() - started < READY_LIMIT_S:
        if _running() is None:
            tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-5:])
            sys.exit(f"poold did not start. The end of {LOG}:\n{tail}")
        health = _health()
        if health is not None:
            shares = health["pool"]
            state = ", ".join(f"{share['warm']} of {share['floor']} {share['image']}" for share in shares)
            if state != shown:
                print(f"· warm machines: {state} ({time.monotonic() - started:.0f} s)")  # noqa: T201
                shown = state
            if all(share["warm"] >= min(1, share["floor"]) for share in shares):
                return
        time.sleep(0.1)
    sys.exit(f"no warm machine within {READY_LIMIT_S:g} s; the log: {LOG}")


def _health() -> "dict[str, list[dict[str, int]]] | None":
    try:
        with urllib.request.urlopen(f"http://{ADDRESS}/healthz", timeout=5) as reply:
            health: dict[str, list[dict[str, int]]] = json.load(reply)
            return health
    except (OSError, urllib.error.URLError, ValueError):
        return None


if __name__ == "__main__":
    main()

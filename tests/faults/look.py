"""Looking at a host: its ledger, its processes, its folders. Nothing is changed."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from contract.states import State
from poold import processes
from poold.ledger import audit
from poold.ledger.connect import open_reader
from tests.bench import host as bench
from tests.faults.checks import OVERHEAD_MB, Host, Row, Told
from tests.vm import traces
from tests.vm.client import Api

ROWS = """
SELECT id, state, machine, memory_mb, metadata, reason,
  (SELECT count(*) FROM usage WHERE usage.sandbox = sandboxes.id AND usage.ended_ms IS NULL)
FROM sandboxes ORDER BY created_ms, id
"""


class Ledger:
    """A poold's ledger, read beside it."""

    def __init__(self, state: Path) -> None:
        self._path = state / "ledger.db"

    def rows(self) -> list[Row]:
        with contextlib.closing(open_reader(self._path)) as db:
            return [
                Row(id_, State(state), machine, memory_mb, json.loads(metadata).get("nonce"), runs, reason)
                for id_, state, machine, memory_mb, metadata, reason, runs in db.execute(ROWS)
            ]

    def streams(self) -> dict[str, list[Told]]:
        """The events of each sandbox."""
        found: dict[str, list[Told]] = {}
        with contextlib.closing(open_reader(self._path)) as db:
            told = db.execute("SELECT stream, seq, kind, data ->> 'state', guest_seq FROM events ORDER BY stream, seq")
            for name, *event in told:
                found.setdefault(name, []).append(Told(*event))
        return found

    def audit(self) -> audit.Verdict:
        with contextlib.closing(open_reader(self._path)) as db:
            return audit.verify(db)


def look(host: bench.Host) -> Host:
    """What there is of `host` now. While machines come and go, its parts may be of different moments."""
    run_dir = host.socket.parent
    reply = Api(host, as_operator=True).call("GET", "/admin/status")
    assert reply.status == 200, f"{reply}\n{host.log()[-3000:]}"
    status = reply.json
    machines = traces.machines(host.state)
    shares = status["pool"]
    folders = host.state / "qemu" / "machines"
    return Host(
        machines=machines,
        folders={path.name: _names(path) for path in folders.iterdir()},
        groups=_groups(host.environment["POOLD_CGROUP"]),
        pins=[line.split()[4].rpartition("/")[2] for line in traces.mounts(run_dir / "netns")],
        processes=dict(_started_by(host)),
        links={name: _links(pid) for name, pid in machines.items()},
        in_run_dir=_names(run_dir),
        users=[owner for pid in machines.values() if (owner := processes.owner(pid)) is not None],
        proxies=traces.proxies(int(host.environment["POOLD_BASE_UID"]), status["slots"]["all"]),
        slots=status["slots"]["all"],
        free_slots=status["slots"]["free"],
        budget_mb=status["memory"]["budget_mb"],
        left_mb=status["memory"]["left_mb"],
        warm=sum(share["warm"] for share in shares),
        warm_mb=sum(share["warm"] * (share["memory_mb"] + OVERHEAD_MB) for share in shares),
    )


def _groups(name: str) -> set[str]:
    """The machines with a control group below those of this name, whatever the controller."""
    homes = [path for path in Path("/sys/fs/cgroup").rglob(name) if path.is_dir()]
    return {path.name for home in homes for path in home.iterdir() if path.is_dir()}


def _started_by(host: bench.Host) -> Iterator[tuple[int, str]]:
    """Every process that inherited the environment of this poold."""
    variable = f"POOLD_RUN_DIR={host.socket.parent}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), host.process.pid):
            with contextlib.suppress(OSError):
                if variable in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    yield int(entry.name), line.decode(errors="replace")


def _links(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return {line.partition(":")[0].strip() for line in lines}
    return set()


def _names(folder: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in folder.iterdir()}
    return set()

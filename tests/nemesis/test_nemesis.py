"""Everything goes wrong, seeded, while tasks and sandboxes are under way; then it is made good, and all is judged.

`make test-cluster` is fifteen minutes of it. `WARREN_NEMESIS_SEED` repeats a round's faults, `WARREN_NEMESIS_S` says
how long they last, `WARREN_NEMESIS_LOGS` keeps the story of the faults, what was heard
of each task, and the logs of all programs in a folder.
"""

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poold.ledger import care
from poold.ledger.connect import open_reader
from tests.cluster.cluster import GATEWAYS, HOSTS, until
from tests.nemesis import judge
from tests.nemesis.faults import Nemesis
from tests.nemesis.judge import Facts
from tests.nemesis.load import TASKS, Load
from tests.nemesis.place import Place, are_alive, open_place

SEED = int(os.environ.get("WARREN_NEMESIS_SEED") or random.randrange(1 << 32))
LASTS_S = float(os.environ.get("WARREN_NEMESIS_S", "180"))
LOGS = os.environ.get("WARREN_NEMESIS_LOGS")
AT_ONCE, PLAYERS = 8, 2
CALM_S = 240.0  # after the last fault: leases lapse, lines are carried on, tasks come to their ends


def test_whatever_goes_wrong_every_acknowledged_task_is_done_once_and_its_stream_has_no_gap() -> None:
    assert os.geteuid() == 0, "this makes network namespaces: run it as root"
    print(f"\nseed={SEED}", flush=True)
    with open_place(HOSTS, seed=SEED) as place:
        load, nemesis = Load(place, SEED, AT_ONCE), Nemesis(place, SEED)
        try:
            calm_s = _round(place, load, nemesis)
            facts = _facts(place, load)
            _tell(load, nemesis, facts, calm_s)
            problems = [*judge.wrong(facts), *load.wrong]
        finally:
            _keep_logs(place, nemesis, load)
    assert not problems, f"seed {SEED}:\n" + "\n".join(problems)
    assert facts.tasks, "nothing was acknowledged"


def _round(place: Place, load: Load, nemesis: Nemesis) -> float:
    """The faults, and the time until all is calm after them."""
    with _supervised(place), load.going(PLAYERS):
        with nemesis.at_work():
            time.sleep(LASTS_S)
        began = time.monotonic()
        load.stop.set()
        with contextlib.suppress(AssertionError):  # the judge tells what is not over
            until(load.is_done, limit_s=CALM_S)
        with contextlib.suppress(AssertionError):
            until(lambda: are_alive(place) and not _taken(place), limit_s=CALM_S)
        return time.monotonic() - began


@contextlib.contextmanager
def _supervised(place: Place) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=place.supervise, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _taken(place: Place) -> bool:
    """Whether any lost line is still to be carried on."""
    assert place.store is not None
    newest = {written.host: written for written in place.store.leases.written}
    return any(written.taken or not written.root for written in newest.values())


def _facts(place: Place, load: Load) -> Facts:
    assert place.store is not None
    chance = random.Random(SEED)
    facts = Facts(tasks=load.tasks, sandboxes=load.sandboxes, attempts=place.effects.attempts)
    facts.views = {task.id: _asked(load, chance, f"{TASKS}/{task.id}") for task in load.tasks}
    facts.views = {one: view for one, view in facts.views.items() if view is not None}
    facts.pages = {task.id: _page(load, chance, task.id) for task in load.tasks}
    with contextlib.suppress(AssertionError):
        until(lambda: not any(place.machines(host) for host in place.hosts_here), limit_s=60)
    facts.machines = {host: len(place.machines(host)) for host in place.hosts_here}
    facts.leases = tuple(place.store.leases.written)
    facts.addresses = {host: place.net.addresses[host] for host in place.hosts_here}
    homes: defaultdict[str, list[str]] = defaultdict(list)
    keys: defaultdict[str, list[str]] = defaultdict(list)
    facts.homes, facts.keys = homes, keys
    facts.ledgers = {host: _look(place.state(host) / "ledger.db", host, homes, keys) for host in place.hosts_here}
    return facts


def _asked(load: Load, chance: random.Random, path: str) -> Any:
    """None if it is not to be had."""
    for _ in range(20):
        reply = load.call(chance, "GET", path)
        if reply is not None and reply[0] == 200:
            return reply[1]
        time.sleep(0.2)
    return None


def _page(load: Load, chance: random.Random, task: str) -> list[dict[str, Any]]:
    told = _asked(load, chance, f"{TASKS}/{task}/events?limit=1000") or {"events": []}
    return [{name: value for name, value in event.items() if name != "id"} for event in told["events"]]


def _look(path: Path, host: str, homes: dict[str, list[str]], keys: dict[str, list[str]]) -> list[str]:
    """What is wrong with a ledger. What it has is noted."""
    with contextlib.closing(open_reader(path)) as db:
        for (one,) in db.execute("SELECT id FROM sandboxes UNION ALL SELECT id FROM tasks"):
            homes[one].append(host)
        for one, asked in db.execute("SELECT id, asked FROM tasks"):
            keys[json.loads(asked)["metadata"]["key"]].append(one)
        return care.check(db)


def _tell(load: Load, nemesis: Nemesis, facts: Facts, calm_s: float) -> None:
    waits = judge.waits_s(nemesis.killed, load.tasks)
    told: dict[str, object] = {f"fault_{name}": count for name, count in sorted(nemesis.counts.items())}
    told |= {"seed": SEED, "lasted_s": LASTS_S, "calm_after_s": f"{calm_s:.1f}"}
    told |= {"tasks": len(load.tasks), "sandboxes": len(load.sandboxes), "requests": load.requests}
    told |= {"refused_tickets": load.refused_tickets, "requests_unanswered": load.unanswered}
    told |= {"events": sum(task.last for task in load.tasks)}
    told |= {"connections_of_followers": sum(task.connections for task in load.tasks)}
    told |= {"effects": sum(each.is_made for each in facts.attempts), "attempts": len(facts.attempts)}
    told |= {"takeovers": sum(_takings(facts)), "ended_by_themselves": len(nemesis.place.ended)}
    told |= {"tasks_of_killed_hosts": len(waits), "kill_to_event_p50_s": f"{judge.quantile(waits, 0.5):.1f}"}
    told |= {"kill_to_event_p99_s": f"{judge.quantile(waits, 0.99):.1f}"}
    print("\n".join(f"{name}={value}" for name, value in told.items()), flush=True)


def _takings(facts: Facts) -> Iterator[int]:
    """How many lines of each host were taken."""
    for host in facts.addresses:
        yield len({line[:2] for written in facts.leases if written.host == host for line in written.taken})


def _keep_logs(place: Place, nemesis: Nemesis, load: Load) -> None:
    if LOGS is None:
        return
    folder = Path(LOGS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "story").write_text("\n".join([*sorted(nemesis.story), *place.ended]))
    heard = {f"{task.key} {task.id}": [[each.at, each.event] for each in task.heard] for task in load.tasks}
    (folder / "heard.json").write_text(json.dumps(heard))
    for name in (*place.hosts_here, *GATEWAYS):
        shutil.copy(place.folder / name / "log", folder / f"{name}.log")

"""Everything goes wrong, seeded, while tasks and sandboxes are under way; then it is made good, and all is judged.

`make test-cluster` is fifteen minutes of it. `WARREN_NEMESIS_SEED` repeats a round's faults, `WARREN_NEMESIS_S` says
how long they last, `WARREN_NEMESIS_LOGS` keeps the story of the faults, what was heard of each task, and the logs of
all programs in a folder.
"""

import contextlib
import json
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from poold.ledger import care
from poold.ledger.connect import open_reader
from tests.cluster.cluster import GATEWAYS, HOSTS, until
from tests.nemesis import judge
from tests.nemesis.boxes import SANDBOXES, Box, destroy, play, use, wake
from tests.nemesis.faults import Nemesis
from tests.nemesis.judge import Facts
from tests.nemesis.load import TASKS, Load
from tests.nemesis.place import Place, are_alive, open_place
from tests.nemesis.takeovers import takeovers

SEED = int(os.environ.get("WARREN_NEMESIS_SEED") or random.randrange(1 << 32))
LASTS_S = float(os.environ.get("WARREN_NEMESIS_S", "180"))
LOGS = os.environ.get("WARREN_NEMESIS_LOGS")
AT_ONCE, PLAYERS = 8, 2
CALM_S = 600.0  # at most, after the last fault: leases lapse, lines are carried on, tasks come to their ends
ASKING_S = 120.0  # for all that is asked at the end


def test_whatever_goes_wrong_every_acknowledged_task_is_done_once_and_its_stream_has_no_gap() -> None:
    assert os.geteuid() == 0, "this makes network namespaces: run it as root"
    print(f"\nseed={SEED}", flush=True)
    with open_place(HOSTS, seed=SEED) as place:
        load, nemesis = Load(place, SEED, AT_ONCE), Nemesis(place, SEED)
        boxes: list[Box] = []
        try:
            calm_s = _round(place, load, boxes, nemesis)
            facts = _facts(place, load, boxes)
            _tell(load, nemesis, facts, calm_s)
            problems = [*judge.wrong(facts), *load.wrong]
        finally:
            _keep_logs(place, nemesis, load)
    assert not problems, f"seed {SEED}:\n" + "\n".join(problems)
    assert facts.tasks, "nothing was acknowledged"


def _round(place: Place, load: Load, boxes: list[Box], nemesis: Nemesis) -> float:
    """The faults, and the time until all is calm after them."""
    players = [partial(play, load, boxes, number) for number in range(PLAYERS)]
    with load.going(*players):
        with nemesis.at_work():
            time.sleep(LASTS_S)
        began = time.monotonic()
        load.stop.set()
        with contextlib.suppress(AssertionError):  # the judge tells what is not over
            until(lambda: _is_calm(place, load), limit_s=CALM_S)
        _end_boxes(load, boxes)
        return time.monotonic() - began


def _is_calm(place: Place, load: Load) -> bool:
    """All that was begun is over, every host lives, and no lost line is to be carried on."""
    return load.is_done() and are_alive(place) and not _taken(place)


def _end_boxes(load: Load, boxes: Sequence[Box]) -> None:
    """Those that were kept are looked at, and then destroyed as all others were."""
    chance, give_up = random.Random(SEED), time.monotonic() + ASKING_S
    for box in boxes:
        if not box.is_destroyed and time.monotonic() < give_up:
            box.last = _asked(load, chance, f"{SANDBOXES}/{box.id}", give_up)
            state = None if box.last is None else box.last["state"]
            if state == "running":
                use(load, box, chance)
            elif state == "hibernated" and box.is_asleep:
                wake(load, box, chance, give_up)
                box.is_asleep = True  # it was, when it was looked at
                box.wrong += [] if box.woke else ["it slept in the store and did not wake"]
            destroy(load, box, chance, give_up)


def _taken(place: Place) -> bool:
    """Whether any lost line is still to be carried on."""
    assert place.store is not None
    newest = {written.host: written for written in place.store.leases.written}
    return any(written.taken or not written.root for written in newest.values())


def _facts(place: Place, load: Load, boxes: Sequence[Box]) -> Facts:
    assert place.store is not None
    assert place.effects is not None
    chance, give_up = random.Random(SEED), time.monotonic() + ASKING_S
    facts = Facts(tasks=load.tasks, sandboxes=boxes, attempts=place.effects.attempts, made=place.effects.made())
    facts.views = _all_asked(load, chance, TASKS, [task.id for task in load.tasks], give_up)
    facts.box_views = _all_asked(load, chance, SANDBOXES, [box.id for box in boxes], give_up)
    facts.pages = {task.id: _page(load, chance, task.id, give_up) for task in load.tasks}
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


def _all_asked(load: Load, chance: random.Random, path: str, ids: Sequence[str], give_up: float) -> dict[str, Any]:
    """Without those that are not to be had."""
    found = {one: _asked(load, chance, f"{path}/{one}", give_up) for one in ids}
    return {one: view for one, view in found.items() if view is not None}


def _asked(load: Load, chance: random.Random, path: str, give_up: float) -> Any:
    """None if it is not to be had."""
    while True:
        reply = load.call(chance, "GET", path)
        if reply is not None and reply[0] == 200:
            return reply[1]
        if time.monotonic() > give_up:
            return None
        time.sleep(0.2)


def _page(load: Load, chance: random.Random, task: str, give_up: float) -> list[dict[str, Any]]:
    told = _asked(load, chance, f"{TASKS}/{task}/events?limit=1000", give_up) or {"events": []}
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
    logs = {host: (nemesis.place.folder / host / "log").read_bytes().splitlines() for host in facts.addresses}
    nemesis.takeovers = [each.line() for each in takeovers(facts.leases, load.tasks, logs)]
    waits = judge.waits_s(nemesis.killed, load.tasks)
    told: dict[str, object] = {f"fault_{name}": count for name, count in sorted(nemesis.counts.items())}
    told |= {"seed": SEED, "lasted_s": LASTS_S, "calm_after_s": f"{calm_s:.1f}"}
    told |= {"tasks": len(load.tasks), "sandboxes": len(facts.sandboxes), "requests": load.requests}
    lasts = Counter(f"sandboxes_kept_{box.last['state']}" for box in facts.sandboxes if box.last is not None)
    told |= {**lasts, "sandboxes_woken": sum(box.woke for box in facts.sandboxes)}
    told |= {"refused_tickets": load.refused_tickets, "requests_unanswered": load.unanswered}
    told |= {"events": sum(task.last for task in load.tasks)}
    told |= {"connections_of_followers": sum(task.connections for task in load.tasks)}
    told |= {"effects": sum(each.is_made for each in facts.attempts), "attempts": len(facts.attempts)}
    told |= {"takeovers": len(nemesis.takeovers), "ended_by_themselves": len(nemesis.place.ended)}
    told |= {"tasks_of_killed_hosts": len(waits), "kill_to_event_p50_s": f"{judge.quantile(waits, 0.5):.1f}"}
    told |= {"kill_to_event_p99_s": f"{judge.quantile(waits, 0.99):.1f}"}
    print("\n".join([*nemesis.takeovers, *(f"{name}={value}" for name, value in told.items())]), flush=True)


def _keep_logs(place: Place, nemesis: Nemesis, load: Load) -> None:
    if LOGS is None:
        return
    folder = Path(LOGS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "story").write_text("\n".join([*sorted(nemesis.story), *nemesis.takeovers, *place.ended]))
    heard = {f"{task.key} {task.id}": [[each.at, each.event] for each in task.heard] for task in load.tasks}
    (folder / "heard.json").write_text(json.dumps(heard))
    for name in (*place.hosts_here, *GATEWAYS):
        shutil.copy(place.folder / name / "log", folder / f"{name}.log")

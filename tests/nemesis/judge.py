"""What must be so after everything that happened. Each question is a function from facts to what is wrong; no I/O."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.nemesis.boxes import Box
from tests.nemesis.effects import Attempt
from tests.nemesis.faults import Killed
from tests.nemesis.leases import Written
from tests.nemesis.load import FINAL, Followed

AT_ONCE_S = 0.3  # what a client hears so soon after a kill was on its way before


@dataclass
class Facts:
    tasks: Sequence[Followed] = ()  # all that were acknowledged
    sandboxes: Sequence[Box] = ()
    box_views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # when all of them were destroyed
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of each task, at the end
    pages: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # its events, read anew at the end
    attempts: Sequence[Attempt] = ()
    made: Mapping[str, str] = field(default_factory=dict)  # effects, as the store has them
    leases: Sequence[Written] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)  # of hosts
    homes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # hosts whose ledger has a task or a sandbox
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)  # tasks by what their creator called them
    ledgers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what is wrong with each
    machines: Mapping[str, int] = field(default_factory=dict)  # that run on each host when nothing should


def wrong(facts: Facts) -> list[str]:
    """Everything."""
    questions = (unfinished, streams, effects, sandboxes, one_home, epochs, fenced, ledgers, machines)
    return [f"{question.__name__}: {problem}" for question in questions for problem in question(facts)]


def unfinished(facts: Facts) -> list[str]:
    """Every acknowledged task was completed once, with each of its commits once."""
    found = []
    for task in facts.tasks:
        view = facts.views.get(task.id)
        if view is None or view["state"] != "completed":
            told = None if view is None else (view["state"], view.get("reason"))
            found.append(f"{task.key} {task.id} is {told}")
            continue
        subjects = Counter(each["subject"] for each in view["result"]["commits"])
        found += [f"{task.key} {task.id}: commit {c!r} {subjects[c]} times" for c in task.commits if subjects[c] != 1]
        ends = [event["kind"] for event in facts.pages[task.id] if event["kind"] in FINAL]
        if len(ends) != 1:
            found.append(f"{task.key} {task.id} ended {len(ends)} times: {ends}")
    return found


def streams(facts: Facts) -> list[str]:
    """What a client heard is one stream, and is what anybody hears who asks now."""
    found = []
    for task in facts.tasks:
        found += [f"{task.key} {task.id}: {told}" for told in task.wrong]
        page = facts.pages.get(task.id, ())
        if [event["seq"] for event in page] != list(range(1, len(page) + 1)):
            found.append(f"{task.key} {task.id} has gaps: {[event['seq'] for event in page]}")
        for heard, event in zip(task.heard, page, strict=False):
            if heard.event != event:
                found.append(f"{task.key} {task.id}: heard {heard.event}, which is {event} now")
                break
        if len(task.heard) != len(page):
            found.append(f"{task.key} {task.id}: {len(task.heard)} events were heard, there are {len(page)}")
    return found


def effects(facts: Facts) -> list[str]:
    """Every effect of an acknowledged task is in the store, made once."""
    made = Counter(attempt.name for attempt in facts.attempts if attempt.is_made)
    found = []
    for task in facts.tasks:
        for name, text in task.effects.items():
            if made[name] != 1 or facts.made.get(name) != text:
                found.append(f"{task.key} {task.id}: effect {name} {made[name]} times, {facts.made.get(name)!r}")
    return found


def sandboxes(facts: Facts) -> list[str]:
    """Each is found. One that was kept runs, with its mark, or says why not; one that sleeps sleeps; one that was
    destroyed is no more.
    """
    found = []
    for box in facts.sandboxes:
        found += [f"{box.id}: {told}" for told in box.wrong]
        view = facts.box_views.get(box.id)
        if view is None or view["state"] != "stopped":
            told = None if view is None else (view["state"], view.get("reason"))
            found.append(f"{box.id} was destroyed ({box.is_destroyed}) and is {told}")
        state = None if box.last is None else box.last["state"]
        if box.is_asleep and state not in (None, "hibernated"):
            found.append(f"{box.id} slept in the store and is {state}: {box.last}")
        if state == "error" and not (box.last or {}).get("reason"):
            found.append(f"{box.id} is {state} and does not say why")
    return found


def one_home(facts: Facts) -> list[str]:
    """What was acknowledged is in exactly one ledger, and no key made two tasks."""
    known = [*(task.id for task in facts.tasks), *(box.id for box in facts.sandboxes)]
    found = [f"{one} is at {list(facts.homes.get(one, ()))}" for one in known if len(facts.homes.get(one, ())) != 1]
    return found + [f"{key} is the key of {list(ids)}" for key, ids in facts.keys.items() if len(set(ids)) > 1]


def epochs(facts: Facts) -> list[str]:
    """No epoch of a lease had two holders, none went back, and no lost line was given to two hosts at once."""
    holders: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    by_host: defaultdict[str, list[Written]] = defaultdict(list)
    for written in facts.leases:
        by_host[written.host].append(written)
        if written.root:
            holders[written.host, written.epoch].add(written.holder)
    twice = [(host, epoch, who) for (host, epoch), who in holders.items() if len(who) > 1]
    found = [f"epoch {epoch} of {host} was held by {sorted(who)}" for host, epoch, who in twice]
    for host, writes in by_host.items():
        found += [f"{host} went from epoch {a.epoch} to {b.epoch}" for a, b in pairwise(writes) if b.epoch < a.epoch]
        lines = {line[:2] for written in writes for line in written.taken}
        taken = [line[:2] for written in writes[-1:] for line in written.taken]
        found += [f"line {line} of {host} has two takers" for line in lines if taken.count(line) > 1]
    return found


def fenced(facts: Facts) -> list[str]:
    """From when its lease was taken until it held one again, nothing of a host acted on the world."""
    found = []
    for host, address in facts.addresses.items():
        free_from: float | None = None
        free: list[tuple[float, float]] = []
        for written in facts.leases:
            if written.host == host and written.root == 0 and free_from is None:
                free_from = written.at
            elif written.host == host and written.root and free_from is not None:
                free.append((free_from, written.at))
                free_from = None
        if free_from is not None:
            free.append((free_from, float("inf")))
        acts = [attempt for attempt in facts.attempts if attempt.address == address]
        found += [f"{host} did {act.name} at {act.at:.2f}, its lease was taken at {since:.2f}"
                  for act in acts for since, to in free if since < act.at < to]  # fmt: skip
    return found


def ledgers(facts: Facts) -> list[str]:
    return [f"{name}: {problem}" for name, problems in facts.ledgers.items() for problem in problems]


def machines(facts: Facts) -> list[str]:
    return [f"{count} machines run on {host}" for host, count in facts.machines.items() if count]


def waits_s(killed: Sequence[Killed], tasks: Sequence[Followed]) -> list[float]:
    """From the kill of a host to the next event that a client heard of a task that was under way there."""
    by_id = {task.id: task for task in tasks}
    found = []
    for kill in killed:
        for one in kill.tasks:
            later = [heard.at for heard in by_id[one].heard if heard.at > kill.at + AT_ONCE_S] if one in by_id else []
            found += [min(later) - kill.at] if later else []
    return sorted(found)


def quantile(values: Sequence[float], share: float) -> float:
    """0 of none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0

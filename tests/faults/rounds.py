"""Rounds: clients at work, poold killed in the middle, started again, and looked at."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from contract.states import State
from tests.bench.host import Host
from tests.faults import checks, look
from tests.faults.crowd import Crowd, at_once, shown_history
from tests.faults.model import Change, Known
from tests.vm.client import Api

CLIENTS = 4
KILL_WITHIN_S = 1.5
KILLED_WHILE_STARTING = 0.2  # of all rounds
SETTLE_LIMIT_S = 30.0  # for machines that are being made or removed when we look
POLL_S = 0.05
LOG_CHARS = 6000


@dataclass
class Rounds:
    """All rounds with one poold. `seed` makes the choices of all clients, and the moments of all kills."""

    host: Host
    seed: int

    def __post_init__(self) -> None:
        self.crowd = Crowd()
        self.ledger = look.Ledger(self.host.state)
        self.api = Api(self.host)

    def run(self, rounds: int, limit_s: float) -> int:
        """Do `rounds` of them, or fewer if the time is up; returns how many. Raises at the first that fails."""
        give_up = time.monotonic() + limit_s
        for number in range(rounds):
            if time.monotonic() > give_up:
                return number
            self.round(number)
        return rounds

    def round(self, number: int) -> None:
        dice = random.Random(f"{self.seed}/{number}")
        self.work_until_killed(dice, number)
        if dice.random() < KILLED_WHILE_STARTING:
            self.host.start()
            time.sleep(dice.uniform(0, KILL_WITHIN_S))
            self.host.kill()
        self.host.start()
        self.host.wait_until_serving()
        self.check(f"seed {self.seed}, round {number}")

    def work_until_killed(self, dice: random.Random, number: int) -> None:
        stop = threading.Event()
        seeds = [random.Random(f"{self.seed}/{number}/{client}") for client in range(CLIENTS)]
        threads = [threading.Thread(target=self.crowd.client, args=(self.api, seed, stop)) for seed in seeds]
        for thread in threads:
            thread.start()
        time.sleep(dice.uniform(0, KILL_WITHIN_S))
        self.host.kill()
        stop.set()
        for thread in threads:
            thread.join()

    def check(self, where: str) -> None:
        """Everything that was acknowledged is there, all that is there was asked for, and nothing is left over."""
        rows = {row.id: row for row in self.ledger.rows()}
        problems = [
            *checks.states(self.crowd.known.values(), rows),
            *checks.strangers(rows.values(), self.crowd.nonces),
        ]
        for row in rows.values():
            if row.id in self.crowd.known:
                self.crowd.known[row.id].seen(row.state)
            elif row.state is State.RUNNING and row.nonce is not None:
                self.crowd.meet(row.id, row.nonce)
        running = [one for one in self.crowd.living() if one.states == {State.RUNNING}]
        at_once([partial(self.crowd.look_in, self.api, one) for one in running])
        problems += [*self.crowd.faults, *self._settled(), *self._history()]
        if problems:
            words = "\n".join(problems)
            raise AssertionError(
                f"{where}:\n{words}\n\n{shown_history(self.crowd, words)}\n\nthe end of poold's log:\n"
                f"{self.host.log()[-LOG_CHARS:]}"
            )

    def finish(self) -> None:
        """Bring back all that is paused, see that it has its marks, destroy everything, and look once more."""
        for one in self.crowd.living():
            self.crowd.change(self.api, one, Change.RESUME)
        self.check(f"seed {self.seed}, after the last round")
        at_once([partial(self._destroy, one) for one in self.crowd.living()])
        self.check(f"seed {self.seed}, after all sandboxes were destroyed")
        assert self.crowd.living() == []

    def _destroy(self, one: Known) -> None:
        self.crowd.change(self.api, one, Change.DESTROY)

    def _settled(self) -> list[str]:
        """What is left over once nothing comes or goes any more."""
        give_up = time.monotonic() + SETTLE_LIMIT_S
        while problems := list(self._leftovers()):
            if time.monotonic() > give_up:
                return problems
            time.sleep(POLL_S)
        return []

    def _leftovers(self) -> Iterator[str]:
        rows, there = self.ledger.rows(), look.look(self.host)
        yield from checks.machines(rows, there)
        yield from checks.rest(there, [row for row in rows if row.state is State.RUNNING])

    def _history(self) -> Iterator[str]:
        for name, events in self.ledger.streams().items():
            yield from checks.stream(name, events)
        verdict = self.ledger.audit()
        if not verdict.ok:
            yield f"the audit chain is broken at {verdict.broken_at}: {verdict.why}"

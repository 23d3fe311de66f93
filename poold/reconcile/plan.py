"""From what was found to what is to be done about it. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from contract.models import Sandbox
from contract.states import State
from poold.engines import Found

CUT_SHORT = "its creation was cut short by a restart of the host daemon"
ENDED = "its machine ended while the host daemon was away"
NO_SLOT = "its machine runs in no slot of this host"
NOTHING_SAVED = "what was saved of it is gone"


@dataclass(frozen=True)
class Adopt:
    """The sandbox runs in the machine that was found."""

    sandbox: Sandbox
    machine_id: str
    slot: int


@dataclass(frozen=True)
class Plan:
    """What to do, in this order; each of these may be done twice."""

    remove: list[str] = field(default_factory=list)  # machines that nobody has
    halt: list[str] = field(default_factory=list)  # processes of machines that are on disk
    put_back: list[Sandbox] = field(default_factory=list)  # resumes that were cut short: paused as before
    give_back: list[Sandbox] = field(default_factory=list)  # likewise, of files alone: they are in the store
    lose: list[tuple[Sandbox, str]] = field(default_factory=list)  # and why
    adopt: list[Adopt] = field(default_factory=list)
    paused: list[Sandbox] = field(default_factory=list)

    @property
    def slots(self) -> set[int]:
        """Those in which machines run on."""
        return {action.slot for action in self.adopt}


def plan(rows: Iterable[Sandbox], found: Iterable[Found], *, base_uid: int) -> Plan:
    """`rows`: every sandbox that may have a machine, on disk or running. `found`: every machine with a trace.

    A machine's slot is told by the user that it runs as: slot n's is `base_uid` + n.
    """
    machines = {machine.id: machine for machine in found}
    result = Plan()
    kept: set[str] = set()
    for sandbox in rows:
        machine = machines.get(sandbox.machine or "")
        if sandbox.state is State.RUNNING:
            keeps = _running(result, sandbox, machine, base_uid)
        elif sandbox.state is State.STARTING and sandbox.hibernated is not None:
            result.give_back.append(sandbox)
            keeps = False
        elif machine is not None and machine.is_saved:
            keeps = _saved(result, sandbox, machine)
        else:
            reason = NOTHING_SAVED if sandbox.state is State.PAUSED else CUT_SHORT
            result.lose.append((sandbox, reason))
            keeps = False
        if keeps and machine is not None:
            kept.add(machine.id)
    result.remove.extend(sorted(set(machines) - kept))
    return result


def _running(result: Plan, sandbox: Sandbox, machine: Found | None, base_uid: int) -> bool:
    """Whether its machine stays."""
    if machine is None or machine.pid is None or machine.uid is None:
        result.lose.append((sandbox, ENDED))
        return False
    if machine.uid < base_uid:
        result.lose.append((sandbox, NO_SLOT))
        return False
    result.adopt.append(Adopt(sandbox, machine.id, machine.uid - base_uid))
    return True


def _saved(result: Plan, sandbox: Sandbox, machine: Found) -> bool:
    """A machine that is whole on disk. Its process has not run since it was saved: it is superfluous."""
    if machine.pid is not None:
        result.halt.append(machine.id)
    if sandbox.state is State.PAUSED:
        result.paused.append(sandbox)
    else:
        result.put_back.append(sandbox)
    return True

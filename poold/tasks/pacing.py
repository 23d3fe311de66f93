"""When a task's workspace is kept, and as what. No I/O.

After each commit, after so many steps, after so many minutes; and never so often that it costs more than a tenth of the
task's time, for its agent stands still meanwhile. Not before the agent has said its session: whoever went on from such
a moment would not know what was done, and do it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contract.tasks import Checkpointing
from poold.ledger.checkpoints import Checkpoint, chain
from poold.tasks.progress import Progress

SHARE = 9.0  # so many times as long as the last one took nothing is kept
BACK_OFF_S = 15.0  # after one that failed; longer each time
MOST_S = 600.0
MAX_CHAIN = 16  # of which one is whole: so many have to be read to go on
SMALL = 4 << 20  # changes that come to less are not worth a whole one


@dataclass(frozen=True)
class Marks:
    """How far an agent is."""

    seq: int = 0
    steps: int = 0
    commits: int = 0
    has_session: bool = True

    @classmethod
    def of(cls, known: Progress | Checkpoint | None) -> "Marks":
        if known is None:
            return cls()
        if isinstance(known, Progress):
            return cls(known.seq, known.steps, known.commits, known.has_session)
        return cls(known.guest_seq, known.steps, known.commits)


def due_s(kept: Marks, now: Marks, asked: Checkpointing, *, since_s: float) -> float | None:
    """In how many seconds it is time, if nothing happens before: 0 for now; None if something has to happen first.

    `since_s`: so long ago was the last one, or the agent's start.
    """
    if now.seq <= kept.seq or not now.has_session:
        return None
    if now.commits > kept.commits or (asked.steps and now.steps - kept.steps >= asked.steps):
        return 0.0
    return max(0.0, 60.0 * asked.minutes - since_s) if asked.minutes else None


def rest_s(took_s: float, failures: int) -> float:
    """How long nothing is kept after one that took so long."""
    return max(SHARE * took_s, min(MOST_S, BACK_OFF_S * failures))


def base_for(found: Sequence[Checkpoint], run: int) -> Checkpoint | None:
    """What the next one is to be a change of; None: it is to be whole, as the first one in a machine is."""
    links = chain(found)
    if not links or links[-1].run != run or len(links) >= MAX_CHAIN:
        return None
    changes = sum(each.bytes for each in links[1:])
    return links[-1] if changes <= max(SMALL, links[0].bytes) else None

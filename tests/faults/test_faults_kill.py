"""poold is killed again and again at random moments, under clients that do everything that clients can do.

`make test-faults` runs the same with more rounds. A failure names its seed; WARREN_FAULTS_SEED repeats its choices.
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.bench.host import Host, open_host
from tests.faults.rounds import Rounds
from tests.vm import traces

ROUNDS = int(os.environ.get("WARREN_FAULTS_ROUNDS", "6"))
LIMIT_S = float(os.environ.get("WARREN_FAULTS_LIMIT_S", "570"))
SEED = int(os.environ.get("WARREN_FAULTS_SEED", time.time_ns() % 1_000_000))
SLOTS = 7
FIRST = 3  # sandboxes
# Nobody else's: the tests of other rooms may run on this host at the same time.
BASE_UID = 290_000


@pytest.fixture
def host() -> Iterator[Host]:
    before = traces.host_network()
    with open_host(
        pool="minimal=0-1",
        POOLD_DEFAULT_IMAGE="minimal",
        POOLD_SLOTS=str(SLOTS),
        POOLD_BASE_UID=str(BASE_UID),
        POOLD_CGROUP=f"warren-faults-{os.getpid()}",
    ) as host:
        host.wait_until_serving()
        yield host
    assert traces.mentioning(host.state) == []
    assert traces.mentioning(host.socket.parent) == []
    assert traces.host_network() == before


def test_whenever_poold_is_killed_nothing_acknowledged_is_lost_and_nothing_is_left_over(host: Host) -> None:
    rounds = Rounds(host, SEED)
    print(f"seed {SEED}: WARREN_FAULTS_SEED={SEED} repeats it")
    for _ in range(FIRST):  # before the clock runs: the first machine of a shape takes its time
        rounds.crowd.create(rounds.api)
    began = time.monotonic()
    done = rounds.run(ROUNDS, LIMIT_S)
    rounds.finish()
    took_s = time.monotonic() - began
    crowd = rounds.crowd
    print(f"rounds={done}\nrounds_wanted={ROUNDS}\ntook_s={took_s:.0f}")
    print(f"sandboxes={len(crowd.known)}\nrequests_answered={crowd.answered}\nrequests_cut_off={crowd.cut_off}")
    assert done > 0
    assert crowd.answered > FIRST, "the clients did nothing"
    assert crowd.cut_off > done, "poold was killed when nothing was under way"

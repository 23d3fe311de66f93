"""A policy holds before its machine runs: no packet passes that the sandbox's own policy forbids, from the first on.

The machines try to get out without end, and did so when their snapshot was taken: the first thing that a clone does
after its claim is to go on with it. Each claim allows something else. What arrives is compared with what its policy
allows; what arrives while no sandbox is there belongs to none.
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.bench.host import IMAGES, Host, open_host
from tests.egress.attempts import Policy
from tests.egress.internet import Internet
from tests.egress.leaks import leaks
from tests.egress.restless import NAME, make_restless
from tests.egress.world import World
from tests.egress.zone import CLAIMS
from tests.vm.client import Api, until

COUNT = int(os.environ.get("WARREN_EGRESS_CLAIMS", "25"))
BASE_UID = 290_100
AT_ONCE = 3  # names that a claim allows; the others are tried as well
PORTS = ((80,), (443,), (22,), (80, 443))


@pytest.fixture(scope="module")
def restless(world: World, internet: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with machines that never rest."""
    images = make_restless(IMAGES, tmp_path_factory.mktemp("images"), CLAIMS)
    with open_host(
        pool=f"{NAME}=3-4",
        prefix=world.host.inside([]),
        POOLD_IMAGES=str(images),
        POOLD_DEFAULT_IMAGE=NAME,
        POOLD_SLOTS="8",
        POOLD_BASE_UID=str(BASE_UID),
    ) as host:
        host.wait_until_warm()
        yield host
        assert host.process.poll() is None, host.log()[-5000:]


def policies(count: int) -> Iterator[tuple[Policy, dict[str, str]]]:
    """One after the other: none allows what the one before allowed. With the addresses of what it allows, by name."""
    chance = random.Random(5)
    last: set[str] = set()
    for _ in range(count):
        chosen = dict(chance.sample([claim for claim in CLAIMS if claim[0] not in last], AT_ONCE))
        ports = chance.choice(PORTS)
        rules = [{"host": name, "ports": list(ports)} for name in chosen]
        reach = frozenset((address, port) for address in chosen.values() for port in ports)
        yield Policy({"allow": rules}, reach, frozenset(chosen)), chosen
        last = set(chosen)


def test_no_packet_passes_that_the_policy_of_its_own_claim_forbids(
    restless: Host, world: World, internet: Internet
) -> None:
    api = Api(restless, as_operator=True)
    nobody = Policy({})
    # The machines of the pool ran for a moment when their snapshot was made, and were allowed nothing.
    mark, hits, asked = 0, internet.web.mark(), len(internet.zone.asked)
    refused = 0
    mark = world.arrived.mark()
    for number, (policy, chosen) in enumerate(policies(COUNT)):
        until(lambda: api.share(NAME)["warm"] > 0)
        between = leaks(nobody, world.arrived.since(mark), internet.web.since(hits), internet.zone.asked[asked:])
        assert between == [], f"before claim {number}"
        mark, hits, asked = world.arrived.mark(), internet.web.mark(), len(internet.zone.asked)
        with api.sandbox(network=policy.network) as sandbox:
            until(lambda: any(packet.destination in chosen.values() for packet in world.arrived.since(mark)))
            rows = api.call("GET", f"{sandbox.path}/egress?limit=1000&verdict=refused").json["rows"]
            refused += len(rows)
            assert {row["name"] for row in rows if row["via"] != "dns"}.isdisjoint(chosen) or len(policy.reach) > 0
        passed = leaks(policy, world.arrived.since(mark), internet.web.since(hits), internet.zone.asked[asked:])
        assert passed == [], f"claim {number} allows {sorted(chosen)}"
        mark, hits, asked = world.arrived.mark(), internet.web.mark(), len(internet.zone.asked)
    assert refused >= COUNT, "the machines did not try"

"""A policy holds before its machine runs: no packet passes that the sandbox's own policy forbids, from the first on.

The machines try to get out without end, and did so when their snapshot was taken: the first thing that a clone does
after its claim is to go on with it. Each claim allows something else. What arrives is compared with what its policy
allows; what arrives while no sandbox is there belongs to none.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.bench.host import IMAGES, Host, open_host
from tests.egress.attempts import Policy
from tests.egress.capture import Packet
from tests.egress.conftest import BASE_UID
from tests.egress.internet import Internet
from tests.egress.leaks import leaks
from tests.egress.restless import NAME, make_restless
from tests.egress.world import World
from tests.egress.zone import CLAIMS
from tests.vm.client import Api, Sandbox, until

COUNT = int(os.environ.get("WARREN_EGRESS_CLAIMS", "12"))
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
        POOLD_BASE_UID=str(BASE_UID + 100),
    ) as host:
        host.wait_until_warm()
        yield host
        assert host.process.poll() is None, host.log()[-3000:]
        assert "cannot be written down" not in host.log(), host.log()[-3000:]


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


def has_arrived(world: World, mark: int, addresses: frozenset[str]) -> bool:
    """Something that is allowed got through: the machine runs, and it tries."""
    return any(packet.destination in addresses for packet in world.arrived.since(mark))


def has_rows(sandbox: Sandbox, packets: list[Packet]) -> bool:
    """Each connection that arrived is in the audit, and no other."""
    rows = sandbox.api.call("GET", f"{sandbox.path}/egress?limit=1000&verdict=allowed").json["rows"]
    told = Counter((row["address"], row["port"]) for row in rows)
    return told == Counter((packet.destination, packet.port) for packet in packets)


def test_no_packet_passes_that_the_policy_of_its_own_claim_forbids(restless: Host, world: World) -> None:
    api = Api(restless, as_operator=True)
    refused, mark = 0, world.arrived.mark()
    for number, (policy, chosen) in enumerate(policies(COUNT)):
        until(lambda: api.share(NAME)["warm"] > 0)
        assert leaks(Policy({}), world.arrived.since(mark), [], []) == [], f"before claim {number}"
        mark = world.arrived.mark()
        with api.sandbox(network=policy.network) as sandbox:
            until(partial(has_arrived, world, mark, frozenset(chosen.values())))
            refused += len(api.call("GET", f"{sandbox.path}/egress?limit=1000&verdict=refused").json["rows"])
        arrived = world.arrived.since(mark)
        assert leaks(policy, arrived, [], []) == [], f"claim {number} allows {sorted(chosen)}"
        until(partial(has_rows, sandbox, [packet for packet in arrived if packet.is_first and packet.port != 53]))
        mark = world.arrived.mark()
    assert refused >= COUNT, "the machines did not try"

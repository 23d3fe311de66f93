"""`warren attach` in a tmux, by both ways: at the sandbox's host with a ticket, and through a gateway."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bench.host import ROOT
from tests.cluster.cluster import GATEWAY_PORT, ME, Cluster, until
from tests.tmux import LikeATerminal, Pane, open_pane

GATEWAY = "g1"
BOOT_LIMIT_S = 240.0  # its image is not in the pool
DIRECT, THROUGH = "direct", "gateway"
OPTIONS = {DIRECT: (), THROUGH: ("--via-gateway",)}


@dataclass(frozen=True)
class Box:
    """A sandbox, seen by its owner through a gateway."""

    cluster: Cluster
    id: str

    def run(self, cmd: str | list[str]) -> dict[str, Any]:
        reply = self.cluster.call(GATEWAY, "POST", f"/v1/sandboxes/{self.id}/exec", {"cmd": cmd})
        assert reply.status == 200, reply
        done: dict[str, Any] = reply.json
        return done

    def sh(self, cmd: str) -> str:
        done = self.run(cmd)
        assert done["exit_code"] == 0, done
        said: str = done["stdout"].strip()
        return said


@pytest.fixture(scope="module")
def box(cluster: Cluster) -> Iterator[Box]:
    """One with an editor in it."""
    made = Box(cluster, cluster.create(GATEWAY, limit_s=BOOT_LIMIT_S, image="python")["id"])
    yield made
    cluster.call(GATEWAY, "DELETE", f"/v1/sandboxes/{made.id}")


def _terminals(cluster: Cluster, box: Box) -> int:
    """How many terminals of the sandbox the gateway has carried: its log has what came before an answer that it has."""
    asked = _logged(cluster, box, "get_sandbox")
    cluster.call(GATEWAY, "GET", f"/v1/sandboxes/{box.id}")
    until(lambda: _logged(cluster, box, "get_sandbox") > asked)
    return _logged(cluster, box, "terminal")


def _logged(cluster: Cluster, box: Box, operation: str) -> int:
    lines = cluster.log(GATEWAY).splitlines()
    return sum(f'"operation":"{operation}"' in line and box.id in line for line in lines)


@pytest.fixture(params=[DIRECT, THROUGH])
def pane(request: pytest.FixtureRequest, cluster: Cluster, box: Box, tmp_path: Path) -> Iterator[Pane]:
    """On the machine of a person who has a key and knows the gateway's CA. The gateway tells which way was taken."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("POOLD_", "WARREN_", "XDG_"))},
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "sdk" / "python"),
        "WARREN_URL": f"https://{cluster.net.addresses[GATEWAY]}:{GATEWAY_PORT}",
        "WARREN_API_KEY": cluster.key,
        "WARREN_CA": str(cluster.folder / "ca" / "ca.pem"),
    }
    before = _terminals(cluster, box)
    warren = [sys.executable, "-m", "warren.cli", "attach", *OPTIONS[request.param]]
    with open_pane(environment, cluster.net.inside(ME, warren)) as pane:
        yield pane
    assert (_terminals(cluster, box) > before) == (request.param == THROUGH)


class TestAttach(LikeATerminal):
    """By both ways the same."""

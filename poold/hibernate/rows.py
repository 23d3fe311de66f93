"""A sandbox as its manifest tells of it, so that a host that never heard of it can bring it back. No I/O."""

from collections.abc import Mapping
from typing import Any

import orjson

from contract.errors import BadField
from contract.models import HIBERNATE_KINDS, MACHINE, Rules, Sandbox, Shape
from contract.network import Network, Within
from contract.states import State
from contract.workspaces import Workspace
from poold.hibernate.errors import Damaged

TIMES = ("expires_ms", "started_ms", "paused_ms")


def encode(sandbox: Sandbox) -> dict[str, Any]:
    """All that the ledger knows of it and that is not in the manifest anyway."""
    told = {
        "owner": sandbox.owner,
        "shape": sandbox.shape,
        "metadata": sandbox.metadata,
        "rules": _rules(sandbox.rules),
        "public_ports": sandbox.public_ports,
        "network": sandbox.network.view(),
        "within": [each.view() for each in sandbox.within],
        "workspace": None if sandbox.workspace is None else sandbox.workspace.encode(),
        "created_ms": sandbox.created_ms,
        **{name: getattr(sandbox, name) for name in TIMES},
    }
    facts: dict[str, Any] = orjson.loads(orjson.dumps(told))
    return facts


def _rules(rules: Rules) -> dict[str, Any]:
    """What older hosts do not know is told only where it matters."""
    return {name: value for name, value in vars(rules).items() if (name, value) != ("hibernate_kind", MACHINE)}


def decode(key: str, facts: Mapping[str, Any], **more: Any) -> Sandbox:
    """The sandbox, hibernated. Raises `Damaged` if it makes no sense."""
    try:
        times: dict[str, Any] = {name: None if facts[name] is None else int(facts[name]) for name in TIMES}
        if facts["rules"].get("hibernate_kind", MACHINE) not in HIBERNATE_KINDS:
            raise ValueError(f"hibernate_kind {facts['rules']['hibernate_kind']!r:.80} is none")
        return Sandbox(
            created_ms=int(facts["created_ms"]),
            state=State.HIBERNATED,
            owner=_text(facts["owner"]),
            shape=Shape(**facts["shape"]),
            metadata={_text(name): _text(value) for name, value in facts["metadata"].items()},
            rules=Rules(**facts["rules"]),
            public_ports=tuple(int(port) for port in facts["public_ports"]),
            network=Network.decode(facts["network"]),
            within=tuple(Within(each["level"], Network.decode(each["network"], "within")) for each in facts["within"]),
            workspace=None if facts.get("workspace") is None else Workspace(**facts["workspace"]),
            **times,
            **more,
        )
    except (ValueError, KeyError, TypeError, AttributeError, BadField) as error:
        raise Damaged(key, f"what it says of its sandbox makes no sense ({type(error).__name__}: {error})") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not a text")
    return value

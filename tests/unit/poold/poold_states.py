"""What a sandbox may be after something was tried with it, and what it uses then."""

from typing import Any

from tests.unit.poold.poold_host import MACHINE_MB, SLOTS, Host, Reply


async def pause(host: Host, sandbox: str) -> Reply:
    return await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")


async def resume(host: Host, sandbox: str) -> Reply:
    return await host.ask("POST", f"/v1/sandboxes/{sandbox}/resume")


async def view(host: Host, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json
    return found


def in_use(host: Host) -> tuple[int, int, int]:
    """Slots, memory and machines."""
    places = host.pool.places
    return SLOTS - host.slots.free, places.memory_budget_mb - places.memory_left_mb, len(host.engine.machines)


ONE = (1, MACHINE_MB, 1)
NOTHING = (0, 0, 0)


async def assert_runs(host: Host, sandbox: str) -> None:
    """It runs as if nothing had been tried."""
    assert await host.state(sandbox) == "running"
    assert (await host.exec(sandbox, "echo on")).json["stdout"] == "on\n"
    assert (host.engine.saved, host.engine.frozen, in_use(host)) == (set(), set(), ONE)


async def assert_paused(host: Host, sandbox: str) -> None:
    """It is on disk, uses nothing else, and comes back."""
    assert await host.state(sandbox) == "paused"
    assert (len(host.engine.saved), host.engine.frozen, in_use(host)) == (1, set(), NOTHING)
    assert (await resume(host, sandbox)).json["state"] == "running"
    await assert_runs(host, sandbox)


async def assert_failed(host: Host, sandbox: str, reason: str) -> None:
    """It is over, with the reason, and everything is given back."""
    found = await view(host, sandbox)
    assert (found["state"], found["next"]) == ("error", None)
    assert reason in found["reason"]
    assert (host.engine.saved, in_use(host)) == (set(), NOTHING)
    assert (await host.exec(sandbox, "echo")).code == "machine_died"

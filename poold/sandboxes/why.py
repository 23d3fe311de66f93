"""Why a sandbox cannot be used, and why something happened to it by itself: what callers are told."""

from contract.errors import WarrenError, WrongState
from contract.models import Sandbox
from contract.states import State
from poold.errors import Exists, MachineDied, SandboxStopped

STOPPING = "this host is being stopped"
DRAINING = "this host is being emptied by its operator"
WHY = {"timeout": "its time was up", "idle": "it was idle", "paused": "it was paused for too long"}


def exists(sandbox: Sandbox) -> Exists:
    return Exists(
        f"sandbox {sandbox.id} was created before, and is {sandbox.state}", sandbox=sandbox.id, state=sandbox.state
    )


def not_running(sandbox: Sandbox) -> WarrenError:
    if sandbox.state is State.ERROR:
        return MachineDied(f"sandbox {sandbox.id} failed: {sandbox.reason}", state=sandbox.state)
    return WrongState(f"sandbox {sandbox.id} is {sandbox.state}, not running", state=sandbox.state)


def stopped(sandbox_id: str, reason: str) -> SandboxStopped:
    return SandboxStopped(f"sandbox {sandbox_id} was stopped: {reason}")

"""What callers change about a sandbox without touching its machine: its time, its ports, its network."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from contract.models import Caller, Sandbox
from contract.network import Network
from poold.ledger import sandboxes
from poold.sandboxes.means import Means
from poold.sandboxes.network import must_be_enforced

BY_ITSELF = Caller()


class Settings(ABC):
    """Part of `Sandboxes`, which says how a change is written down."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self.now_ms = means.sources.now_ms

    @abstractmethod
    async def _change(self, sandbox_id: str, change: Callable[..., Sandbox], caller: Caller) -> Sandbox:
        """Write something about the sandbox down, in its turn. A caller that leaves does not cut that short."""

    async def set_timeout(
        self, sandbox_id: str, timeout_sec: int, caller: Caller = BY_ITSELF, on_timeout: str | None = None
    ) -> Sandbox:
        """Move the sandbox's deadline to `timeout_sec` from now; `on_timeout`: and let something else happen then."""
        at_ms = self.now_ms() + 1000 * timeout_sec
        change = partial(sandboxes.set_expiry, expires_ms=at_ms, timeout_sec=timeout_sec, on_timeout=on_timeout)
        return await self._change(sandbox_id, change, caller)

    async def set_public(self, sandbox_id: str, port: int, public: bool, caller: Caller = BY_ITSELF) -> Sandbox:
        """Let everybody reach the port through a gateway, or only the owner."""
        return await self._change(sandbox_id, partial(sandboxes.set_public, port=port, public=public), caller)

    async def set_network(self, sandbox_id: str, network: Network, caller: Caller = BY_ITSELF) -> Sandbox:
        """Give the sandbox another policy. In force when this returns: what it no longer allows has been cut."""
        if not self._means.pool.engine.isolates:
            must_be_enforced(network)
        return await self._change(sandbox_id, partial(sandboxes.set_network, network=network), caller)

"""What sandboxes do by themselves: what a request says, over what its owner's rules say, over what the host says."""

from contract.errors import BadField
from contract.models import Caller, CreateSandbox, Rules, RulesAsked
from poold.ledger import rules
from poold.lifetimes import finish
from poold.sandboxes.means import Means

KNOWN_OWNERS = 10_000  # whose rules are kept in memory


class OwnersRules:
    """The rules of every owner: in the ledger, and in memory those that were asked for lately."""

    def __init__(self, means: Means, usual: Rules) -> None:
        self._means = means
        self._usual = usual
        self._known: dict[str, RulesAsked] = {}

    async def get(self, owner: str) -> RulesAsked:
        """What `owner`'s sandboxes do by themselves unless their request says otherwise."""
        return await self._means.ledger.read(lambda db: rules.get(db, owner))

    async def put(self, owner: str, asked: RulesAsked, caller: Caller) -> None:
        """Replace the owner's rules. Once they are written they count, also if the caller leaves."""
        await finish(self._put(owner, asked, caller))

    async def _put(self, owner: str, asked: RulesAsked, caller: Caller) -> None:
        now_ms = self._means.sources.now_ms()
        await self._means.ledger.write(lambda db: rules.put(db, owner, asked, now_ms=now_ms, request=caller.request))
        self._known[owner] = asked

    async def of(self, request: CreateSandbox, caller: Caller) -> Rules:
        """Those of the sandbox that `request` asks for."""
        of_owner = self._known.get(caller.owner)
        if of_owner is None:  # a claim waits for no file the second time
            if len(self._known) >= KNOWN_OWNERS:
                self._known.clear()
            # They may have been replaced while they were read: what `put` knows is newer.
            of_owner = self._known.setdefault(caller.owner, await self.get(caller.owner))
        wanted = request.rules.over(of_owner.over(self._usual))
        engine = self._means.pool.engine
        if not engine.can_save and (wanted.on_timeout == "pause" or wanted.idle_sec is not None):
            field = "idle_sec" if wanted.on_timeout != "pause" else "on_timeout"
            raise BadField(field, getattr(wanted, field), f"the {engine.name} engine of this host cannot pause")
        return wanted

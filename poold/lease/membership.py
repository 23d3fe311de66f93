"""What the rooms above know of this host's place in its cluster."""

from dataclasses import dataclass
from typing import Any

from poold.lease.keeper import Keeper
from poold.lease.members import Members


@dataclass(frozen=True)
class Membership:
    """A host that is alone has no lease, and may do everything."""

    keeper: Keeper | None = None
    members: Members | None = None

    @property
    def is_held(self) -> bool:
        return self.keeper is None or self.keeper.is_held

    @property
    def is_away(self) -> bool:
        """What this host had is another's."""
        return self.keeper is not None and self.keeper.is_away

    @property
    def is_alone(self) -> bool:
        return self.members is None

    def open_lines(self) -> frozenset[str]:
        """Hosts of which a ledger was lost, as seen from here, that nobody has carried on yet."""
        return frozenset() if self.members is None else self.members.open_lines()

    def holders(self) -> frozenset[str]:
        """Hosts that hold a lease, or did and nobody has taken it: they have a ledger of their own."""
        return frozenset() if self.members is None else self.members.holders()

    def check(self) -> None:
        """Raise `Fenced` if this host must not do anything now."""
        if self.keeper is not None:
            self.keeper.check()

    def view(self) -> dict[str, Any]:
        return {
            "lease": None if self.keeper is None else self.keeper.view(),
            "hosts": [] if self.members is None else self.members.view(),
        }

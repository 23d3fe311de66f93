"""What a sandbox may reach on this host: from the policies of four levels to what its proxy goes by. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.errors import BadField
from contract.models import Caller, CreateSandbox
from contract.network import HostRule, Limits, Mode, NetRule, Network, Within
from poold.egress.policy import Level, Policy, level


@dataclass(frozen=True)
class HostNetwork:
    """What this host allows at most, and what `registries` stands for on it."""

    most: Mode = Mode.OPEN
    limits: Limits = field(default_factory=Limits)
    registries: tuple[HostRule, ...] = ()
    # What may have a private address. A mirror of packages may, and what the operator names.
    private_hosts: tuple[HostRule, ...] = ()
    private_nets: tuple[NetRule, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # settings for clients in guests

    @property
    def level(self) -> Level:
        if self.most is Mode.DENY:
            return Level("host")
        own = level("host", Network(self.most), self.registries)
        return Level("host", own.is_open, self.private_hosts, self.private_nets, own.registries)

    def policy(self, network: Network, within: tuple[Within, ...]) -> Policy:
        """What a proxy goes by. Every level has to allow what is to be allowed."""
        limits = self.limits
        for each in (*(outer.network for outer in within), network):
            limits = each.limits.within(limits)
        return Policy(
            levels=(
                self.level,
                *(level(outer.level, outer.network, self.registries) for outer in within),
                level("sandbox", network, self.registries),
            ),
            private_hosts=(*self.private_hosts, *self.registries),
            private_nets=self.private_nets,
            limits=limits,
            hold_s=network.hold_sec,
        )

    def view(self) -> Network:
        """This host's level as the others are told."""
        return Network(self.most, self.private_hosts, self.private_nets)


def asked_network(
    request: CreateSandbox, caller: Caller, of_image: Network | None, *, is_enforced: bool
) -> tuple[Network, tuple[Within, ...]]:
    """The policy of a new sandbox, and those that it never gets out of.

    Without a word in the request it is the key's, else the image's, else `deny`.
    """
    within = tuple(
        Within(name, network) for name, network in (("key", caller.network), ("image", of_image)) if network is not None
    )
    network = request.network or (within[0].network if within else Network())
    if not is_enforced:
        must_be_enforced(network)
    return network, within


def must_be_enforced(network: Network) -> None:
    """For an engine whose machines are in no slot: what cannot be kept is not promised."""
    if network.policy is not Mode.DENY:
        problem = "this host's engine isolates nothing, and keeps no policy but deny"
        raise BadField("network", network.policy.value, problem)

"""To whom a host's line goes, and whether there is room for it. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.hosts import Host
from contract.models import Sandbox
from contract.ring import ranked
from contract.states import LIVE


@dataclass(frozen=True)
class Need:
    """What has to fit: machines that run, and images of all that are there."""

    machines: int
    memory_mb: int
    images: frozenset[str]

    @classmethod
    def of(cls, here: Iterable[Sandbox], *, overhead_mb: int) -> "Need":
        everything = list(here)
        running = [sandbox for sandbox in everything if sandbox.state in LIVE]
        memory_mb = sum(sandbox.shape.memory_mb + overhead_mb for sandbox in running)
        return cls(len(running), memory_mb, frozenset(sandbox.shape.image for sandbox in everything))


def heir(me: str, living: Mapping[str, Host], need: Need) -> Host | None:
    """Who is to have the line of `me`: one where all of it fits, with most of its room left; else who lacks least."""
    others = {name: host for name, host in living.items() if name != me and not host.draining}
    ranking = ranked(me, {name: host.weight for name, host in others.items()})
    by_room = sorted(
        others.values(),
        key=lambda host: (lack(host, need) is not None, not host.ready, -host.room.left, ranking.index(host.name)),
    )
    return by_room[0] if by_room else None


def lack(host: Host, need: Need) -> str | None:
    """What keeps `host` from running all of it, if anything does."""
    if need.machines and not host.ready:
        return f"{host.name} takes nothing new now"
    if need.machines > host.slots.free:
        return f"{host.name} has room for {host.slots.free} machines, and {need.machines} run here"
    if need.memory_mb > host.memory_mb.free:
        return f"{host.name} has {host.memory_mb.free} MB for machines, and those that run here need {need.memory_mb}"
    missing = sorted(need.images - {shape.image for shape in host.images})
    if missing:
        return f"{host.name} has no image {missing[0]}"
    return None

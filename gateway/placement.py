"""Which hosts may take a sandbox, and as what. Pure: from the hosts' records and what is asked for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from contract.errors import BadField, CapacityError
from contract.hosts import Host
from contract.models import CreateSandbox, Shape, ShapeLimits
from contract.ring import Room

# No host makes larger machines than this; what each one makes is in its record.
ANY_SIZE = ShapeLimits(vcpus=255, memory_mb=1 << 30, disk_mb=1 << 30)


@dataclass(frozen=True)
class Taken:
    """What this gateway has placed on a host since its last record."""

    slots: int = 0
    memory_mb: int = 0

    def add(self, shape: Shape) -> "Taken":
        return Taken(self.slots + 1, self.memory_mb + shape.memory_mb)


@dataclass(frozen=True)
class Offer:
    """A host that may take the sandbox: with how much room, and made of what."""

    room: Room
    shape: Shape
    is_draining: bool = False  # it will never take it


def limits(hosts: Iterable[Host]) -> ShapeLimits:
    """The largest machine that any of the hosts makes."""
    known = [host for host in hosts if host.vcpus and host.max_memory_mb and host.max_disk_mb]
    if not known:
        return ANY_SIZE
    return ShapeLimits(
        vcpus=max(host.vcpus for host in known),
        memory_mb=max(host.max_memory_mb for host in known),
        disk_mb=max(host.max_disk_mb for host in known),
    )


def offers(wanted: CreateSandbox, alive: Mapping[str, Host], taken: Mapping[str, Taken]) -> dict[str, Offer]:
    """What the hosts that live have for it."""
    image = wanted.image or default_image(alive.values())
    found = {}
    for name, host in alive.items():
        shape = shape_on(host, image, wanted)
        if shape is not None:
            found[name] = Offer(room_for(host, shape, taken.get(name, Taken())), shape, host.draining)
    return found


def default_image(hosts: Iterable[Host]) -> str:
    """The one that most hosts have for requests that name none."""
    named = Counter(host.default_image for host in hosts if host.default_image)
    return min(named, key=lambda image: (-named[image], image), default="")


def shape_on(host: Host, image: str, wanted: CreateSandbox) -> Shape | None:
    """What the host would make for it, or None if it cannot."""
    usual = next((shape for shape in host.images if shape.image == image), None)
    if usual is None:
        return None
    asked = {name: getattr(wanted, name) for name in ("vcpus", "memory_mb", "disk_mb")}
    shape = replace(usual, **{name: size for name, size in asked.items() if size is not None})
    most = limits([host])
    fits = shape.vcpus <= most.vcpus and shape.memory_mb <= most.memory_mb and shape.disk_mb <= most.disk_mb
    return shape if fits else None


def room_for(host: Host, shape: Shape, taken: Taken) -> Room:
    """What is left on the host after what was placed there since its record; none if the machine does not fit."""
    slots = Room(host.slots.all, max(0, host.slots.free - taken.slots))
    memory = Room(host.memory_mb.all, max(0, host.memory_mb.free - taken.memory_mb))
    room = replace(host, slots=slots, memory_mb=memory).room
    return room if memory.free >= shape.memory_mb else Room(room.all, 0)


def no_room(wanted: CreateSandbox, known: Iterable[Host], why: str | None = None) -> Exception:
    """Why nobody takes it: the caller's fault if no host has such an image, else it may be different soon."""
    images = sorted({shape.image for host in known for shape in host.images})
    if wanted.image is not None and images and wanted.image not in images:
        return BadField("image", wanted.image, f"must be one of {', '.join(images)}")
    return CapacityError(why or "no host that lives has room for this sandbox now", retry_after_s=2)

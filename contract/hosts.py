"""What a host says of itself: in its heartbeat to the registry, and to a gateway that asks."""

import ipaddress
import re
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from contract.errors import BadField
from contract.fields import Fields
from contract.models import Shape
from contract.ring import Room

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
MAX_SIZE = 1 << 50
MAX_IMAGES = 1000
# Checked before urlsplit sees it, which drops line ends and other characters that must not reach a request.
ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


@dataclass(frozen=True)
class Host:
    """A host's record. `beat` grows with every heartbeat: who reads it needs no clock in common with the host."""

    name: str
    address: str  # http://… on loopback, https://… elsewhere; what gateways dial
    beat: int = 0
    slots: Room = field(default_factory=lambda: Room(0, 0))
    memory_mb: Room = field(default_factory=lambda: Room(0, 0))
    vcpus: int = 0  # of the largest machine that it makes
    max_memory_mb: int = 0
    max_disk_mb: int = 0
    images: tuple[Shape, ...] = ()  # as what a machine of each image is made of, unless a request says otherwise
    default_image: str = ""
    draining: bool = False
    ready: bool = True  # it takes new sandboxes: there is memory and disk left, and it is not draining
    version: str = ""

    @property
    def weight(self) -> float:
        """How many ids are its own, beside other hosts: as many as it has room for."""
        return float(max(self.memory_mb.all, 1))

    @property
    def room(self) -> Room:
        """What is left for new machines: slots or memory, whichever is scarcer. None while it takes no new ones."""
        if self.draining or not self.ready:
            return Room(self.memory_mb.all, 0)
        return min(self.slots, self.memory_mb, key=lambda room: room.left)

    def view(self) -> dict[str, Any]:
        return asdict(self)

    def encode(self) -> bytes:
        return orjson.dumps(self.view())

    @classmethod
    def decode(cls, data: bytes) -> "Host":
        """What `encode` wrote, by this version or a later one: fields that we do not know are of no interest."""
        fields = Fields.parse(data)
        return cls(
            name=fields.text("name", max_chars=63, pattern=NAME.pattern),
            address=host_address(fields.text("address", max_chars=300)),
            beat=fields.integer("beat", low=0, high=MAX_SIZE, default=0),
            slots=_room(fields, "slots"),
            memory_mb=_room(fields, "memory_mb"),
            vcpus=fields.integer("vcpus", low=0, high=MAX_SIZE, default=0),
            max_memory_mb=fields.integer("max_memory_mb", low=0, high=MAX_SIZE, default=0),
            max_disk_mb=fields.integer("max_disk_mb", low=0, high=MAX_SIZE, default=0),
            images=_images(fields),
            default_image=fields.text("default_image", max_chars=64, default=""),
            draining=fields.flag("draining", default=False),
            ready=fields.flag("ready", default=True),
            version=fields.text("version", max_chars=64, default=""),
        )


def host_address(text: str, name: str = "address") -> str:
    """`text`, if gateways may send tickets there: https anywhere, plain http only on loopback."""
    try:
        url = urlsplit(text if ADDRESS.fullmatch(text) else "")
        port, where = url.port, url.hostname
    except ValueError:
        port, where = None, None
    if not where or not port:
        raise BadField(name, text, "must be https://ADDRESS:PORT, or http://… on loopback")
    if url.scheme == "http" and not is_loopback(where):
        raise BadField(name, text, "plain http is for loopback only")
    return text


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _images(fields: Fields) -> tuple[Shape, ...]:
    shapes = []
    for each in fields.inner_list("images", max_count=MAX_IMAGES):
        sizes = {name: each.integer(name, low=1, high=MAX_SIZE) for name in ("vcpus", "memory_mb", "disk_mb")}
        shapes.append(Shape(each.text("image", max_chars=64), **sizes))
    return tuple(shapes)


def _room(fields: Fields, name: str) -> Room:
    inner = fields.inner(name)
    every = inner.integer("all", low=0, high=MAX_SIZE, default=0)
    free = inner.integer("free", low=0, high=MAX_SIZE, default=0)
    return Room(every, min(free, every))  # who claims to have more than all must not be everybody's first choice

"""What a machine is made of, written down beside it: what a later daemon must know to save and to load it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.models import Shape
from poold.engines.qemu import argv
from poold.errors import EngineError

FILE = "machine.json"


@dataclass(frozen=True)
class Made:
    """The parts of a machine. The last three say which QEMU can load what this one saved."""

    shape: Shape
    image_key: str
    qemu: str  # as it tells its version
    accel: str
    layout: str  # a hash of the hardware

    @classmethod
    def now(cls, shape: Shape, image_key: str, *, qemu: str, accel: argv.Accel) -> "Made":
        """As a machine would be made by this daemon."""
        layout = hashlib.sha256("\n".join(hardware(accel, shape)).encode()).hexdigest()[:16]
        return cls(shape, image_key, qemu, accel.name, layout)

    @property
    def memory_bytes(self) -> int:
        return self.shape.memory_mb << 20

    def write(self, folder: Path) -> None:
        (folder / FILE).write_bytes(orjson.dumps(self))

    def check_loads_under(self, now: "Made", machine_id: str) -> None:
        """Raise `EngineError` unless the QEMU that makes machines like `now` understands what this one saved."""
        for what, then, today in (
            ("QEMU", self.qemu, now.qemu),
            ("the accelerator", self.accel, now.accel),
            ("the hardware layout", self.layout, now.layout),
        ):
            if then != today:
                hint = f"it was saved under {what} {then!r} and this host has {today!r}; with the former it loads again"
                raise EngineError("loading", machine_id, hint=hint)


def read(folder: Path) -> Made:
    """What the machine in `folder` is made of. Raises `EngineError` if that is not known."""
    path = folder / FILE
    try:
        facts = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError("reading", str(path), hint=f"{type(error).__name__}: {error}") from error
    return from_facts(facts, str(path))


def from_facts(facts: Any, subject: str) -> Made:
    """As `read`, of what was read already."""
    try:
        shape = facts["shape"]
        sizes = [int(shape[name]) for name in ("vcpus", "memory_mb", "disk_mb")]
        texts = [str(facts[name]) for name in ("image_key", "qemu", "accel", "layout")]
        return Made(Shape(str(shape["image"]), *sizes), *texts)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError("reading", subject, hint=f"{type(error).__name__}: {error}") from error


def hardware(accel: argv.Accel, shape: Shape) -> list[str]:
    """The hardware of a machine, without the open files of any one."""
    return argv.hardware(accel, shape, argv.Files(0, 0, 0, 0, 0), share="off")

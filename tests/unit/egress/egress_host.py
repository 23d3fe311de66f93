"""A host with clients that are set up, and what is read from it."""

from dataclasses import dataclass, field
from pathlib import Path

from poold.egress.registries import Registries, read_registries

SECRET = "s3cret"


@dataclass
class FakeHost:
    """A host's files in a folder, and its environment."""

    root: Path
    environ: dict[str, str] = field(default_factory=lambda: {"HOME": "/home/op"})

    def write(self, path: str, text: str | bytes) -> None:
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(text.encode() if isinstance(text, str) else text)

    def read(self, *more: str) -> Registries:
        found = read_registries(self.environ, self.root, more=more)
        said = repr(found)
        assert SECRET not in said
        assert all(text.isascii() for text in (*found.files.values(), *found.env.values()))
        return found


def rules(found: Registries) -> list[str]:
    return [str(rule) for rule in found.hosts]

"""Where in the store a workspace is. No I/O."""

from dataclasses import dataclass

DIGITS = 12  # of a version: keys come by name


@dataclass(frozen=True)
class Place:
    """One workspace, or one template. `mark` is the object that says that there is one."""

    owner: str | None  # None: a template
    name: str

    @property
    def prefix(self) -> str:
        return f"{_above(self.owner)}{self.name}/"

    @property
    def mark(self) -> str:
        return f"{marks_of(self.owner)}{self.name}"

    @property
    def versions(self) -> str:
        return f"{self.prefix}versions/"

    @property
    def gone(self) -> str:
        return f"{self.prefix}gone/"

    def version(self, number: int) -> str:
        return f"{self.versions}{number:0{DIGITS}d}.json"

    def gone_version(self, number: int) -> str:
        return f"{self.gone}{number:0{DIGITS}d}.json"

    def pack(self, at_ms: int, sha256: str) -> str:
        """Behind `prefix`, like all that manifests name."""
        return f"packs/{at_ms:013d}-{sha256}.tar.zst"

    def listing(self, at_ms: int, sha256: str) -> str:
        return f"listings/{at_ms:013d}-{sha256}.json.zst"

    def __str__(self) -> str:
        return f"template {self.name!r}" if self.owner is None else f"workspace {self.name!r}"


def of_owner(owner: str, name: str) -> Place:
    return Place(owner, name)


def of_template(name: str) -> Place:
    return Place(None, name)


def marks_of(owner: str | None) -> str:
    """What the marks of all workspaces of an owner begin with, or those of all templates."""
    return f"{_above(owner)}@names/"


def _above(owner: str | None) -> str:
    return "templates/" if owner is None else f"workspaces/{owner}/"


def number_of(key: str) -> int | None:
    """The version of a key; None: what no version has written."""
    name, _, ending = key.rpartition("/")[2].partition(".")
    return int(name) if ending == "json" and len(name) == DIGITS and name.isascii() and name.isdigit() else None


def made_ms(key: str) -> int | None:
    """When an object of this key was begun."""
    text = key.rpartition("/")[2].partition("-")[0]
    return int(text) if len(text) == 13 and text.isascii() and text.isdigit() else None

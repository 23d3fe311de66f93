"""What one version is made of, as JSON in the store. No I/O. It is read as the word of a stranger."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from contract.workspaces import MAX_VERSION, Summary, Version
from poold.workspaces.errors import Damaged
from poold.workspaces.places import Place

FORMAT = 1
PACK = re.compile(r"packs/[0-9]{13}-([0-9a-f]{64})\.tar\.zst")
LISTING = re.compile(r"listings/[0-9]{13}-([0-9a-f]{64})\.json\.zst")
MAX_PACKS = 64
MAX_SUM = 1 << 53


@dataclass(frozen=True)
class Object:
    """An object beside the manifest, named by its hash."""

    key: str
    bytes: int

    @property
    def sha256(self) -> str:
        return self.key.partition("-")[2].partition(".")[0]


@dataclass(frozen=True)
class Manifest:
    """One version of a workspace or of a template."""

    cluster: str
    owner: str | None
    name: str
    version: int
    parent: int | None
    created_ms: int
    size_bytes: int
    files: int
    packs: tuple[Object, ...]
    listing: Object
    sandbox: str | None = None
    task: str | None = None
    restored_from: int | None = None
    template: str | None = None
    release: str | None = None  # of Warren that a template came with; None: it is the operator's
    source: str | None = None  # the hash of what that was made from

    @property
    def objects(self) -> tuple[Object, ...]:
        return (*self.packs, self.listing)

    def version_view(self) -> dict[str, Any]:
        names = [name for name in Version.__dataclass_fields__ if name != "problem"]
        return asdict(Version(**{name: getattr(self, name) for name in names}))

    def summary(self) -> dict[str, Any]:
        return asdict(Summary(self.name, self.version, self.size_bytes, self.files, self.created_ms))

    def numbered(self, version: int) -> "Manifest":
        return replace(self, version=version)


def encode(manifest: Manifest) -> bytes:
    return orjson.dumps({"format": FORMAT, **asdict(manifest)}, option=orjson.OPT_SORT_KEYS)


def decode(key: str, data: bytes, place: Place, version: int, cluster: str) -> Manifest:
    """Raises `Damaged` if it makes no sense, or is of another cluster, owner, name, number or format."""
    try:
        facts = orjson.loads(data)
        if facts["format"] != FORMAT:
            raise Damaged(key, f"it has format {facts['format']!r} and this poold knows {FORMAT}")
        found = _manifest(facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(key, f"it makes no sense ({type(error).__name__}: {error})") from error
    said, ours = (found.owner, found.name, found.version), (place.owner, place.name, version)
    if said != ours:
        raise Damaged(key, f"it says that it is version {found.version} of {Place(found.owner, found.name)}")
    if found.cluster != cluster:
        raise Damaged(key, f"it is of the cluster {found.cluster} and this host of {cluster}")
    return found


def _manifest(facts: Mapping[str, Any]) -> Manifest:
    packs = tuple(_object(PACK, each) for each in _listed(facts["packs"]))
    return Manifest(
        cluster=_text(facts["cluster"]),
        owner=_text_or_none(facts["owner"]),
        name=_text(facts["name"]),
        version=_number(facts["version"], MAX_VERSION),
        parent=_number_or_none(facts["parent"]),
        created_ms=_number(facts["created_ms"], MAX_SUM),
        size_bytes=_number(facts["size_bytes"], MAX_SUM),
        files=_number(facts["files"], MAX_SUM),
        packs=packs,
        listing=_object(LISTING, facts["listing"]),
        restored_from=_number_or_none(facts["restored_from"]),
        **{name: _text_or_none(facts[name]) for name in ("sandbox", "task", "template", "release", "source")},
    )


def _object(form: re.Pattern[str], facts: Mapping[str, Any]) -> Object:
    key = _text(facts["key"])
    if form.fullmatch(key) is None:
        raise ValueError(f"{key!r:.80} is not like {form.pattern}")
    return Object(key, _number(facts["bytes"], MAX_SUM))


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_PACKS:
        raise ValueError(f"{value!r:.80} is not a list of at most {MAX_PACKS}")
    return value


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{value!r:.80} is not a number up to {most}")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value, MAX_VERSION)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(f"{value!r:.80} is not a short text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)

"""What a hibernated machine is made of, as JSON in the store. No I/O.

A manifest is written last: what it names is there as a whole. It is read as the word of a stranger: names of parts
lead nowhere but beside it, and numbers are bounded before anything is made of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson

from contract.models import FILES, MACHINE
from poold.hibernate.errors import Damaged, NotOurs

FORMAT = 1
FILES_FORMAT = 2  # of files alone: a host that does not know it refuses it
FILE = "manifest"
PART = re.compile(r"[a-z]{1,16}-[0-9]{5}")
ID = re.compile(r"[a-z]{2}-[a-z0-9]{1,32}")  # of a sandbox and of a machine, whose folder has this name
AT = re.compile(r"[0-9a-f]{16}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_PART = 16 << 20  # bytes of one object
MAX_RAW = 8 << 20  # of a frame, before it was compressed
MAX_BYTES = 1 << 44  # of a file

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """Some ranges of a file, compressed by themselves."""

    bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class Part:
    """An object: frames, one after the other."""

    name: str  # beside the manifest
    sha256: str
    frames: tuple[Frame, ...]

    @property
    def bytes(self) -> int:
        return sum(frame.bytes for frame in self.frames)


@dataclass(frozen=True)
class File:
    """A sparse file: where its parts say nothing it is zeros."""

    bytes: int
    sha256: str  # of all frames as they are before they are compressed
    parts: tuple[Part, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Manifest:
    """What a machine is made of, for whom, and which hosts can bring it back."""

    cluster: str
    sandbox: str
    machine: str
    generation: int
    at_ms: int
    engine: str
    facts: Mapping[str, Any]  # as the engine told them
    row: Mapping[str, Any]  # the sandbox, as `rows` tells of it
    golden: str | None  # the name of the memory that it is a difference of; of files alone there is none
    files: Mapping[str, File]

    @property
    def kind(self) -> str:
        return MACHINE if self.golden is not None else FILES

    @property
    def stored_bytes(self) -> int:
        return sum(file.stored_bytes for file in self.files.values())


@dataclass(frozen=True)
class Golden:
    """A memory that machines are differences of. Its parts are in the folder `at` beside this."""

    at: str
    file: File


def encode(what: Manifest | Golden) -> bytes:
    is_of_files = isinstance(what, Manifest) and what.kind == FILES
    told = {"format": FILES_FORMAT if is_of_files else FORMAT, **asdict(what)}
    return orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


def decode_manifest(key: str, data: bytes) -> Manifest:
    """Raises `Damaged` if it makes no sense, `NotOurs` if it is of another version."""
    return _decoded(key, data, _manifest, (FORMAT, FILES_FORMAT))


def decode_golden(key: str, data: bytes) -> Golden:
    """As `decode_manifest`, of a golden memory."""
    return _decoded(key, data, lambda facts: Golden(_matching(AT, facts["at"]), _file(facts["file"])))


def _decoded(key: str, data: bytes, read: Callable[[Any], T], known: tuple[int, ...] = (FORMAT,)) -> T:
    try:
        facts = orjson.loads(data)
        version = facts["format"]
        if version not in known or isinstance(version, bool):
            raise NotOurs(key, f"it has format {version!r} and this poold knows {', '.join(map(str, known))}")
        return read(facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(key, f"it makes no sense ({type(error).__name__}: {error})") from error


def _manifest(facts: Any) -> Manifest:
    return Manifest(
        cluster=_text(facts["cluster"]),
        sandbox=_matching(ID, facts["sandbox"]),
        machine=_matching(ID, facts["machine"]),
        engine=_text(facts["engine"]),
        generation=_number(facts["generation"], MAX_BYTES),
        at_ms=_number(facts["at_ms"], 1 << 53),
        facts=dict(facts["facts"].items()),
        row=dict(facts["row"].items()),
        golden=_golden(facts),
        files={_text(name): _file(file) for name, file in facts["files"].items()},
    )


def _golden(facts: Any) -> str | None:
    if facts["format"] != FILES_FORMAT:
        return _matching(SHA256, facts["golden"])
    if facts["golden"] is not None:
        raise ValueError("files alone have no golden memory")
    return None


def _file(facts: Any) -> File:
    parts = tuple(_part(part) for part in facts["parts"])
    if len({part.name for part in parts}) != len(parts):
        raise ValueError("a part is named twice")
    return File(_number(facts["bytes"], MAX_BYTES), _matching(SHA256, facts["sha256"]), parts)


def _part(facts: Any) -> Part:
    frames = tuple(
        Frame(_number(frame["bytes"], MAX_PART), _number(frame["raw_bytes"], MAX_RAW)) for frame in facts["frames"]
    )
    part = Part(_matching(PART, facts["name"]), _matching(SHA256, facts["sha256"]), frames)
    _number(part.bytes, MAX_PART)
    return part


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number up to {most}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(f"{value!r:.80} is not a short text")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError(f"{value!r:.80} is not like {pattern.pattern}")
    return value

"""Names made of content: the same inputs give the same key, any other input another one."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

# What a folder name shows of a key. Builds of one image on one host never come near a collision in 48 bits.
SHORT = 12


def key_of(**inputs: object) -> str:
    """Return 64 hex digits that stand for exactly these inputs, which must be JSON values."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_under(folder: Path) -> list[Path]:
    """Return the files below `folder` that are source, sorted: no caches, nothing hidden, no build leftovers."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not _is_litter(path.relative_to(folder)))


def hashes_of(paths: Iterable[Path], *, relative_to: Path) -> dict[str, str]:
    """Return each file's SHA-256 by its path below `relative_to`."""
    return {path.relative_to(relative_to).as_posix(): sha256_of(path) for path in paths}


def _is_litter(path: Path) -> bool:
    return any(
        part.startswith(".") or part in ("__pycache__", "build") or part.endswith(".egg-info") for part in path.parts
    )

"""Secrets that a task asks for by name, from the operator's folder. They become variables of its agent.

A caller is told which one is not theirs, and never what there is: one that is missing, one of somebody else and one
that is open to others are the same to them. The operator reads the difference in the log. Blocks: for a thread.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from contract.errors import BadField
from poold.errors import ConfigError
from poold.secret_files import NAME, SecretFiles, Unsafe

log = logging.getLogger(__name__)


def gather(folder: Path | None, owner: str, names: Sequence[str]) -> dict[str, str]:
    """The secrets of `owner` by their names. Raises `BadField` that names the one that there is not."""
    return {name: _one(folder, owner, name, f"secrets[{i}]") for i, name in enumerate(names)}


def _one(folder: Path | None, owner: str, name: str, field: str) -> str:
    if not NAME.fullmatch(name):
        raise BadField(field, name, f"must match {NAME.pattern}")
    value = _read(folder, owner, name)
    if value is None:
        raise BadField(field, name, "is not a secret that this host has for you")
    return value


def _read(folder: Path | None, owner: str, name: str) -> str | None:
    if folder is None:
        return None
    try:
        return SecretFiles(folder).read(owner, name)
    except (Unsafe, ConfigError) as error:
        log.error("a secret was asked for and is not given: %s", error, extra={"owner": owner})
        return None

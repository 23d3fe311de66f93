"""What an operator has decided about a replica that is damaged: which epoch of a host's ledger is to do instead.

Without such a word nobody goes on with an older one: what was acknowledged after it would be lost without a word.
`pooldctl ledger accept` writes it into the state folder of the host that is to carry the ledger on. Blocks.
"""

from pathlib import Path

import orjson

from contract.errors import CallerError
from contract.fields import Fields
from contract.hosts import NAME
from poold import files

MAX_EPOCH = 1 << 53


def accept(state_dir: Path, host: str, epoch: int) -> Path:
    """Let `epoch` be good enough for the ledger of `host`; 0: go on without. Where that is written.

    Raises `ValueError` for what is no host or no epoch, and `OSError` where there is no such state folder.
    """
    path = _path(state_dir, host)
    if not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(f"{epoch} is no epoch: it must be 0 to {MAX_EPOCH}")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    files.put(path, orjson.dumps({"epoch": epoch}), files.PRIVATE)
    return path


def accepted(state_dir: Path, host: str) -> int | None:
    """What was decided; None if nothing was, or what is there makes no sense."""
    try:
        return Fields.parse(_path(state_dir, host).read_bytes()).integer("epoch", low=0, high=MAX_EPOCH)
    except (OSError, CallerError):
        return None


def forget(state_dir: Path, host: str) -> None:
    """It was done. Succeeds if nothing was decided."""
    _path(state_dir, host).unlink(missing_ok=True)


def _path(state_dir: Path, host: str) -> Path:
    if not NAME.fullmatch(host):
        raise ValueError(f"{host!r} is no name of a host")
    return state_dir / "accepted" / f"{host}.json"

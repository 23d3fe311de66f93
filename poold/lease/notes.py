"""What a host remembers of its lease in its state folder, beside the ledger that this is about. Blocks."""

import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from contract.errors import CallerError
from contract.fields import Fields
from poold.errors import ConfigError
from poold.files import PRIVATE, put
from poold.lease.written import MAX_EPOCH, RANDOM


@dataclass(frozen=True)
class Noted:
    holder: str
    root: int = 0  # of the line that the ledger in the folder is of; 0: of none
    epoch: int = 0  # the last one that was held, or was to be
    name: str = ""  # of the host; empty in a file of a former version


class Notes:
    """The file. Who copies a state folder copies it, too: its host is known by more than this."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "lease.json"

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> Noted | None:
        """None if this folder never had a lease."""
        try:
            fields = Fields.parse(self._path.read_bytes())
            return Noted(
                holder=fields.text("holder", max_chars=32, pattern=RANDOM),
                root=fields.integer("root", low=0, high=MAX_EPOCH),
                epoch=fields.integer("epoch", low=0, high=MAX_EPOCH),
                name=fields.text("name", max_chars=63, default=""),
            )
        except FileNotFoundError:
            return None
        except (OSError, CallerError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}; nothing was changed") from None

    def must_be_of(self, name: str) -> None:
        """The ledger in this folder and the lease are a host's: under another name they would be nobody's."""
        found = self.read()
        if found is None or found.name == name:
            return
        if found.name:
            raise ConfigError(
                f"POOLD_NAME={name}, but {self._path} is of host {found.name}, whose ledger and lease others know by"
                f" that name: set POOLD_NAME={found.name} again, or give the new host an empty POOLD_STATE_DIR"
            )
        self.write(replace(found, name=name))

    def made(self) -> Noted:
        """What is noted; with a new holder if nothing is."""
        found = self.read()
        return self.write(Noted(secrets.token_hex(16))) if found is None else found

    def write(self, noted: Noted) -> Noted:
        put(self._path, orjson.dumps(asdict(noted)), PRIVATE)
        return noted

    def change(self, *, root: int | None = None, epoch: int | None = None) -> Noted:
        was = self.made()
        root, epoch = was.root if root is None else root, was.epoch if epoch is None else epoch
        return self.write(replace(was, root=root, epoch=epoch))

"""What is in a registry: `hosts/NAME.json`, written by hosts, and `keys/ID.json`, written by whoever makes keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contract.hosts import Host
from contract.keys import Key

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 100_000
KEY_FILE = re.compile(r"[0-9a-f]{64}\.json")
HOST_FILE = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\.json")


@dataclass(frozen=True)
class Records:
    """What the registry said when it was last read."""

    hosts: Mapping[str, Host]
    keys: Mapping[str, Key]
    missed: str = ""  # why some of it is not as the registry has it now, but as it was before

    @classmethod
    def named_right(cls, hosts: Mapping[str, Host], keys: Mapping[str, Key], missed: str = "") -> "Records":
        """A record under another one's name is not there."""
        return cls(
            {name: host for name, host in hosts.items() if host.name == name},
            {key_id: key for key_id, key in keys.items() if key.id == key_id},
            missed,
        )

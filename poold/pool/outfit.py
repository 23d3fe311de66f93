"""What every machine of this host has besides its image: settings of clients, and whom it trusts."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from poold.errors import GuestError, GuestRefused
from poold.link import Guest

HOMES = {"/home/user/": "user"}  # files below belong to them, all others to root


@dataclass(frozen=True)
class Outfit:
    """Put into a machine once, before it is frozen: those that are restored have it without a word."""

    files: Mapping[str, str] = field(default_factory=dict)
    ca_pem: str | None = None

    @property
    def key(self) -> str:
        """Stands for all of it; empty if there is nothing."""
        if not self.files and self.ca_pem is None:
            return ""
        facts = orjson.dumps([dict(self.files), self.ca_pem], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(facts).hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """What a guest is told of it when it is told who it is."""
        return {} if self.ca_pem is None else {"ca_pem": self.ca_pem}

    async def put_on(self, guest: Guest) -> None:
        """Raises `GuestError`, also if the guest takes one of the files not: that is no fault of who asks for it."""
        for path, content in self.files.items():
            user = next((name for home, name in HOMES.items() if path.startswith(home)), "root")
            file = {"path": path, "content": content, "mode": "0644", "user": user}
            try:
                await guest.call("POST", "/files/write", file)
            except GuestRefused as error:
                raise GuestError(f"the guest does not take {path}, a setting of this host: {error.message}") from error

"""The host's files and variables, and what a client's reader finds in them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from contract.network import HostRule
from poold.egress.addresses import literal
from poold.egress.names import canonical

MAX_FILE_BYTES = 1 << 20
_PORTS = {"http": 80, "https": 443}
# What needs no escape in any of the files that it is written to: no space, no quote, no backslash, no variable.
_PATH = re.compile(r"[A-Za-z0-9/._~%+:@=,&!*()-]*")


@dataclass
class Findings:
    """What one client is set up with. Its reader fills it."""

    client: str
    hosts: set[HostRule] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, told: str) -> None:
        line = f"{self.client}: {told}"
        if line not in self.notes:
            self.notes.append(line)

    def url(self, text: str, where: str) -> str | None:
        """`text` without user and password, its host now being one of ours; None with a note that says `where` if not.

        The note never has the URL in it, for it may be a secret. What comes back needs no quoting.
        """
        parts, why = _split(text)
        if parts is None or parts.hostname is None:
            self.note(f"{where} is left out: {why}")
            return None
        if "@" in parts.netloc:
            self.note(f"{where}: user and password are not given to guests")
        name = parts.hostname.removesuffix(".")
        at = name if parts.port is None else f"{name}:{parts.port}"
        self.hosts.add(HostRule(name, (parts.port or _PORTS[parts.scheme],)))
        return f"{parts.scheme}://{at}{parts.path}"


@dataclass(frozen=True)
class Host:
    environ: Mapping[str, str]
    root: Path
    home: Path

    def path(self, text: str) -> Path:
        """A path as the host's programs mean it. They know no other folder than the root, so neither do we."""
        return self.root / text.lstrip("/")

    def read(self, path: Path, found: Findings) -> str | None:
        """The text of a file; None if there is none, or, with a note, if it cannot be read."""
        data = self.read_bytes(path, found)
        if data is None:
            return None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            found.note(f"{path} is left out: it is not text")
            return None

    def read_bytes(self, path: Path, found: Findings) -> bytes | None:
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            found.note(f"{path} is left out: {error.strerror}")
            return None
        if len(data) > MAX_FILE_BYTES:
            found.note(f"{path} is left out: it is too large")
            return None
        return data


def _split(text: str) -> tuple[SplitResult | None, str]:
    """A URL in its parts, or why it is of no use."""
    try:
        parts = urlsplit(text)
        is_wrong = parts.port == 0
    except ValueError:
        return None, "it is not a URL"
    name = parts.hostname or ""
    known = canonical(name) or ""
    faults = {
        "it is not at http:// or https://": parts.scheme not in _PORTS,
        # urlsplit takes some of these out without a word.
        "it is not a URL": is_wrong or not name or not text.isascii() or not text.isprintable() or " " in text,
        "it is at an address, and a rule needs a name": literal(name) is not None,
        "it is not at a name": not known,
        "it is on this host itself, where no guest may go": known.endswith((".localhost", "localhost.localdomain"))
        or known == "localhost",
        "it may have a password in its path": re.search(r":[^/]*@", parts.path) is not None,
        "it has more than a name and a path": "?" in text or "#" in text or not _PATH.fullmatch(parts.path),
    }
    why = next((told for told, is_so in faults.items() if is_so), "")
    return (None, why) if why else (parts, "")

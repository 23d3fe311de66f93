"""All clients together, and what the operator adds to them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.network import HOST, MAX_NAME_CHARS, HostRule
from poold.egress.registries import apt, cargo, golang, npm, pip
from poold.egress.registries.host import Findings, Host
from poold.errors import ConfigError

_ENTRY = re.compile(rf"(?P<host>{HOST})(?::(?P<port>[0-9]{{1,5}}))?")
_CLIENTS = {"pip": pip.read, "npm": npm.read, "apt": apt.read, "cargo": cargo.read, "go": golang.read}


@dataclass(frozen=True)
class Registries:
    """What the preset stands for on this host, and what guests need so that their clients go there."""

    hosts: tuple[HostRule, ...]
    env: dict[str, str]
    files: dict[str, str]  # by their path in a guest
    notes: tuple[str, ...]  # what was left out and why, for the operator. No secrets are in them


def read_registries(
    environ: Mapping[str, str], root: Path = Path("/"), home: Path | None = None, more: Sequence[str] = ()
) -> Registries:
    """Read what this host's clients are set up with.

    `root` is where the paths in `environ` and those of the system begin; `home` is the home of whoever set the clients
    up, by default the one in `environ`. What cannot be read or understood is left out with a note. `more` is the
    operator's POOLD_REGISTRIES: raises `ConfigError` for an entry that is not `name`, `*.suffix` or `name:port`.
    """
    hosts = {_entry(text) for text in more}
    host = Host(environ, root, home if home is not None else root / environ.get("HOME", "/root").lstrip("/"))
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    notes: list[str] = []
    for client, read in _CLIENTS.items():
        found = Findings(client)
        read(host, found)
        hosts |= found.hosts
        env |= found.env
        files |= found.files
        if not found.hosts:
            found.note("not configured on this host")
        notes += found.notes
    return Registries(tuple(sorted(hosts, key=lambda rule: (rule.host, rule.ports))), env, files, tuple(notes))


def _entry(text: str) -> HostRule:
    match = _ENTRY.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or len(match["host"]) > MAX_NAME_CHARS or not (port is None or 1 <= port <= 65_535):
        raise ConfigError(f"POOLD_REGISTRIES must be names, *.suffix or name:port, got {text!r}")
    host = match["host"].lower()
    return HostRule(host) if port is None else HostRule(host, (port,))

"""npm: lines of `key = value`. Guests get a file, not variables, so that a project's own settings come before it."""

import re
from pathlib import Path

from poold.egress.registries.host import Findings, Host

_KEY = re.compile(r"registry|@[A-Za-z0-9._~-]{1,214}:registry")
_SECRET = re.compile(r"_auth|_authToken|_password|username|certfile|keyfile|cert|key")
_HOMES = ("/home/user", "/root")


def read(host: Host, found: Findings) -> None:
    settings: dict[str, str] = {}
    for path in _paths(host):
        settings |= _settings(host.read(path, found) or "", found)
    said = _variable(host, "registry")
    if said:
        settings["registry"] = said
    lines = []
    for key, text in sorted(settings.items()):
        url = found.url(text, key)
        if url is not None:
            lines.append(f"{key}={url}\n")
    if lines:
        found.files |= {f"{home}/.npmrc": "".join(lines) for home in _HOMES}


def _settings(text: str, found: Findings) -> dict[str, str]:
    settings = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if key.startswith((";", "#")):
            continue
        if _SECRET.fullmatch(key.rpartition(":")[2]):
            found.note("credentials are not given to guests")
        if _KEY.fullmatch(key):
            settings[key] = value.strip("\"'")
    return settings


def _paths(host: Host) -> list[Path]:
    everyone, own = _variable(host, "globalconfig"), _variable(host, "userconfig")
    return [
        host.path(everyone or "/etc/npmrc"),
        host.path(own) if own else host.home / ".npmrc",
    ]


def _variable(host: Host, key: str) -> str | None:
    """npm takes its variables in small and in capital letters."""
    return host.environ.get(f"npm_config_{key}") or host.environ.get(f"NPM_CONFIG_{key.upper()}")

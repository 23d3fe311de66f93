"""Where the gateway is and which key opens it: arguments, then the environment, then what `warren login` wrote."""

import contextlib
import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warren.errors import ConfigError

API = "/v1"  # what every call begins with
UNIX = "unix"  # unix:/path: a host's own socket, for its operator; it needs no key


@dataclass(frozen=True)
class Config:
    """A checked address and key."""

    url: str
    key: str | None = field(default=None, repr=False)
    ca: str | None = None  # a PEM file: who vouches for the gateway, if not the public authorities

    @property
    def socket(self) -> str | None:
        """The path of a unix socket, if the address is one."""
        return urlsplit(self.url).path if self.url.startswith(f"{UNIX}:") else None

    @property
    def is_near(self) -> bool:
        """On this machine: no proxy is asked the way."""
        return self.socket is not None or _is_loopback(urlsplit(self.url).hostname or "")


def config_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '~'}/.config"
    return Path(home).expanduser() / "warren" / "config.json"


def resolve(
    url: str | None = None, key: str | None = None, ca: str | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """What was given, or else what is known from elsewhere. A stored key is only for the address beside it."""
    environ = os.environ if environ is None else environ
    stored = {} if url and key else _stored(config_file(environ))
    url = url or environ.get("WARREN_URL") or stored.get("url")
    key = key or environ.get("WARREN_API_KEY") or None
    if url is None:
        raise ConfigError("no gateway is known: run `warren login`, or set WARREN_URL and WARREN_API_KEY")
    url = checked_url(url)
    if key is None and url == stored.get("url"):
        key = stored.get("key")
    if key is None and not url.startswith(f"{UNIX}:"):
        raise ConfigError(f"there is no key for {url}: run `warren login`, or set WARREN_API_KEY")
    return Config(url, None if key is None else checked_key(key), ca or environ.get("WARREN_CA") or stored.get("ca"))


def checked_url(url: str) -> str:
    """`url`, if a key may be sent there: https anywhere, plain http on this machine only."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"the gateway's address must be like https://warren.example.com, got {url!r}") from None
    if parts.scheme == UNIX and parts.path.startswith("/"):
        return f"{UNIX}:{parts.path}"
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"the gateway's address must be like https://warren.example.com, got {_without_key(url)!r}")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(f"{url!r} would carry the key in the clear: use https")
    found = url.strip().rstrip("/")
    if parts.path.rstrip("/").endswith(API):
        raise ConfigError(f"the gateway's address goes without the path {API}: {found.removesuffix(API)}")
    return found


def checked_key(key: str) -> str:
    """`key`, if it can be one. It is never shown, not even when it is wrong."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("the key is not one: it begins with wrn_ and is one word")
    return key


def store(config: Config, environ: Mapping[str, str]) -> Path:
    """Keep it for this person only: the file is never readable for others, not even for a moment."""
    file = config_file(environ)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    kept = {"url": config.url, "key": config.key} | ({"ca": config.ca} if config.ca else {})
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:  # noqa: PTH123
            out.write(json.dumps(kept, indent=2) + "\n")
        new.rename(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
    return file


def _stored(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} can be read by others: chmod 600 {file}, and think of a new key")
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({type(error).__name__}): run `warren login` again") from None
    if not isinstance(found, dict) or not all(isinstance(value, str | None) for value in found.values()):
        raise ConfigError(f"{file} is not what `warren login` writes: run it again")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _without_key(url: str) -> str:
    """Whoever puts a password into an address does not want to see it in a log."""
    return url if "@" not in url else "…@" + url.rpartition("@")[2]

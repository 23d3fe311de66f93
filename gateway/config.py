"""What a gateway is told at its start, checked as a whole. Read from the environment in `__main__` and nowhere else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from contract.errors import BadField
from contract.hosts import NAME, host_address, is_loopback
from contract.keys import MAX_RATE
from contract.settings import ADDRESSINGS, BadSetting, Settings
from contract.tasks import AGENTS
from gateway.errors import ConfigError

ON_OR_OFF = re.compile("on|off")
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
MAX_HOSTS = 1000
PREVIEW_RATE = 200  # a browser that loads a page of many files has six of them under way at a time


@dataclass(frozen=True)
class Pki:
    """The files that `pooldctl pki issue … gateway` makes. On loopback only `tickets_key` is needed."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "gateway.pem"

    @property
    def key(self) -> Path:
        return self.folder / "gateway.key"

    @property
    def tickets_key(self) -> Path:
        return self.folder / "tickets.key"


@dataclass(frozen=True)
class S3Place:
    """A registry in S3. Who we are there, and where it is, AWS's own settings say."""

    bucket: str
    prefix: str
    addressing: str = "auto"
    timeout_s: int = 5  # of one request
    region: str | None = None  # None: as AWS's own settings say

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class Config:
    name: str
    host: str
    port: int
    tls_certificate: Path | None  # for clients
    tls_key: Path | None
    registry: Path | S3Place
    hosts: Mapping[str, str]  # addresses by name, in place of the registry's records; empty: the registry has them
    pki: Pki
    domain: str | None  # of previews
    preview_rate: int  # requests a second for previews without a key, from one address; 0: no limit
    workers: int
    access_log: bool  # one line for each request
    jobs_agent: str  # of jobs that name none

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, hostname: str) -> "Config":
        """Everything is checked here; messages name the variable and the value."""
        try:
            return cls._read(_Reader(environ), hostname)
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def _read(cls, read: "_Reader", hostname: str) -> "Config":
        host, port = read.listen("GATEWAY_LISTEN", "127.0.0.1:8080")
        certificate, key = read.pair("GATEWAY_TLS_CERT", "GATEWAY_TLS_KEY")
        if certificate is None and not is_loopback(host):
            raise BadSetting(
                f"GATEWAY_LISTEN is {host}, not a loopback address: "
                "set GATEWAY_TLS_CERT and GATEWAY_TLS_KEY, or put a proxy with TLS before a gateway on loopback"
            )
        return cls(
            name=read.optional("GATEWAY_NAME", NAME, _plain_name(hostname)),
            host=host,
            port=port,
            tls_certificate=certificate,
            tls_key=key,
            registry=read.registry("GATEWAY_REGISTRY"),
            hosts=read.hosts("GATEWAY_HOSTS"),
            pki=Pki(read.folder("GATEWAY_PKI", "`pooldctl pki issue CA-FOLDER gateway NAME --out FOLDER` makes it")),
            domain=read.optional("GATEWAY_DOMAIN", DOMAIN, "") or None,
            preview_rate=read.integer("GATEWAY_PREVIEW_RATE", PREVIEW_RATE, 0, MAX_RATE),
            workers=read.integer("GATEWAY_WORKERS", 1, 1, 256),
            access_log=read.optional("GATEWAY_ACCESS_LOG", ON_OR_OFF, "on") == "on",
            jobs_agent=read.one_of("GATEWAY_JOBS_AGENT", AGENTS, "claude"),
        )


class _Reader(Settings):
    def optional(self, name: str, pattern: re.Pattern[str], default: str) -> str:
        """What matches, or nothing."""
        is_empty = self._environ.get(name, default) == ""
        return "" if is_empty else self.matching(name, pattern, default, told=f"match {pattern.pattern}")

    def listen(self, name: str, default: str) -> tuple[str, int]:
        text = self._environ.get(name, default)
        if not text.rpartition(":")[0]:
            raise BadSetting(f"{name} must be ADDRESS:PORT, got {text!r}")
        return self.address(name, default)

    def pair(self, first: str, second: str) -> tuple[Path | None, Path | None]:
        """Two files that need each other."""
        files = [self.path(first), self.path(second)]
        for name, path in zip((first, second), files, strict=True):
            if path is not None and not path.is_file():
                raise BadSetting(f"{name}: there is no file {str(path)!r}")
        if (files[0] is None) != (files[1] is None):
            raise BadSetting(f"{first} and {second} go together, and only one of them is set")
        return files[0], files[1]

    def registry(self, name: str) -> Path | S3Place:
        """In S3 it has a prefix: whoever reads it looks at all that is there."""
        text = self._environ.get(name, "")
        found = self.s3_place(name, text, parts=4)
        addressing = self.one_of("GATEWAY_REGISTRY_ADDRESSING", ADDRESSINGS, "auto")
        timeout_s = self.integer("GATEWAY_REGISTRY_TIMEOUT_SEC", 5, 1, 60)
        if found is None:
            return self.folder(name, "or s3://BUCKET/PREFIX: keys are read from there")
        if not found[1]:
            raise BadSetting(f"{name} must be a folder or s3://BUCKET/PREFIX, got {text!r}")
        return S3Place(*found, addressing, timeout_s, self._environ.get("AWS_REGION") or None)

    def folder(self, name: str, why: str) -> Path:
        path = self.path(name)
        if path is None:
            raise BadSetting(f"{name} must name a folder: {why}")
        if not path.is_dir():
            raise BadSetting(f"{name}: there is no folder {self._environ[name]!r}")
        return path

    def hosts(self, name: str) -> dict[str, str]:
        """`NAME=ADDRESS` or just `ADDRESS`, with commas between; without a name it is that of the machine."""
        entries = [part.strip() for part in self._environ.get(name, "").split(",") if part.strip()]
        if len(entries) > MAX_HOSTS:
            raise BadSetting(f"{name} has {len(entries)} hosts; at most {MAX_HOSTS} are possible")
        found: dict[str, str] = {}
        for entry in entries:
            host, address = _host(name, entry)
            if host in found:
                raise BadSetting(f"{name} has two hosts named {host!r}: write NAME=ADDRESS")
            found[host] = address
        return found


def _host(variable: str, entry: str) -> tuple[str, str]:
    name, equals, address = entry.partition("=")
    if not equals:
        name, address = "", entry
    try:
        host_address(address)
    except BadField as error:
        raise BadSetting(f"{variable}: {error.message}") from None
    name = name or (urlsplit(address).hostname or "")
    if not NAME.fullmatch(name):
        raise BadSetting(f"{variable}: {name!r} is not a host's name; write NAME=ADDRESS")
    return name, address


def _plain_name(hostname: str) -> str:
    name = re.sub(r"[^a-z0-9.-]", "-", hostname.lower())[:63].strip(".-")
    return name or "gateway"

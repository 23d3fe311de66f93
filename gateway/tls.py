"""TLS: to hosts of our own CA, which know us by our certificate, and for clients. Changed files are used at once."""

import logging
import ssl
from pathlib import Path

from gateway.config import Pki
from gateway.errors import ConfigError

log = logging.getLogger("gateway.tls")

Versions = tuple[tuple[int, int], ...]


class HostTls:
    """The context for connections to hosts, as the files were at the last `refresh`."""

    def __init__(self, pki: Pki) -> None:
        self._pki = pki
        self._versions: Versions = ()
        self._context: ssl.SSLContext | None = None
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            log.info("no certificate: only hosts on loopback can be reached", extra={"why": str(error)})

    def __call__(self) -> ssl.SSLContext:
        if self._context is None:
            raise ConfigError(f"GATEWAY_PKI: {self._pki.folder} has no certificate, and a host has an https address")
        return self._context

    def refresh(self) -> None:
        """Look at the files again. Called in a thread; files that do not fit leave the old ones in use."""
        try:
            if self._context is not None and self._look() != self._versions:
                self._load()
                log.info("new certificates are in use")
        except (OSError, ssl.SSLError) as error:
            log.error("certificates cannot be read again", extra={"why": str(error)})

    def _load(self) -> None:
        versions = self._look()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self._pki.ca)
        context.load_cert_chain(self._pki.certificate, self._pki.key)
        self._context, self._versions = context, versions

    def _look(self) -> Versions:
        return _versions(self._pki.ca, self._pki.certificate, self._pki.key)


class ClientTls:
    """The context for connections of clients. It stays the same one; a `refresh` gives it a new certificate."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.num_tickets = 0  # another gateway could not read them, and a new certificate is asked for at once
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"GATEWAY_TLS_CERT and GATEWAY_TLS_KEY: {certificate}, {key}: {error}") from None

    def refresh(self) -> None:
        """Look at the files again. Called in a thread; files that do not fit leave the old ones in use."""
        try:
            if _versions(*self._files) != self._known:
                self._load()
                log.info("clients are shown a new certificate")
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate for clients cannot be read again", extra={"why": str(error)})

    def _load(self) -> None:
        known = _versions(*self._files)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)  # whether the two fit
        self.context.load_cert_chain(*self._files)
        self._known = known


def _versions(*files: Path) -> Versions:
    return tuple((status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in files))

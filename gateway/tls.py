"""TLS to hosts: only to hosts of our own CA, which know us by our certificate. Changed files are used at once."""

import logging
import ssl

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
        files = (self._pki.ca, self._pki.certificate, self._pki.key)
        return tuple((status.st_mtime_ns, status.st_ino) for status in (path.stat() for path in files))

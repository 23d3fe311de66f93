"""Packages of the npm registry: fetched without npm, and checked against what the recipe pins.

A version is pinned with the SHA-512 of its archive, so it does not matter which registry it came from. Archives
are kept in the shelf's cache: what was fetched once is not fetched again.
"""

import base64
import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from images.errors import ImageError
from images.npmrc import Registry
from images.recipe import NpmPackage

_METADATA_BYTES = 128 << 20
_ARCHIVE_BYTES = 1 << 30
_SILENCE_S = 60.0
_ATTEMPTS = 3
_WAIT_S = 1.0
# Archives that no build has asked for in this time are of versions that are no longer pinned.
_KEPT_S = 30 * 24 * 3600


@dataclass(frozen=True)
class Fetcher:
    """Gives archives of packages. `registry` is asked only if one has to be fetched; `work` is on the cache's disk."""

    cache: Path
    work: Path
    registry: Callable[[str], Registry]
    say: Callable[[str], None]

    def archive(self, package: NpmPackage) -> Path:
        """Return the package's archive, which has the pinned content. Raises `ImageError`."""
        place = self.cache / f"{hexadecimal(package.integrity)[:32]}.tgz"
        if place.is_file():
            if integrity_of(place) == package.integrity:
                os.utime(place)
                return place
            place.unlink()
        self.say(f"fetching {package.name}@{package.version}")
        fetched = self.work / "fetched.tgz"
        self._fetch(package, fetched)
        self.cache.mkdir(exist_ok=True)
        fetched.rename(place)
        return place

    def forget_old(self, now_s: float) -> None:
        """Remove archives that were not asked for in a month."""
        for path in self.cache.glob("*.tgz"):
            if now_s - path.stat().st_mtime > _KEPT_S:
                path.unlink()

    def _fetch(self, package: NpmPackage, into: Path) -> None:
        registry = self.registry(package.name)
        told = _published(registry, package)
        offered = told.get("integrity")
        # An old package may have none there. What we pinned is checked in any case, below.
        if isinstance(offered, str) and offered.startswith("sha512-") and package.integrity not in offered.split():
            raise _mismatch(package, offered)
        for url in (addresses := _addresses(registry, package, told.get("tarball"))):
            try:
                _download(registry, url, into, _ARCHIVE_BYTES)
                break
            except ImageError:
                if url == addresses[-1]:
                    raise
        if (found := integrity_of(into)) != package.integrity:
            raise _mismatch(package, found)


def hexadecimal(integrity: str) -> str:
    return base64.b64decode(integrity.removeprefix("sha512-")).hex()


def integrity_of(path: Path) -> str:
    """Return the SHA-512 of a file in npm's way of writing it."""
    with path.open("rb") as file:
        return "sha512-" + base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()


def _mismatch(package: NpmPackage, found: str) -> ImageError:
    return ImageError(
        f"{package.name}@{package.version}: the registry has other content than image.toml pins:\n"
        f"  pinned {package.integrity}\n  there  {found[:200]}",
        hint="do not build with it; find out who changed it",
    )


def _published(registry: Registry, package: NpmPackage) -> dict[str, Any]:
    """Return what the registry says about the archive of this version."""
    url = registry.url + quote(package.name, safe="@")
    try:
        with _open(registry, url, accept="application/vnd.npm.install-v1+json") as answer:
            text = answer.read(_METADATA_BYTES + 1)
        if len(text) > _METADATA_BYTES:
            raise ImageError(f"{url}: the answer is larger than {_METADATA_BYTES} bytes")
        dist = json.loads(text)["versions"][package.version]["dist"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ImageError(f"{url}: the registry has no {package.name}@{package.version}") from exc
    if not isinstance(dist, dict):
        raise ImageError(f"{url}: does not describe {package.name}@{package.version}")
    return dist


def _addresses(registry: Registry, package: NpmPackage, told: object) -> list[str]:
    """Where the archive may be: a mirror may name the place that it copies from, which this host may not reach."""
    usual = f"{registry.url}{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"
    if not isinstance(told, str) or not told.startswith(("https://", "http://")):
        return [usual]
    return [told] if registry.serves(told) else [usual, told]


def _download(registry: Registry, url: str, into: Path, limit: int) -> None:
    with _open(registry, url, accept="*/*") as answer, into.open("wb") as file:
        left = limit
        while piece := _read(answer, url):
            left -= len(piece)
            if left < 0:
                raise ImageError(f"{url}: is larger than {limit} bytes")
            file.write(piece)


def _read(answer: IO[bytes], url: str) -> bytes:
    try:
        return answer.read(1 << 20)
    except (OSError, http.client.HTTPException) as exc:
        raise ImageError(f"{url}: broke off: {exc}") from exc


def _open(registry: Registry, url: str, *, accept: str) -> IO[bytes]:
    """Ask for `url`, again if the way there is disturbed. Raises `ImageError`."""
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "warren-images"})  # noqa: S310
    if registry.secret is not None and registry.serves(url):
        # Not taken along to wherever the registry may send us.
        request.add_unredirected_header("Authorization", registry.secret)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_trust(registry)))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            answer: IO[bytes] = opener.open(request, timeout=_SILENCE_S)
            return answer
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code < 500 or attempt == _ATTEMPTS:
                raise ImageError(f"{url}: answered {exc.code} {exc.reason}") from None
        except (OSError, http.client.HTTPException) as exc:
            if attempt == _ATTEMPTS:
                raise ImageError(f"{url}: cannot be reached: {exc}", hint="is npm's registry set right?") from exc
        time.sleep(_WAIT_S * attempt)
    raise AssertionError("unreachable")


def _trust(registry: Registry) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if registry.cafile is not None:
        try:
            context.load_verify_locations(registry.cafile)
        except OSError as exc:
            raise ImageError(f"npm's cafile = {str(registry.cafile)!r}: cannot be read: {exc}") from exc
    return context

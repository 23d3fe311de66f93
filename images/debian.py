"""The door to the Debian archive: which mirror, which packages, and fetching them.

The host's own package system is only read. Packages are fetched with a private apt state, from Debian's sources alone,
checked against Debian's keyring; what else the host has configured is not used.
"""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from images.errors import ImageError
from images.keys import sha256_of
from images.programs import run

SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

_SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")


class Package(NamedTuple):
    """One binary package as the archive has it. `sha256` is that of the .deb file."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Sources:
    """Where packages come from: the host's Debian mirror, or what a file says that the caller names."""

    override: Path | None

    def inputs(self) -> dict[str, object]:
        """Return what decides which packages we get, as JSON values.

        A mirror is not among it: all of them serve the same signed archive. A file of the caller's is, since it may
        name another day's archive.
        """
        return {"suite": SUITE, "override": sha256_of(self.override) if self.override else None}

    def write(self, folder: Path) -> Path:
        """Write an apt sources file into `folder` and return its path."""
        if self.override:
            # apt tells the two formats apart by the ending of the name.
            path = folder / f"warren{self.override.suffix}"
            path.write_bytes(self.override.read_bytes())
        else:
            path = folder / "warren.list"
            path.write_text("".join(f"{line}\n" for line in _host_sources()))
        return path


def _host_sources() -> list[str]:
    """Return the host's Debian sources as apt's one-line entries.

    Asked of apt, not read from its files: it knows each source's origin from the signed release file.
    """
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    asked = run(["apt-get", "indextargets", "--format", form, "Created-By: Packages", "Origin: Debian"])
    found = sorted({tuple(line.split()) for line in asked.decode().splitlines()})
    lines = [f"deb [signed-by={KEYRING}] {uri} {suite} {part}" for uri, suite, part in found if suite in _SUITES]
    if not any(suite == SUITE for _, suite, _ in found):
        raise ImageError(
            f"this host's apt knows no Debian source for {SUITE}",
            hint="run apt-get update, or name a sources file in WARREN_APT_SOURCES",
        )
    return lines


class Archive:
    """Debian's archive as seen through a private apt state in `folder`, which the caller removes."""

    def __init__(self, sources: Sources, folder: Path) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial", "parts"):
            (folder / name).mkdir(parents=True)
        self._options = [
            "-oDir::Etc::SourceList=/dev/null",
            f"-oDir::Etc::SourceParts={folder / 'parts'}",
            f"-oDir::State::Lists={folder / 'lists'}",
            f"-oDir::Cache={folder / 'cache'}",
            # As if nothing were installed.
            "-oDir::State::status=/dev/null",
            # The folder is ours alone, so apt's unprivileged user could not write there.
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Languages=none",
            "-oAcquire::Retries=3",
        ]
        sources.write(folder / "parts")
        run(["apt-get", *self._options, "-qq", "update"])

    def newest_dependency(self, metapackage: str, pattern: str, *, without: Container[str] = ()) -> str:
        """Return the one package like `pattern` that the newest `metapackage` needs, but for versions `without`."""
        text = run(["apt-cache", *self._options, "show", metapackage]).decode()
        return dependency_in(text, pattern, without)

    def unpack(self, name: str, into: Path) -> Package:
        """Fetch the newest version of a package, verified by apt, and unpack its files; nothing is installed."""
        before = set(self._folder.glob("*.deb"))
        run(["apt-get", *self._options, "-qq", "download", name], cwd=self._folder)
        (deb,) = set(self._folder.glob("*.deb")) - before
        run(["dpkg-deb", "-x", deb, into])
        version = run(["dpkg-deb", "--field", deb, "Version"]).decode().strip()
        return Package(name, version, sha256_of(deb))


def dependency_in(shown: str, pattern: str, without: Container[str]) -> str:
    """Return what `newest_dependency` does, from what apt shows of all versions of a package, the newest first."""
    versions = [stanza for stanza in stanzas(shown) if stanza.get("Version") not in without]
    if not versions:
        raise ImageError(
            "Debian has no version of the kernel that is not known to be broken",
            hint="name a sources file with another day's archive in WARREN_APT_SOURCES",
        )
    package, depends = versions[0].get("Package"), versions[0].get("Depends", "")
    found = set(re.findall(pattern, depends))
    if len(found) != 1:
        raise ImageError(f"{package} depends on {depends or 'nothing'}, expected one package like {pattern}")
    return str(found.pop())


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a Debian control file; continuation lines are dropped."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = (line.partition(":") for line in paragraph.splitlines() if not line.startswith((" ", "\t")))
        yield {field: value.strip() for field, _, value in lines}


def installed_packages(shown: str) -> list[Package]:
    """Return the packages that `apt-cache show` described, sorted by name."""
    return sorted(
        {Package(each["Package"], each["Version"], each["SHA256"]) for each in stanzas(shown) if "SHA256" in each}
    )


def as_json(packages: Iterable[Package]) -> list[dict[str, str]]:
    return [package._asdict() for package in packages]

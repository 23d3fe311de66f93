"""apt: sources in two formats, of one line each and of paragraphs. Guests get them all in the second.

A source that is signed with another key than Debian's brings its key along, which is public; one whose key cannot be
read would only make a guest's apt fail, so it is left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poold.egress.registries.host import Findings, Host
from poold.egress.registries.keys import armored

_SOURCES = "/etc/apt/sources.list.d/warren.sources"
# What an image came with, by the builder's hand or by apt's habit.
_REPLACED = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/0000warren.list",
    "/etc/apt/sources.list.d/0000warren.sources",
    "/etc/apt/sources.list.d/debian.sources",
)
_DEBIANS_OWN = "/usr/share/keyrings/debian-archive-"
_WORD = re.compile(r"[A-Za-z0-9./][A-Za-z0-9./~+_-]*")
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>\S.*)")
_KEY_FILE = re.compile(r"/[A-Za-z0-9/._+-]+")


@dataclass(frozen=True)
class _Source:
    uris: list[str]
    suites: list[str]
    components: list[str]
    architectures: list[str]
    is_trusted: bool
    signed_by: str


def read(host: Host, found: Findings) -> None:
    paragraphs: list[str] = []
    for path, source in _sources(host, found):
        text = _paragraph(host, source, path.name, found)
        if text is not None and text not in paragraphs:
            paragraphs.append(text)
    if paragraphs:
        found.files |= dict.fromkeys(_REPLACED, "")
        found.files[_SOURCES] = "\n".join(paragraphs)


def _sources(host: Host, found: Findings) -> Iterator[tuple[Path, _Source]]:
    folder = host.path("/etc/apt/sources.list.d")
    try:
        parts = sorted(folder.iterdir())
    except OSError:
        parts = []
    for path in (host.path("/etc/apt/sources.list"), *parts):
        if path.suffix == ".list":
            for line in (host.read(path, found) or "").splitlines():
                yield from ((path, source) for source in _one_line(line, path, found))
        if path.suffix == ".sources":
            for paragraph in _paragraphs(host.read(path, found) or ""):
                yield from ((path, source) for source in _fields(paragraph))


def _one_line(line: str, path: Path, found: Findings) -> Iterator[_Source]:
    """`deb [options] URI suite component…`. What is for source code is not for guests."""
    bare = line.partition("#")[0].strip()
    match = _ONE_LINE.fullmatch(bare)
    if match is None:
        if bare and not bare.startswith("deb-src"):
            found.note(f"a line of {path.name} is left out: it is not understood")
        return
    pairs = (option.partition("=") for option in (match["options"] or "").split())
    options = {key.lower(): value for key, _, value in pairs}
    uri, *rest = match["rest"].split()
    yield _Source(
        [uri],
        rest[:1],
        rest[1:],
        options.get("arch", "").replace(",", " ").split(),
        options.get("trusted") == "yes",
        options.get("signed-by", "").replace(",", " "),
    )


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Fields by their names in small letters. A line that begins with a space goes on with the one before it."""
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    for block in re.split(r"\n{2,}", "\n".join(lines)):
        fields: dict[str, str] = {}
        last = ""
        for line in block.split("\n"):
            if line[:1].isspace():
                fields[last] = f"{fields.get(last, '')}\n{line}"
            else:
                last, _, value = line.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        yield fields


def _fields(fields: dict[str, str]) -> Iterator[_Source]:
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
        return
    yield _Source(
        fields.get("uris", "").split(),
        fields.get("suites", "").split(),
        fields.get("components", "").split(),
        fields.get("architectures", "").split(),
        fields.get("trusted", "").lower() == "yes",
        fields.get("signed-by", ""),
    )


def _paragraph(host: Host, source: _Source, where: str, found: Findings) -> str | None:
    words = (*source.suites, *source.components, *source.architectures)
    is_flat = all(suite.endswith("/") for suite in source.suites)
    if not source.suites or not all(map(_WORD.fullmatch, words)) or is_flat == bool(source.components):
        found.note(f"a source of {where} is left out: it is not understood")
        return None
    signed_by = _signed_by(host, source, where, found)
    if signed_by is None:
        found.note(f"a source of {where} is left out: its key cannot be given to guests")
        return None
    uris = [uri for text in source.uris if (uri := found.url(text, f"a source of {where}")) is not None]
    if not uris:
        return None
    fields = {
        "URIs": " ".join(uris),
        "Suites": " ".join(source.suites),
        "Components": " ".join(source.components),
        "Architectures": " ".join(source.architectures),
        "Trusted": "yes" if source.is_trusted else "",
        "Signed-By": signed_by,
    }
    return "".join(f"{name}: {value}\n" for name, value in {"Types": "deb", **fields}.items() if value)


def _signed_by(host: Host, source: _Source, where: str, found: Findings) -> str | None:
    """The field for guests: empty if the host has none, None if there is a key that guests cannot get."""
    asked = source.signed_by.strip()
    if not asked:
        return ""
    if "\n" in source.signed_by:
        keys = [armored("\n".join(_unfolded(line) for line in source.signed_by.split("\n")).encode())]
    else:
        paths = asked.split()
        if not all(map(_KEY_FILE.fullmatch, paths)):  # a key's number: where that key is, apt alone knows
            return None
        if all(path.startswith(_DEBIANS_OWN) for path in paths):
            return " ".join(paths)
        keys = [armored(host.read_bytes(host.path(path), found) or b"") for path in paths]
    blocks = [key for key in keys if key is not None]
    return "".join(map(_folded, blocks)) if len(blocks) == len(keys) == 1 else None


def _unfolded(line: str) -> str:
    bare = line.strip()
    return "" if bare == "." else bare


def _folded(block: str) -> str:
    return "".join(f"\n {line or '.'}" for line in block.splitlines())

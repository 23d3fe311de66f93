"""Go: two variables, in the environment or in the file that `go env -w` writes."""

import re

from poold.egress.registries.host import Findings, Host

_WORDS = ("direct", "off", "")
_KEY = re.compile(r"[A-Za-z0-9.-]{1,253}(?:\+[A-Za-z0-9+/=.-]{1,200})?")


def read(host: Host, found: Findings) -> None:
    settings = _settings(host, found)
    proxies = _proxies(settings.get("GOPROXY", ""), found)
    if proxies:
        found.env["GOPROXY"] = proxies
    sums = _sums(settings.get("GOSUMDB", ""), found)
    if sums:
        found.env["GOSUMDB"] = sums


def _proxies(text: str, found: Findings) -> str | None:
    """The list as it was, without what cannot be used. One of words only is not given: it leads nowhere."""
    kept = ""
    has_url = False
    for separator, entry in re.findall(r"(^|[,|])([^,|]*)", text):
        word = entry.strip()
        url = word if word in _WORDS else found.url(word, "GOPROXY")
        if url:
            has_url = has_url or word not in _WORDS
            kept += (separator if kept else "") + url
    return kept if has_url else None


def _sums(text: str, found: Findings) -> str | None:
    """`off`, or a name with perhaps a key, and perhaps a URL where it is to be found instead of at its name."""
    if text == "off":
        return text
    name, _, url = text.strip().partition(" ")
    if not name:
        return None
    if not _KEY.fullmatch(name):
        found.note("GOSUMDB is left out: it is not understood")
        return None
    if url:
        clean = found.url(url.strip(), "GOSUMDB")
        return f"{name} {clean}" if clean else None
    return name if found.url(f"https://{name.partition('+')[0]}", "GOSUMDB") else None


def _settings(host: Host, found: Findings) -> dict[str, str]:
    folder = host.environ.get("XDG_CONFIG_HOME")
    named = host.environ.get("GOENV")
    path = (host.path(folder) if folder else host.home / ".config") / "go/env"
    text = None if named == "off" else host.read(host.path(named) if named else path, found)
    lines = (line.strip().partition("=") for line in (text or "").splitlines())
    written = {key.strip(): value.strip() for key, _, value in lines}
    said = {key: value for key in ("GOPROXY", "GOSUMDB") if (value := host.environ.get(key))}
    return written | said

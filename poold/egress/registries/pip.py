"""pip: files of sections and keys, later ones before earlier ones, and variables before all of them."""

import configparser
import os
import re
from pathlib import Path

from poold.egress.registries.host import Findings, Host

_SECTIONS = ("global", "install")  # the second is nearer
_KEYS = ("index-url", "extra-index-url", "find-links", "trusted-host")
_TRUSTED = re.compile(r"[A-Za-z0-9_.-]{1,253}(?::[0-9]{1,5})?")


def read(host: Host, found: Findings) -> None:
    settings = {key: value for key, value in _settings(host, found).items() if value}
    lines = []
    for key in ("index-url", "extra-index-url", "find-links"):
        urls = [found.url(text, key) for text in settings.get(key, "").split()]
        kept = [url for url in urls if url is not None]
        # pip takes one index: a second word would be part of its URL.
        lines += _lines(key, kept[:1] if key == "index-url" else kept)
    names = {rule.host for rule in found.hosts}
    trusted = [text for text in settings.get("trusted-host", "").split() if _TRUSTED.fullmatch(text)]
    lines += _lines("trusted-host", [text for text in trusted if text.partition(":")[0].lower() in names])
    if found.hosts:
        found.files["/etc/pip.conf"] = "".join(f"{line}\n" for line in ("[global]", *lines))


def _lines(key: str, values: list[str]) -> list[str]:
    if len(values) < 2:
        return [f"{key} = {value}" for value in values]
    return [f"{key} =", *(f"    {value}" for value in values)]


def _settings(host: Host, found: Findings) -> dict[str, str]:
    """What holds of all that is said: variables before files, and nearer files before others."""
    settings: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for path in _paths(host):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(host.read(path, found) or "")
        except configparser.Error:
            found.note(f"{path} is left out: it is not understood")
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                settings[section] |= {_key(key): value for key, value in parser.items(section) if value is not None}
    said = {key: value for key in _KEYS if (value := host.environ.get(f"PIP_{key.upper().replace('-', '_')}"))}
    return settings["global"] | settings["install"] | said


def _key(text: str) -> str:
    return text.lower().replace("_", "-").removeprefix("--")


def _paths(host: Host) -> list[Path]:
    named = host.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:  # so pip is told to read none
        return []
    settings = host.environ.get("XDG_CONFIG_HOME")
    folder = host.path(settings) if settings else host.home / ".config"
    usual = [host.path("/etc/pip.conf"), host.home / ".pip/pip.conf", folder / "pip/pip.conf"]
    return [*usual, host.path(named)] if named else usual

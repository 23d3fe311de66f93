"""Settings of a program, as its environment gives them. Pure: whether a file is there is for the program to look."""

import re
from collections.abc import Mapping
from pathlib import Path

_PART = r"[A-Za-z0-9_@][A-Za-z0-9._@-]{0,63}"
_S3 = re.compile(rf"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])(?:/(?P<prefix>{_PART}(?:/{_PART}){{0,3}}))?/?")
ADDRESSINGS = ("auto", "path", "virtual")  # of buckets: in the path of an address, or in its name


class BadSetting(Exception):
    """The environment asks for what cannot be; the message names the variable and the value."""


class Settings:
    """Reads one variable at a time, or gives its default. Raises `BadSetting` and nothing else."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        text = self._environ.get(name, str(default))
        if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
            raise BadSetting(f"{name} must be a whole number from {low} to {high}, got {text!r}")
        return int(text)

    def matching(self, name: str, pattern: re.Pattern[str], default: str, *, told: str) -> str:
        """What matches; `told` says to people what that is."""
        text = self._environ.get(name, default)
        if not pattern.fullmatch(text):
            raise BadSetting(f"{name} must {told}, got {text!r}")
        return text

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        text = self._environ.get(name, default)
        if text not in allowed:
            raise BadSetting(f"{name} must be one of {', '.join(allowed)}, got {text!r}")
        return text

    def path(self, name: str) -> Path | None:
        """None if it is not set, or empty."""
        text = self._environ.get(name)
        return Path(text).absolute() if text else None

    def s3_place(self, name: str, text: str, *, parts: int) -> tuple[str, str] | None:
        """The bucket and the prefix, of at most so many parts. None if it is a path."""
        match = _S3.fullmatch(text)
        if match is None and "://" not in text:
            return None
        if match is None or (match["prefix"] or "").count("/") >= parts:
            raise BadSetting(f"{name} must be a folder or s3://BUCKET/PREFIX, got {text!r}")
        return match["bucket"], match["prefix"] or ""

    def address(self, name: str, default: str) -> tuple[str, int]:
        """What stands before the last colon, and the port after it. An address of IPv6 loses its brackets."""
        text = self._environ.get(name, default)
        host, _, port = text.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
            raise BadSetting(f"{name} must be ADDRESS:PORT, got {text!r}")
        return host.strip("[]"), int(port)

"""Starting Chromium: which program, with which flags, in which folder, and whom it trusts."""

import base64
import contextlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from warren_guest.accounts import Account
from warren_guest.errors import RefusedError
from warren_guest.paths import make_own_folder

# Debian's program itself, without the shell script before it; then names along the PATH, for other systems.
_PROGRAMS = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome")
_PREFIX = "warren-browser-"
_POLICY = "warren.json"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")

# Nothing that a page did not ask for: no updates, no reports, no suggestions, each of which is a host to be refused.
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=AutofillServerCommunication,MediaRouter,OptimizationHints,SpareRendererForSitePerProcess,Translate,WebUIOmniboxAimPopup,WebUIOmniboxPopup",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--no-startup-window",
    "--password-store=basic",
)


@dataclass(frozen=True, slots=True)
class Trust:
    """Where a machine's browser is told whom to trust: the machine's certificate, and the folder of policies."""

    certificate: str
    policies: str


def find_browser() -> str:
    """The program. Raises `browser_missing`."""
    for name in _PROGRAMS:
        if found := shutil.which(name):
            return found
    raise RefusedError("browser_missing", "this machine's image has no browser; the image `agent` has one")


def flags(profile: str, account: Account) -> tuple[str, ...]:
    # Chromium refuses to be the superuser with its own sandbox; only a developer's computer runs it so.
    sandbox = ("--no-sandbox",) if account.uid == 0 else ()
    return (*_FLAGS, *sandbox, f"--user-data-dir={profile}")


def make_profile(account: Account) -> str:
    """A new empty folder for one run of the browser, of nobody but `account`."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    if os.geteuid() == 0:
        os.chown(folder, account.uid, account.gid)
    return folder


def remove_profile(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def write_policy(trust: Trust) -> None:
    """Have the browser trust the certificate that the machine trusts; without one, nobody but whom it trusts itself."""
    path = Path(trust.policies) / _POLICY
    with contextlib.suppress(OSError):  # a full disk: pages of the proxy fail with a certificate error, which says it
        found = _CERTIFICATE.search(_text(trust.certificate))
        make_own_folder(trust.policies)
        der = base64.b64encode(base64.b64decode(found[1])).decode() if found else None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps({"CACertificates": [der] if der else []}))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

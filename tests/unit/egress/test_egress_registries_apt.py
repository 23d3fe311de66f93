"""Sources of apt, which come with their keys."""

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from poold.egress.registries import Registries
from poold.egress.registries.keys import MAX_KEY_BYTES, armored
from tests.unit.egress.egress_host import SECRET, FakeHost, rules


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


KEY = b"\x99" + bytes(range(200))
SOURCES = "/etc/apt/sources.list.d/warren.sources"


def test_apt_sources_of_both_formats(host: FakeHost) -> None:
    host.write(
        "/etc/apt/sources.list",
        "# a comment\ndeb http://deb.example.com/debian bookworm main contrib # more\n"
        "deb-src http://src.example.com/debian bookworm main\n"
        f"deb [arch=amd64,arm64 trusted=yes] https://u:{SECRET}@own.example.com/apt ./\n"
        "deb cdrom:[Debian]/ bookworm main\ndeb mirror+http://m.example.com/list bookworm main\ndeb\nwhat is this\n"
        "deb http://deb.example.com/debian bookworm main contrib\n",
    )
    host.write(
        "/etc/apt/sources.list.d/x.sources",
        "Types: deb deb-src\n# in between\nURIs: http://a.example.com/d\n https://b.example.com/d\n"
        "Suites: bookworm\n bookworm-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://no.example.com\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb-src\nURIs: http://no.example.com\nSuites: bookworm\nComponents: main\n",
    )
    host.write("/etc/apt/sources.list.d/off.list.disabled", "deb http://no.example.com/debian bookworm main\n")
    found = host.read()
    assert rules(found) == ["a.example.com:80", "b.example.com:443", "deb.example.com:80", "own.example.com:443"]
    assert found.files[SOURCES].split("\n\n") == [
        "Types: deb\nURIs: http://deb.example.com/debian\nSuites: bookworm\nComponents: main contrib",
        "Types: deb\nURIs: https://own.example.com/apt\nSuites: ./\nArchitectures: amd64 arm64\nTrusted: yes",
        "Types: deb\nURIs: http://a.example.com/d https://b.example.com/d\nSuites: bookworm bookworm-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
    ]
    emptied = {path for path, text in found.files.items() if not text}
    assert {"/etc/apt/sources.list", "/etc/apt/sources.list.d/0000warren.list"} <= emptied
    assert "apt: a line of sources.list is left out: it is not understood" in found.notes


@pytest.mark.parametrize(
    "source",
    [
        "deb http://a.example.com/debian",
        "deb http://a.example.com/debian bookworm",
        "deb http://a.example.com/debian ./ main",
        "deb http://a.example.com/debian $(ARCH)/ main",
        "deb [signed-by=0123456789ABCDEF] http://a.example.com/debian bookworm main",
        "deb [signed-by=/etc/apt/keyrings/none.gpg] http://a.example.com/debian bookworm main",
        "deb [signed-by=/etc/apt/keyrings/text.gpg] http://a.example.com/debian bookworm main",
        "deb [signed-by=/etc/apt/keyrings/own.gpg,/etc/apt/keyrings/own.gpg] http://a.example.com/debian bookworm main",
    ],
)
def test_apt_sources_that_no_guest_could_use_are_left_out(host: FakeHost, source: str) -> None:
    host.write("/etc/apt/sources.list", source)
    host.write("/etc/apt/keyrings/text.gpg", "hello")
    host.write("/etc/apt/keyrings/own.gpg", KEY)
    found = host.read()
    assert (found.hosts, found.files) == ((), {})
    assert any("is left out" in note for note in found.notes if note.startswith("apt"))


def key_in(found: Registries) -> bytes:
    lines = [line.strip() for line in found.files[SOURCES].partition("Signed-By:")[2].splitlines()]
    assert (lines[1], lines[2], lines[-1][:8]) == ("-----BEGIN PGP PUBLIC KEY BLOCK-----", ".", "-----END")
    return base64.b64decode("".join(lines[3:-2]))


def test_apt_keys_come_along_in_every_form(host: FakeHost) -> None:
    source = "deb [signed-by=/etc/apt/keyrings/own.gpg] https://a.example.com/debian bookworm main"
    host.write("/etc/apt/sources.list", source)
    host.write("/etc/apt/keyrings/own.gpg", KEY)
    found = host.read()
    assert key_in(found) == KEY
    host.write("/etc/apt/keyrings/own.gpg", armored(KEY) or "")
    assert host.read() == found
    host.write("/etc/apt/sources.list", "")
    host.write("/etc/apt/sources.list.d/a.sources", found.files[SOURCES])
    assert host.read() == found


def test_only_public_keys_are_keys() -> None:
    text = (armored(KEY) or "").encode()
    assert armored(text) == text.decode()
    assert armored(text.replace(b"BLOCK-----\n", b"BLOCK-----\nVersion: 1 (x)\n", 1)) == text.decode()
    no_keys = (
        b"",
        b"\x95" + KEY,  # a secret one
        b"\x99" * (MAX_KEY_BYTES + 1),
        text.replace(b"PUBLIC", b"PRIVATE"),
        text.replace(b"-----END", b"\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n-----END"),
        (armored(KEY) or "").replace("\n", "\n\n").encode(),
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nA\n-----END PGP PUBLIC KEY BLOCK-----",
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nlQAA\n-----END PGP PUBLIC KEY BLOCK-----",
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n-----END PGP PUBLIC KEY BLOCK-----",
    )
    assert [armored(data) for data in no_keys] == [None] * len(no_keys)


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
def test_apt_itself_reads_what_guests_get(host: FakeHost, tmp_path: Path) -> None:
    host.write("/etc/apt/sources.list", "deb [trusted=yes] https://own.example.com/apt ./\n")
    host.write("/etc/apt/sources.list.d/a.list", "deb [signed-by=/k] https://a.example.com/debian bookworm main\n")
    host.write("/k", KEY)
    guest = tmp_path / "guest"
    for path, text in host.read().files.items():
        (guest / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (guest / path.lstrip("/")).write_text(text)
    folders = [f"-oDir::Etc={guest}/etc/apt", f"-oDir::State={guest}/state", f"-oDir::Cache={guest}/cache"]
    # It tells where it would go without going there.
    shown = subprocess.run(["apt-get", *folders, "update", "--print-uris"], capture_output=True, text=True, check=True)
    told = [line.split("'")[1] for line in shown.stdout.splitlines()]
    assert [url for url in told if url.endswith("/InRelease")] == [
        "https://a.example.com/debian/dists/bookworm/InRelease",
        "https://own.example.com/apt/./InRelease",
    ]

"""What the test's internet has to give away: a Python package, a Debian package and a git repository.

Each holds the same bytes, so that what a client fetched can be compared by hash.
"""

import base64
import hashlib
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

NAME = "warren-sample"
VERSION = "1.0"
CONTENT = hashlib.shake_256(b"a sample").digest(200_000)


@dataclass(frozen=True)
class Goods:
    content: str  # the SHA-256 of the file that every package has
    commit: str  # of the repository


def make_goods(site: Path) -> Goods:
    """Fill the folder of a web server; see `open_web`."""
    _make_wheel(site / "pip.example.com" / "simple" / NAME)
    (site / "mirror.example.com").symlink_to("pip.example.com")
    _make_debian(site / "apt.example.com" / "debian")
    return Goods(hashlib.sha256(CONTENT).hexdigest(), _make_repository(site / "git" / "sample.git"))


def _make_wheel(folder: Path) -> None:
    folder.mkdir(parents=True)
    package = NAME.replace("-", "_")
    told = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
    files = {
        f"{package}/__init__.py": b"",
        f"{package}/content.bin": CONTENT,
        f"{package}-{VERSION}.dist-info/METADATA": told.encode(),
        f"{package}-{VERSION}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{package}-{VERSION}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest_64(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    wheel = folder / f"{package}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="{wheel.name}#sha256={digest}">{wheel.name}</a></body></html>'
    (folder / "index.html").write_text(page)


def _digest_64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _make_debian(folder: Path) -> None:
    """A repository with one package, as apt wants it."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = f"Package: {NAME}\nVersion: {VERSION}\nArchitecture: all\nMaintainer: a test <test@example.com>\n"
    (tree / "DEBIAN" / "control").write_text(f"{control}Description: a sample\n")
    content = tree / "usr" / "share" / NAME / "content.bin"
    content.parent.mkdir(parents=True)
    content.write_bytes(CONTENT)
    package = folder / "pool" / f"{NAME}_{VERSION}_all.deb"
    package.parent.mkdir()
    _run("dpkg-deb", "--root-owner-group", "--build", str(tree), str(package))
    data = package.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    told = f"{control}Filename: pool/{package.name}\nSize: {len(data)}\nSHA256: {digest}\nDescription: a sample\n\n"
    lists = folder / "dists" / "stable" / "main" / "binary-amd64"
    lists.mkdir(parents=True)
    (lists / "Packages").write_text(told)
    digest = hashlib.sha256(told.encode()).hexdigest()
    release = f"Suite: stable\nCodename: stable\nArchitectures: amd64\nComponents: main\nSHA256:\n {digest} {len(told)}"
    (folder / "dists" / "stable" / "Release").write_text(f"{release} main/binary-amd64/Packages\n")


def _make_repository(folder: Path) -> str:
    work = folder.with_suffix(".work")
    work.mkdir(parents=True)
    (work / "content.bin").write_bytes(CONTENT)
    who = ["-c", "user.name=a test", "-c", "user.email=test@example.com"]
    _run("git", "init", "-q", "-b", "main", str(work))
    _run("git", "-C", str(work), "add", ".")
    _run("git", "-C", str(work), *who, "commit", "-q", "-m", "A sample")
    _run("git", "clone", "-q", "--bare", str(work), str(folder))
    return _run("git", "-C", str(folder), "rev-parse", "HEAD").strip()


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

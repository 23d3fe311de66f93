"""Packages of npm: fetched from a real server, as this host's npm is set up, and taken only if they were pinned."""

import base64
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from images import npm
from images.errors import ImageError
from images.npm import Fetcher, hexadecimal
from images.npmrc import Registry, Settings, ask_npm
from images.recipe import NpmPackage
from tests.unit.images.image_archives import file, write

_SILENT = "no such default"


@dataclass
class Server:
    """A registry with one package, `@made/up`, and what it was asked."""

    url: str
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def describe(self, **dist: str) -> None:
        about = {"versions": {"1.0.0": {"dist": dist}}}
        self.answers["/npm/@made%2Fup"] = 200, json.dumps(about).encode()


@contextlib.contextmanager
def _serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            known.asked.append((self.path, self.headers["Authorization"]))
            status, body = known.answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known = Server(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield known
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with _serving() as server:
        yield server


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    return write(tmp_path / "made-up.tgz", [file("package/tool", b"tool", 0o755)]).read_bytes()


@pytest.fixture
def package(archive: bytes) -> NpmPackage:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    return NpmPackage("@made/up", "1.0.0", integrity, {"tool": "/usr/local/bin/tool"})


_TARBALL = "/npm/@made/up/-/up-1.0.0.tgz"


@pytest.fixture
def fetcher(server: Server, archive: bytes, package: NpmPackage, tmp_path: Path) -> Fetcher:
    """Of a registry that has what was pinned."""
    server.describe(tarball=f"{server.url}{_TARBALL}", integrity=package.integrity)
    server.answers[_TARBALL] = 200, archive
    (tmp_path / "work").mkdir()
    registry = Registry(f"{server.url}/npm/", "Bearer secret")
    return Fetcher(tmp_path / "cache", tmp_path / "work", lambda _: registry, lambda _: None)


def test_a_package_is_fetched_once(fetcher: Fetcher, server: Server, package: NpmPackage, archive: bytes) -> None:
    place = fetcher.archive(package)
    assert place.read_bytes() == archive
    assert place.name == f"{hexadecimal(package.integrity)[:32]}.tgz"
    assert server.asked == [("/npm/@made%2Fup", "Bearer secret"), (_TARBALL, "Bearer secret")]
    assert fetcher.archive(package) == place
    assert len(server.asked) == 2


def test_an_archive_that_was_spoilt_in_the_cache_is_fetched_again(
    fetcher: Fetcher, server: Server, package: NpmPackage, archive: bytes
) -> None:
    fetcher.archive(package).write_bytes(b"spoilt")
    assert fetcher.archive(package).read_bytes() == archive
    assert server.paths.count(_TARBALL) == 2


def test_other_content_than_was_pinned_is_refused(
    fetcher: Fetcher, server: Server, package: NpmPackage, tmp_path: Path
) -> None:
    server.answers[_TARBALL] = 200, write(tmp_path / "evil.tgz", [file("package/tool", b"evil")]).read_bytes()
    with pytest.raises(ImageError, match=r"@made/up@1.0.0: the registry has other content(.|\n)*pinned sha512-"):
        fetcher.archive(package)
    assert list(tmp_path.glob("cache/*")) == []


def test_a_registry_that_says_another_hash_is_not_asked_for_the_archive(
    fetcher: Fetcher, server: Server, package: NpmPackage
) -> None:
    server.describe(tarball=f"{server.url}{_TARBALL}", integrity="sha512-other")
    with pytest.raises(ImageError, match="there  sha512-other"):
        fetcher.archive(package)
    assert _TARBALL not in server.paths


@pytest.mark.parametrize(
    "about", [b"not json", b"[]", b"{}", b'{"versions": []}', b'{"versions": {"1.0.0": {"dist": 1}}}']
)
def test_a_version_that_is_not_there_is_named(
    fetcher: Fetcher, server: Server, package: NpmPackage, about: bytes
) -> None:
    server.answers["/npm/@made%2Fup"] = 200, about
    with pytest.raises(ImageError, match=r"@made/up@1\.0\.0"):
        fetcher.archive(package)


def test_a_package_that_is_not_there_is_told_at_once(fetcher: Fetcher, server: Server, package: NpmPackage) -> None:
    with pytest.raises(ImageError, match=r"/npm/nowhere: answered 404"):
        fetcher.archive(replace(package, name="nowhere"))
    assert server.paths == ["/npm/nowhere"]


def test_a_disturbed_registry_is_asked_again(
    fetcher: Fetcher, server: Server, package: NpmPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npm, "_WAIT_S", 0.0)
    server.answers["/npm/@made%2Fup"] = 503, b""
    with pytest.raises(ImageError, match="answered 503"):
        fetcher.archive(package)
    assert len(server.asked) == 3


def test_an_archive_elsewhere_is_looked_for_at_the_registry_first_and_gets_no_secret(
    fetcher: Fetcher, server: Server, package: NpmPackage, archive: bytes
) -> None:
    with _serving() as elsewhere:
        elsewhere.answers["/up.tgz"] = 200, archive
        server.describe(tarball=f"{elsewhere.url}/up.tgz")
        fetcher.archive(package)
        assert elsewhere.asked == []
        fetcher.archive(package).unlink()
        del server.answers[_TARBALL]
        fetcher.archive(package)
        assert elsewhere.asked == [("/up.tgz", None)]


def test_a_secret_is_not_taken_along_to_where_the_registry_sends_us(
    fetcher: Fetcher, server: Server, package: NpmPackage, archive: bytes
) -> None:
    with _serving() as elsewhere:
        elsewhere.answers["/up.tgz"] = 200, archive
        server.answers[_TARBALL] = 302, f"{elsewhere.url}/up.tgz".encode()
        fetcher.archive(package)
        assert elsewhere.asked == [("/up.tgz", None)]


def test_an_archive_without_an_end_is_cut(
    fetcher: Fetcher, package: NpmPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npm, "_ARCHIVE_BYTES", 10)
    with pytest.raises(ImageError, match="is larger than 10 bytes"):
        fetcher.archive(package)
    assert list(tmp_path.glob("cache/*")) == []


def test_an_unreachable_registry_is_named(package: NpmPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "_WAIT_S", 0.0)
    registry = Registry("http://127.0.0.1:1/", "Bearer secret")
    with pytest.raises(ImageError, match=r"http://127.0.0.1:1/@made%2Fup: cannot be reached") as caught:
        Fetcher(tmp_path, tmp_path, lambda _: registry, lambda _: None).archive(package)
    assert "secret" not in str(caught.value) + repr(registry)


def test_archives_that_nobody_asked_for_in_a_month_go(fetcher: Fetcher, package: NpmPackage, tmp_path: Path) -> None:
    place = fetcher.archive(package)
    old = tmp_path / "cache/old.tgz"
    old.write_bytes(b"")
    now = place.stat().st_mtime
    os.utime(old, (now, now - 31 * 24 * 3600))
    fetcher.forget_old(now)
    assert list(tmp_path.glob("cache/*")) == [place]


# Which registry.


def _settings(root: Path, *, user: str = "", everyone: str = "", **environ: str) -> Settings:
    for path, text in (("root/.npmrc", user), ("etc/npmrc", everyone)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Settings({"HOME": "/root", **environ}, root)


def _never() -> str:
    raise ImageError(_SILENT)


def test_a_variable_comes_before_the_users_file_and_that_before_everybodys(tmp_path: Path) -> None:
    files = {"user": "; comment\nregistry = https://user.example/npm\n", "everyone": "registry=https://all.example/\n"}
    assert _settings(tmp_path, **files).registry("a", _never).url == "https://user.example/npm/"
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        settings = _settings(tmp_path, **files, **{name: "http://variable.example"})
        assert settings.registry("a", _never).url == "http://variable.example/"
    only = _settings(tmp_path, everyone=files["everyone"])
    assert only.registry("a", _never).url == "https://all.example/"


def test_a_scope_may_have_a_registry_of_its_own(tmp_path: Path) -> None:
    settings = _settings(tmp_path, user="registry=https://a.example\n@made:registry=https://b.example/\n")
    assert settings.registry("@made/up", _never).url == "https://b.example/"
    assert settings.registry("@other/up", _never).url == "https://a.example/"


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ("//r.example/npm/:_authToken=abc", "Bearer abc"),
        ("//r.example/npm/:_authToken=${TOKEN}", "Bearer from-variable"),
        ("//r.example/:_auth=bmFtZTp3b3Jk", "Basic bmFtZTp3b3Jk"),
        ("//r.example/:username=name\n//r.example/:_password=d29yZA==", "Basic bmFtZTp3b3Jk"),
        ("//other.example/:_authToken=abc", None),
        ("//r.example/npm/deeper/:_authToken=abc", None),
        ("//r.example:8443/:_authToken=abc", None),
        ("_authToken=abc", None),
    ],
)
def test_a_secret_belongs_to_the_registry_that_it_is_kept_for(tmp_path: Path, line: str, header: str | None) -> None:
    text = f"registry=https://r.example/npm/\n{line}\ncafile=/etc/ca.pem\n"
    registry = _settings(tmp_path, user=text, TOKEN="from-variable").registry("a", _never)
    assert (registry.url, registry.secret) == ("https://r.example/npm/", header)
    assert registry.cafile == tmp_path / "etc/ca.pem"


def test_name_and_password_in_an_address_become_a_header(tmp_path: Path) -> None:
    settings = _settings(tmp_path, npm_config_registry="https://name:w%40rd@r.example:8443")
    registry = settings.registry("a", _never)
    assert (registry.url, registry.secret) == ("https://r.example:8443/", "Basic bmFtZTp3QHJk")
    assert "w@rd" not in repr(registry)


@pytest.mark.parametrize("url", ["ftp://r.example", "r.example", "file:///etc", "https://"])
def test_an_address_that_is_none_is_refused_with_what_to_set(tmp_path: Path, url: str) -> None:
    with pytest.raises(ImageError, match=r"must begin with http(.|\n)*npm_config_registry"):
        _settings(tmp_path, npm_config_registry=url).registry("a", _never)


def test_where_nothing_is_set_the_default_is_asked_for(tmp_path: Path) -> None:
    assert _settings(tmp_path).registry("a", lambda: "https://default.example").url == "https://default.example/"


def test_without_npm_its_default_is_what_debians_package_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match=r"names a registry(.|\n)*npm_config_registry"):
        ask_npm(lambda: tmp_path)
    source = tmp_path / "usr/share/nodejs/npm/node_modules/npm-registry-fetch/lib/default-opts.js"
    source.parent.mkdir(parents=True)
    source.write_text("module.exports = {\n  maxSockets: 12,\n  registry: 'https://default.example/',\n}\n")
    assert ask_npm(lambda: tmp_path) == "https://default.example/"

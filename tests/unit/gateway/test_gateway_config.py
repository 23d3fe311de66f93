"""What a gateway may be told, and how it refuses the rest: by the variable and the value."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import Config, S3Place
from gateway.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("registry", "pki"):
        (tmp_path / name).mkdir()
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    return tmp_path


def read(folder: Path, **variables: str) -> Config:
    usual = {"GATEWAY_REGISTRY": str(folder / "registry"), "GATEWAY_PKI": str(folder / "pki")}
    return Config.from_environment({**usual, **variables}, hostname="Box.Example_1")


def test_what_is_usual(folder: Path) -> None:
    config = read(folder)
    assert (config.host, config.port, config.workers, config.hosts) == ("127.0.0.1", 8080, 1, {})
    assert config.name == "box.example-1"
    assert (config.domain, config.preview_rate) == (None, 200)
    assert config.pki.tickets_key == folder / "pki" / "tickets.key"


def test_hosts_have_names_or_are_named_after_their_machine(folder: Path) -> None:
    config = read(folder, GATEWAY_HOSTS="https://a.example:7070, blue=http://127.0.0.1:7071")
    assert config.hosts == {"a.example": "https://a.example:7070", "blue": "http://127.0.0.1:7071"}


def test_the_registry_may_be_in_s3(folder: Path) -> None:
    config = read(folder, GATEWAY_REGISTRY="s3://my.bucket/c1/registry/")
    assert config.registry == S3Place("my.bucket", "c1/registry", "auto", 5, None)
    told = {"GATEWAY_REGISTRY_ADDRESSING": "path", "GATEWAY_REGISTRY_TIMEOUT_SEC": "9", "AWS_REGION": "eu-west-1"}
    config = read(folder, GATEWAY_REGISTRY="s3://bucket/a/b/c/d", **told)
    assert config.registry == S3Place("bucket", "a/b/c/d", "path", 9, "eu-west-1")


def test_a_gateway_with_a_folder_pays_nothing_for_s3() -> None:
    asked = "import sys, gateway.serving, gateway.__main__; print([n for n in sys.modules if 'boto' in n])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_any_address_is_served_with_tls(folder: Path) -> None:
    files = {"GATEWAY_TLS_CERT": str(folder / "cert.pem"), "GATEWAY_TLS_KEY": str(folder / "key.pem")}
    assert read(folder, GATEWAY_LISTEN="0.0.0.0:443", **files).host == "0.0.0.0"
    assert read(folder, GATEWAY_LISTEN="[::1]:443").host == "::1"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GATEWAY_LISTEN", "0.0.0.0:8080"),
        ("GATEWAY_LISTEN", "8080"),
        ("GATEWAY_LISTEN", "127.0.0.1:0"),
        ("GATEWAY_LISTEN", "127.0.0.1:99999"),
        ("GATEWAY_WORKERS", "0"),
        ("GATEWAY_WORKERS", "many"),
        ("GATEWAY_JOBS_AGENT", "clippy"),
        ("GATEWAY_JOBS_AGENT", ""),
        ("GATEWAY_PREVIEW_RATE", "-1"),
        ("GATEWAY_PREVIEW_RATE", "1.5"),
        ("GATEWAY_HOSTS", "http://a.example:7070"),
        ("GATEWAY_HOSTS", "https://a.example"),
        ("GATEWAY_HOSTS", "a=https://a:1,a=https://b:1"),
        ("GATEWAY_HOSTS", "A B=https://a:1"),
        ("GATEWAY_DOMAIN", "-x"),
        ("GATEWAY_NAME", "a b"),
        ("GATEWAY_REGISTRY", ""),
        ("GATEWAY_REGISTRY", "/nowhere/at/all"),
        ("GATEWAY_REGISTRY", "s3://bucket"),
        ("GATEWAY_REGISTRY", "s3://Bucket/x"),
        ("GATEWAY_REGISTRY", "s3://bucket/a/b/c/d/e"),
        ("GATEWAY_REGISTRY", "s3://bucket/../x"),
        ("GATEWAY_REGISTRY", "https://bucket/x"),
        ("GATEWAY_REGISTRY_ADDRESSING", "by-name"),
        ("GATEWAY_REGISTRY_TIMEOUT_SEC", "0"),
        ("GATEWAY_PKI", ""),
        ("GATEWAY_TLS_CERT", "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(folder: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        read(folder, **{variable: value})


def test_a_certificate_needs_its_key(folder: Path) -> None:
    with pytest.raises(ConfigError, match="GATEWAY_TLS_KEY"):
        read(folder, GATEWAY_TLS_CERT=str(folder / "cert.pem"))

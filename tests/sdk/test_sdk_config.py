"""Where the gateway is: arguments, environment and file, and to which addresses a key may go."""

import stat
from pathlib import Path

import pytest

from tests.sdk.sdk_replies import KEY
from warren import calls
from warren.config import Config, checked_url, config_file, resolve, store
from warren.errors import ConfigError
from warren.models import read


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), **more}


def test_arguments_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    store(Config("https://file", KEY), environment(tmp_path))
    assert resolve(environ=environment(tmp_path)) == Config("https://file", KEY)
    both = environment(tmp_path, WARREN_URL="https://environment", WARREN_API_KEY="wrn_e")
    assert resolve(environ=both) == Config("https://environment", "wrn_e")
    assert resolve("https://argument/", "wrn_a", environ=both) == Config("https://argument", "wrn_a")


def test_a_stored_key_is_not_sent_to_another_gateway(tmp_path: Path) -> None:
    store(Config("https://file", KEY), environment(tmp_path))
    with pytest.raises(ConfigError, match="no key for https://other"):
        resolve("https://other", environ=environment(tmp_path))


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    file = store(Config("https://file", KEY), environment(tmp_path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["config.json"]
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        resolve(environ=environment(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", '{"url": 1}', "{"])
def test_a_broken_file_says_what_to_do(tmp_path: Path, content: str) -> None:
    file = config_file(environment(tmp_path))
    file.parent.mkdir(parents=True)
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError):
        resolve(environ=environment(tmp_path))


def test_without_anything_it_says_how_to_log_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="warren login"):
        resolve(environ=environment(tmp_path))


@pytest.mark.parametrize(
    "url", ["http://example.com", "ftp://x", "example.com", "https://", "https://a:b@c", "https://x:99999", "unix:rel"]
)
def test_an_address_to_which_no_key_may_go_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        checked_url(url)


@pytest.mark.parametrize("url", ["https://example.com", "http://127.0.0.1:8080", "http://[::1]:1", "http://localhost"])
def test_an_address_to_which_a_key_may_go_is_taken(url: str) -> None:
    assert checked_url(url + "/") == url


@pytest.mark.parametrize("key", ["wrn_\n\nx", "wrn x", "wrn_ü", "  "])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("https://x", key, environ={})
    assert key.strip() == "" or key not in str(refused.value)


def test_secrets_are_not_in_what_is_shown_of_a_value() -> None:
    assert KEY not in repr(Config("https://x", KEY))
    assert "secret" not in repr(read(calls.Ticket, {"url": "wss://h", "ticket": "secret"}))

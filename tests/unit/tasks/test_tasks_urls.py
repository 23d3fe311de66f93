"""Addresses of the web are read in one way only, and what may be a password is never shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import BadField
from poold.tasks.repos import read_repo
from poold.tasks.urls import Credentials, read_url, redacted

PASSWORD = "hunter2-Zz9"


@pytest.mark.parametrize(
    ("text", "url", "host", "port", "credentials"),
    [
        ("https://example.com/a/b.git", "https://example.com/a/b.git", "example.com", 443, None),
        ("HTTPS://Example.COM./a", "https://example.com/a", "example.com", 443, None),
        ("http://example.com:8080/a", "http://example.com:8080/a", "example.com", 8080, None),
        ("https://example.com:443/a", "https://example.com/a", "example.com", 443, None),
        ("http://10.1.2.3:3000/a", "http://10.1.2.3:3000/a", "10.1.2.3", 3000, None),
        ("http://[2001:DB8::1]:81/a", "http://[2001:db8::1]:81/a", "2001:db8::1", 81, None),
        ("https://ann:pw@example.com/a", "https://example.com/a", "example.com", 443, ("ann", "pw")),
        ("https://tok@example.com/a", "https://example.com/a", "example.com", 443, ("tok", "")),
        ("https://:pw@example.com/a", "https://example.com/a", "example.com", 443, ("", "pw")),
        ("https://a%40b:p%2Fw%3A%25@example.com/a", "https://example.com/a", "example.com", 443, ("a@b", "p/w:%")),
        ("https://a:b:c@example.com/a", "https://example.com/a", "example.com", 443, ("a", "b:c")),
        ("https://@example.com/a", "https://example.com/a", "example.com", 443, None),
    ],
)
def test_a_repository_is_known_apart_from_its_credentials(
    text: str, url: str, host: str, port: int, credentials: tuple[str, str] | None
) -> None:
    repo = read_repo(text)
    assert (repo.url, repo.host, repo.port) == (url, host, port)
    assert repo.credentials == (None if credentials is None else Credentials(*credentials))


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.com/a", "ftp://example.com/a", "git@example.com:a/b", "ssh://git@example.com/a", "/srv/a"),
        *("https://", "https:///a", "https://example.com", "https://example.com/", "https://example.com//"),
        *("https://example.com:0/a", "https://example.com:65536/a", "https://example.com:x/a", "https://a b/c"),
        *("https://example.com/a?b=c", "https://example.com/a#b", "https://example.com/a\n", "https://exa\tmple.com/a"),
        *("https://2130706433/a", "https://0x7f.1/a", "https://127.1/a", "https://[::1/a", "https://[127.0.0.1]/a"),
        *("https://exämple.com/a", "https://example.com\\@evil.com/a", "https://a@b@example.com/a"),
        *("https://example.com/a@b", "https://u:p%0Aw@example.com/a", "https://u:%zz@example.com/a"),
        *("https://u:%ff@example.com/a", "https://example.com/" + "a" * 2048, "-https://example.com/a"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(BadField) as caught:
        read_repo(text)
    assert caught.value.details["field"] == "repo"


# A password wherever people leave it, in addresses that are refused for one reason or another.
@pytest.mark.parametrize(
    "text",
    [
        f"https://ann:{PASSWORD}@",
        f"https://ann:{PASSWORD}@exa mple.com/a",
        f"https://ann:{PASSWORD}@example.com/a?b",
        f"https://ann:{PASSWORD}@example.com:99999/a",
        f"https://ann:x/{PASSWORD}@example.com/a",
        f"https://ann:12/{PASSWORD}@example.com/a",
        f"https://ann:x?{PASSWORD}@example.com/a",
        f"https://ann:12#{PASSWORD}@example.com/a",
        f"https://ann:{PASSWORD}@b@example.com/a",
        f"https://ann:{PASSWORD}%0A@example.com/a",
        f"https://{PASSWORD}@example.com",
        f"https://ann:{PASSWORD}/example.com",
        f"https://ann:{PASSWORD}",
        f"https://example.com/a?token={PASSWORD}",
        f"https://example.com/a?token=x@{PASSWORD}",
        f"https://example.com/a#{PASSWORD}",
        f"ssh://ann:{PASSWORD}@example.com/a",
        f"ann:{PASSWORD}@example.com",
        f"{PASSWORD}@example.com:a/b",
    ],
)
def test_no_message_and_no_value_shows_a_password(text: str) -> None:
    with pytest.raises(BadField) as caught:
        read_repo(text)
    assert PASSWORD not in str(caught.value) + repr(caught.value.body()) + repr(caught.value.__cause__)
    assert PASSWORD not in redacted(text)


def test_no_repr_shows_a_password() -> None:
    repo = read_repo(f"https://ann:{PASSWORD}@example.com/a")
    assert PASSWORD not in f"{repo!r} {repo.place!r} {repo.credentials!r} {repo.place} {repo.url}"


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_bad_field(text: str) -> None:
    for each in (text, f"https://{text}", f"https://example.com/{text}", f"https://a:{text}@example.com/b"):
        try:
            url = read_url(each, "repo")
        except BadField:
            continue
        assert read_url(str(url), "repo") == type(url)(*(getattr(url, n) for n in list(vars(url))[:-1]), None)

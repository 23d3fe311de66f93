"""Whose certificate it is: exactly one name of ours, or nobody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import BadField
from contract.identity import Identity, Kind, identity, peer_identity


@given(st.sampled_from(Kind), st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True))
def test_what_is_written_into_a_certificate_is_what_is_read(kind: Kind, name: str) -> None:
    whose = Identity(kind, name)
    assert whose.uri == f"spiffe://warren/{kind}/{name}"
    assert identity([whose.uri]) == whose
    assert identity(["https://example.org", whose.uri]) == whose


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://warren/host/a"],
        ["spiffe://warren/host/"],
        ["spiffe://warren/host"],
        ["spiffe://warren/"],
        ["spiffe://warren/operator/a"],
        ["spiffe://warren/host/a/b"],
        ["spiffe://warren/host/A"],
        ["spiffe://warren/host/a\n"],
        ["spiffe://warren.example.org/host/a"],
        ["spiffe://other/host/a"],
        ["spiffe://warren/host/a", "spiffe://warren/gateway/a"],
        ["spiffe://warren/host/a", "spiffe://warren/nonsense"],
    ],
)
def test_anything_else_is_nobody(uris: list[str]) -> None:
    assert identity(uris) is None


def test_what_the_tls_library_says_of_a_peer() -> None:
    names = (("DNS", "spiffe://warren/gateway/g"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://warren/host/a"))
    assert peer_identity({"subjectAltName": names}) == Identity(Kind.HOST, "a")
    assert peer_identity({}) is None  # a certificate that was not verified
    assert peer_identity(None) is None  # no certificate


def test_a_name_that_could_be_a_path_is_none() -> None:
    for name in ("", "..", "a/b", "A", "a" * 64):
        with pytest.raises(BadField, match="name"):
            Identity(Kind.HOST, name)
    assert str(Identity(Kind.GATEWAY, "g-1")) == "gateway g-1"

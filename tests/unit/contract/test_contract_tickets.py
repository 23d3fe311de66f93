"""Tickets: a host believes what a gateway signed for it, for as long as it holds, and nothing else."""

import base64
import string
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from contract.keys import MAX_NETWORK_BYTES, Pools
from contract.network import HostRule, Mode, Network
from contract.tickets import (
    LIFE_MS,
    MAX_CHARS,
    MAX_KEYS,
    SKEW_MS,
    Access,
    BadTicket,
    Signer,
    Ticket,
    Used,
    Verifier,
    public_pems,
)

NOW_MS = 1_800_000_000_000
SANDBOX = "sb-aaaaaaaaaaaaaaaa"
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"


class Clock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


NOW = Clock()  # nobody moves this one


def private(seed: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


def pem_of(key: Any) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def public_of(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def signer(seed: int = 1, clock: Callable[[], int] = NOW, nonce: str = "n") -> Signer:
    return Signer(pem_of(private(seed)), now_ms=clock, nonce=lambda: nonce)


def verifier(*seeds: int, host: str = "a", clock: Callable[[], int] = NOW, life_ms: int = LIFE_MS) -> Verifier:
    return Verifier(host, [public_of(private(seed)) for seed in seeds or (1,)], now_ms=clock, life_ms=life_ms)


def signed(payload: bytes, seed: int = 1) -> str:
    """A ticket with any payload, as only a gateway's key can make it."""
    text = base64.urlsafe_b64encode(payload).rstrip(b"=")
    signature = base64.urlsafe_b64encode(private(seed).sign(b"warren ticket " + text)).rstrip(b"=")
    return f"wt1.{text.decode()}.{signature.decode()}"


def values(**changed: object) -> dict[str, object]:
    ticket = Ticket("a", "ann", Access.WRITE, SANDBOX, NOW_MS + LIFE_MS, "n")
    return {**vars(ticket), **changed}


@given(
    st.text(max_size=63),
    st.text(max_size=64),
    st.sampled_from(Access),
    st.none() | st.just(SANDBOX),
    st.none() | st.builds(Pools, *[st.integers(0, 1 << 40)] * 3),
)
def test_what_was_signed_is_what_is_read(
    host: str, owner: str, access: Access, sandbox: str | None, pools: Pools | None
) -> None:
    text = signer().sign(host, owner, access, sandbox, pools=pools)
    assert len(text) <= MAX_CHARS
    read = verifier(host=host).verify(text)
    assert read == Ticket(host, owner, access, sandbox, NOW_MS + LIFE_MS, "n", pools)
    assert type(read.access) is Access


def test_tickets_are_written_as_they_always_were() -> None:
    """Written down: hosts and gateways of two versions speak to each other during an upgrade."""
    assert signer().sign("a", "ann", Access.WRITE, SANDBOX, pools=Pools(1, 2, 3)) == RECORDED
    assert verifier().verify(RECORDED).pools == Pools(1, 2, 3)


def test_a_create_may_carry_the_network_of_its_key_and_the_largest_one_fits() -> None:
    rules = tuple(HostRule(f"host-{number:02}.example.com") for number in range(52))
    network = Network(Mode.LIST, rules, hold_sec=60)
    assert MAX_NETWORK_BYTES - 300 < len(orjson.dumps(network.view())) <= MAX_NETWORK_BYTES
    text = signer(nonce="n" * 64).sign("h" * 63, "o" * 64, Access.WRITE, SANDBOX, network=network, pools=Pools())
    assert len(text) <= MAX_CHARS
    reader = verifier(host="h" * 63)
    for _ in range(2):
        read = reader.verify(text)
        assert read.network is not None
        assert Network.decode(read.network) == network
    assert reader._good == {}  # it is large, and will not come again


def test_a_host_of_a_former_version_sees_nothing_new_in_a_ticket_without_a_network() -> None:
    payload = signer().sign("a", "ann", Access.WRITE, SANDBOX).split(".")[1]
    assert set(orjson.loads(base64.urlsafe_b64decode(payload + "=="))) == {*vars(EMPTY)} - {"network"}


EMPTY = Ticket("a", "ann", Access.WRITE, SANDBOX, NOW_MS, "n")
RECORDED = (
    "wt1.eyJob3N0IjoiYSIsIm93bmVyIjoiYW5uIiwiYWNjZXNzIjoid3JpdGUiLCJzYW5kYm94Ijoic2ItYWFhYWFhYWFhYWFhYWFh"
    "YSIsImV4cGlyZXNfbXMiOjE4MDAwMDAwNjAwMDAsIm5vbmNlIjoibiIsInBvb2xzIjp7InZjcHVzIjoxLCJtZW1vcnlfbWIiOjIs"
    "ImRpc2tfbWIiOjN9fQ.mH3ftwnIhce3RDVziZ5DbR21GufZNdp24tyG2zsFyjFI5BIfZW5k0ykCWMenh3-V2dXI65qDAYPo88hEt"
    "FiiAw"
)


class TestRefused:
    def test_every_change_of_a_single_character(self) -> None:
        text = signer().sign("a", "ann", Access.WRITE, SANDBOX, pools=Pools())
        reader = verifier()
        assert reader.verify(text)
        for place, character in enumerate(text):
            at = ALPHABET.find(character)
            near = [ALPHABET[at ^ bit] for bit in (1, 2, 4, 8, 16, 32)] if at >= 0 else []
            for other in {*near, ".", "=", "+", "/", " ", "é", "\udc80", ""} - {character}:
                with pytest.raises(BadTicket):
                    reader.verify(text[:place] + other + text[place + 1 :])

    def test_what_was_added_or_cut_off(self) -> None:
        text = signer().sign("a", "ann", Access.WRITE, SANDBOX)
        for other in (text + "A", text + "=", text + ".", text + ".A", " " + text, text + "\n", text[1:], "." + text):
            with pytest.raises(BadTicket):
                verifier().verify(other)

    @given(st.text(max_size=200) | st.from_regex(r"wt1\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True) | st.none())
    def test_whatever_else_is_sent(self, text: str | None) -> None:
        with pytest.raises(BadTicket) as refused:
            verifier().verify(text)
        assert (refused.value.status, refused.value.code) == (401, "bad_ticket")

    def test_text_that_no_encoding_knows(self) -> None:
        for text in ("wt1.\ud800.AAAA", "\ud800", "wt1.AAAA.\ud800"):
            with pytest.raises(BadTicket):
                verifier().verify(text)

    def test_one_that_is_too_long_even_if_it_is_signed(self) -> None:
        with pytest.raises(BadTicket):
            verifier().verify(signer().sign("a", "o" * MAX_CHARS, Access.READ))

    def test_one_for_another_host(self) -> None:
        with pytest.raises(BadTicket, match="another host than b"):
            verifier(host="b").verify(signer().sign("a", "ann", Access.READ))

    def test_one_of_another_cluster(self) -> None:
        with pytest.raises(BadTicket, match="not signed"):
            verifier(2).verify(signer(1).sign("a", "ann", Access.READ))
        with pytest.raises(BadTicket, match="not signed"):
            Verifier("a", [], now_ms=Clock()).verify(signer(1).sign("a", "ann", Access.READ))

    def test_a_signature_for_something_else_is_none_for_a_ticket(self) -> None:
        payload = base64.urlsafe_b64encode(orjson.dumps(values())).rstrip(b"=")
        signature = base64.urlsafe_b64encode(private(1).sign(payload)).rstrip(b"=")
        with pytest.raises(BadTicket, match="not signed"):
            verifier().verify(f"wt1.{payload.decode()}.{signature.decode()}")

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"not json",
            b"[]",
            b"null",
            b"{}",
            b'"a"',
            *(
                orjson.dumps(changed)
                for changed in (
                    values(only_on="tuesdays"),
                    values(access="everything"),
                    values(access=None),
                    values(expires_ms="never"),
                    values(expires_ms=1e300),
                    values(expires_ms=True),
                    values(host=None),
                    values(owner=7),
                    values(nonce=[]),
                    values(sandbox=7),
                    values(pools=7),
                    values(pools={"gpus": 1}),
                    values(pools={"vcpus": "many"}),
                    values(network=7),
                    values(network=[]),
                    values(network={"policy": "everything"}),
                    values(network={"policy": "open", "but": "not"}),
                    {name: value for name, value in values().items() if name != "pools"},
                    {name: value for name, value in values().items() if name != "host"},
                )
            ),
        ],
    )
    def test_one_that_says_what_we_do_not_understand(self, payload: bytes) -> None:
        with pytest.raises(BadTicket, match="cannot be read"):
            verifier().verify(signed(payload))

    def test_no_message_has_the_ticket_in_it(self) -> None:
        good = signer().sign("a", "ann", Access.READ)
        for text, host in ((good, "b"), (good[:-1], "a"), (signed(b"{}"), "a")):
            with pytest.raises(BadTicket) as refused:
                verifier(host=host).verify(text)
            assert text[4:20] not in str(refused.value.body())


class TestTimes:
    def test_a_ticket_is_good_for_its_life_and_the_clocks_difference(self) -> None:
        clock = Clock()
        text = signer(clock=clock).sign("a", "ann", Access.READ)
        reader = verifier(clock=clock)
        for now_ms in (NOW_MS - SKEW_MS, NOW_MS, NOW_MS + LIFE_MS + SKEW_MS - 1):
            clock.now_ms = now_ms
            assert reader.verify(text).owner == "ann"

    def test_one_that_has_expired_is_refused_also_if_it_was_good_before(self) -> None:
        clock = Clock()
        text = signer(clock=clock).sign("a", "ann", Access.READ)
        knows_it, does_not = verifier(clock=clock), verifier(clock=clock)
        knows_it.verify(text)
        clock.now_ms = NOW_MS + LIFE_MS + SKEW_MS
        for reader in (knows_it, does_not, knows_it):
            with pytest.raises(BadTicket, match="has expired"):
                reader.verify(text)

    def test_one_that_would_be_good_for_longer_than_any_is_refused(self) -> None:
        clock = Clock(NOW_MS - SKEW_MS - 1)
        for text in (signer().sign("a", "ann", Access.READ), signer().sign("a", "b", Access.READ, life_ms=10**15)):
            for _ in range(2):
                with pytest.raises(BadTicket, match="too long"):
                    verifier(clock=clock).verify(text)

    def test_a_host_may_allow_a_longer_life(self) -> None:
        text = signer().sign("a", "ann", Access.ATTACH, life_ms=10 * LIFE_MS)
        assert verifier(life_ms=10 * LIFE_MS).verify(text).expires_ms == NOW_MS + 10 * LIFE_MS


class TestKeys:
    def test_while_the_key_is_replaced_tickets_of_both_are_good(self) -> None:
        both = public_of(private(2)) + public_of(private(1))
        assert public_pems(both) == [public_of(private(2)), public_of(private(1))]
        reader = Verifier("a", public_pems(both), now_ms=Clock())
        for seed in (1, 2):
            assert reader.verify(signer(seed).sign("a", "ann", Access.READ)).owner == "ann"
        with pytest.raises(BadTicket):
            reader.verify(signer(3).sign("a", "ann", Access.READ))

    def test_what_is_no_public_key_is_passed_over(self) -> None:
        assert public_pems(b"") == []
        assert public_pems(b"# made today\n" + public_of(private(1))) == [public_of(private(1))]
        assert public_pems(pem_of(private(1))) == []

    def test_only_ed25519_keys_are_taken_and_not_too_many(self) -> None:
        other = generate_private_key(SECP256R1())
        with pytest.raises(ValueError, match="Ed25519 private key"):
            Signer(pem_of(other), now_ms=Clock(), nonce=str)
        with pytest.raises(ValueError, match="Ed25519 public key"):
            Verifier("a", [public_of(other)], now_ms=Clock())
        with pytest.raises(ValueError, match="public keys for tickets"):
            verifier(*range(1, MAX_KEYS + 2))


def test_what_a_verifier_remembers_is_bounded_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verifier, "REMEMBERED", 3)
    reader = verifier()
    texts = [signer(nonce=str(n)).sign("a", f"o{n}", Access.READ) for n in range(10)]
    for _ in range(2):
        assert [reader.verify(text).owner for text in texts] == [f"o{n}" for n in range(10)]
        assert len(reader._good) <= 3


class TestUsedOnce:
    def test_a_ticket_that_was_used_is_refused_for_as_long_as_it_would_be_good(self) -> None:
        clock = Clock()
        used, reader = Used(clock), verifier(clock=clock)
        text = signer(clock=clock).sign("a", "ann", Access.ATTACH, SANDBOX)
        used.use(reader.verify(text))
        for now_ms in (NOW_MS, NOW_MS + LIFE_MS, NOW_MS + LIFE_MS + SKEW_MS - 1):
            clock.now_ms = now_ms
            with pytest.raises(BadTicket, match="used before"):
                used.use(reader.verify(text))
        clock.now_ms = NOW_MS + LIFE_MS + SKEW_MS
        with pytest.raises(BadTicket, match="has expired"):
            reader.verify(text)

    def test_others_are_not_concerned(self) -> None:
        used, reader = Used(Clock()), verifier()
        for nonce in "abc":
            used.use(reader.verify(signer(nonce=nonce).sign("a", "ann", Access.ATTACH, SANDBOX)))

    def test_those_that_are_over_are_forgotten(self) -> None:
        clock = Clock()
        used = Used(clock)
        for n in range(1000):
            used.use(Ticket("a", "ann", Access.ATTACH, SANDBOX, clock.now_ms + 10, str(n)))
            clock.now_ms += SKEW_MS
        assert len(used._until) <= 3

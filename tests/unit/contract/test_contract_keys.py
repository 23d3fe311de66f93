"""API keys: one secret by two names, records that say what was meant, and nothing that a stranger's JSON can do."""

import hashlib
import json
import os

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.errors import BadField, CallerError, WrongState
from contract.keys import (
    DEFAULT_RATE,
    MAX_NETWORK_BYTES,
    MAX_POOL,
    MAX_RATE,
    USUAL_SCOPES,
    Forbidden,
    Key,
    KeyAsked,
    NoKey,
    Pools,
    Scope,
    key_id,
    new_secret,
)
from contract.network import METHODS, HostRule, LimitsAsked, Mode, NetRule, Network

EXAMPLE = Network(Mode.LIST, (HostRule("example.com"),))
DIGITS = "0123456789abcdef0123456789abcdef01234567"
ID = hashlib.sha256(DIGITS.encode()).hexdigest()
NOW_MS = 1_800_000_000_000

plain = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=32)
sizes = st.integers(0, MAX_POOL)
moments = st.integers(1, 1 << 53)
hosts = st.builds(
    HostRule,
    st.sampled_from(["example.com", "*.example.org"]),
    st.lists(st.integers(1, 65535), min_size=1, max_size=3, unique=True).map(lambda ports: tuple(sorted(ports))),
    st.lists(st.sampled_from(METHODS), max_size=2).map(tuple),
    st.lists(st.sampled_from(["/", "/a/*", "/b?c=d"]), max_size=2).map(tuple),
)
networks = st.builds(
    Network,
    st.sampled_from(Mode),
    st.lists(hosts, max_size=5).map(tuple),
    st.lists(st.builds(NetRule, st.sampled_from(["10.0.0.0/8", "0.0.0.0/0"]), st.integers(1, 65535)), max_size=3).map(
        tuple
    ),
    st.integers(0, 3600),
    st.builds(LimitsAsked, st.none() | st.integers(1, 4096), up_mb=st.none() | st.integers(1, 1 << 30)),
)
records = st.builds(
    Key,
    id=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    owner=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", fullmatch=True),
    name=plain,
    plan=plain,
    pools=st.builds(Pools, sizes, sizes, sizes),
    scopes=st.lists(st.sampled_from(Scope), unique=True).map(tuple),
    rate=st.integers(1, MAX_RATE),
    created_ms=moments,
    expires_ms=st.none() | moments,
    active=st.booleans(),
    network=st.none() | networks,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4),
    max_leaves=10,
)
field_names = ("id", "owner", "name", "plan", "pools", "scopes", "rate", "created_ms", "expires_ms", "active")
field_names += ("network", "other")


def record(**changed: object) -> bytes:
    return json.dumps({"id": ID, "owner": "ann", "created_ms": NOW_MS, **changed}).encode()


class TestSecrets:
    def test_the_same_digits_are_the_same_key_after_both_names(self) -> None:
        assert key_id(f"wrn_{DIGITS}") == key_id(f"e2b_{DIGITS}") == ID

    @given(st.binary(min_size=20, max_size=20))
    def test_a_new_secret_is_one_and_its_id_does_not_tell_it(self, entropy: bytes) -> None:
        secret = new_secret(lambda count: entropy[:count])
        assert secret == f"wrn_{entropy.hex()}"
        assert key_id(secret) == hashlib.sha256(entropy.hex().encode()).hexdigest()

    def test_no_two_new_secrets_agree(self) -> None:
        assert len({new_secret(os.urandom) for _ in range(1_000)}) == 1_000

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "wrn_",
            DIGITS,
            f"wrn_{DIGITS}0",
            f"wrn_{DIGITS[1:]}",
            f"wrn_{DIGITS.upper()}",
            f"WRN_{DIGITS}",
            f"sk_{DIGITS}",
            f" wrn_{DIGITS}",
            f"wrn_{DIGITS}\n",
            f"wrn_{DIGITS[:-1]}٣",
            f"wrn_e2b_{DIGITS}",
            "wrn_\ud800" + DIGITS,
        ],
    )
    def test_what_has_not_the_form_of_a_key_is_refused_without_being_repeated(self, text: str) -> None:
        with pytest.raises(NoKey) as refused:
            key_id(text)
        assert (refused.value.status, refused.value.code) == (401, "bad_key")
        assert DIGITS[:10] not in str(refused.value.body())

    def test_a_good_key_for_something_else_is_forbidden(self) -> None:
        assert (Forbidden("no").status, Forbidden("no").code) == (403, "forbidden")


class TestRecords:
    @given(records)
    def test_what_is_written_is_what_is_read(self, key: Key) -> None:
        assert Key.decode(key.encode()) == key

    @given(records)
    def test_what_is_told_is_json_with_the_fields_of_the_record(self, key: Key) -> None:
        assert set(orjson.loads(key.encode())) == set(key.view()) == set(field_names) - {"other"}

    def test_what_is_not_said_is_as_usual(self) -> None:
        assert Key.decode(record()) == Key(ID, "ann", created_ms=NOW_MS)
        assert Key(ID, "ann").scopes == USUAL_SCOPES
        assert Key(ID, "ann").rate == DEFAULT_RATE

    def test_what_a_later_version_wrote_is_read_and_gives_no_right(self) -> None:
        later = record(region="north", scopes=["sandboxes", "billing"], pools={"vcpus": 2, "gpus": 8})
        assert Key.decode(later) == Key(ID, "ann", created_ms=NOW_MS, scopes=(Scope.SANDBOXES,), pools=Pools(vcpus=2))

    def test_a_network_that_we_do_not_understand_may_forbid_something_so_the_record_is_refused(self) -> None:
        for network in ({"policy": "weekdays"}, {"policy": "open", "but_not": ["example.com"]}, [], "open"):
            with pytest.raises(BadField, match="network"):
                Key.decode(record(network=network))

    @pytest.mark.parametrize("scopes", [[], ["billing"]])
    def test_a_record_without_a_scope_that_we_know_may_do_nothing(self, scopes: list[str]) -> None:
        assert Key.decode(record(scopes=scopes)).scopes == ()

    @given(st.binary(max_size=200))
    @example(b"")
    @example(b"[" * 100_000)
    @example(b'{"id":' * 5_000)
    def test_bytes_that_are_no_record_are_refused(self, data: bytes) -> None:
        with pytest.raises(CallerError):
            Key.decode(data)

    @given(st.dictionaries(st.sampled_from(field_names), json_values))
    def test_hostile_fields_are_refused_or_make_a_record_like_any_other(self, fields: dict[str, object]) -> None:
        data = json.dumps({"id": ID, "owner": "ann", "created_ms": NOW_MS, **fields}).encode()
        try:
            key = Key.decode(data)
        except CallerError:
            return
        assert Key.decode(key.encode()) == key

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", ID[1:]),
            ("id", ID.upper()),
            ("id", ID[:-1] + "\n"),
            ("id", None),
            ("owner", ""),
            ("owner", "a/b"),
            ("owner", "../a"),
            ("owner", "a" * 65),
            ("owner", "ann\n"),
            ("name", "n" * 65),
            ("name", "\0"),
            ("plan", "p" * 33),
            ("rate", 0),
            ("rate", MAX_RATE + 1),
            ("rate", True),
            ("rate", 1.5),
            ("created_ms", -1),
            ("created_ms", None),
            ("expires_ms", 0),
            ("expires_ms", "tomorrow"),
            ("active", 1),
            ("active", "false"),
            ("scopes", "admin"),
            ("scopes", ["sandboxes"] * 17),
            ("scopes", [7]),
            ("pools", [1]),
            ("pools", {"vcpus": -1}),
            ("pools", {"disk_mb": MAX_POOL + 1}),
        ],
    )
    def test_a_wrong_field_is_named(self, field: str, value: object) -> None:
        with pytest.raises(BadField) as refused:
            Key.decode(record(**{field: value}))
        assert str(refused.value.details["field"]).startswith(field)


class TestAsked:
    def test_everything_asked_for_is_understood(self) -> None:
        body = {
            "owner": "ann@example.org",
            "name": "laptop",
            "plan": "team",
            "pools": {"vcpus": 4, "memory_mb": 4096, "disk_mb": 0},
            "scopes": ["admin", "tasks", "admin"],
            "rate": 7,
            "expires_ms": NOW_MS,
            "network": {"allow": [{"host": "Example.com"}]},
        }
        asked = KeyAsked.parse(json.dumps(body).encode())
        key = asked.key(ID, created_ms=5)
        assert key == Key(
            id=ID,
            owner="ann@example.org",
            name="laptop",
            plan="team",
            pools=Pools(4, 4096, 0),
            scopes=(Scope.ADMIN, Scope.TASKS),
            rate=7,
            created_ms=5,
            expires_ms=NOW_MS,
            network=EXAMPLE,
        )

    def test_only_an_owner_is_needed(self) -> None:
        assert KeyAsked.parse(b'{"owner": "ann"}').key(ID, created_ms=5) == Key(ID, "ann", created_ms=5)
        with pytest.raises(BadField, match="owner: is required"):
            KeyAsked.parse(b"")

    @pytest.mark.parametrize(
        "body",
        [
            {"owner": "ann", "sopes": ["admin"]},
            {"owner": "ann", "scopes": ["amdin"]},
            {"owner": "ann", "pools": {"gpus": 1}},
            {"owner": "ann", "id": ID},
            {"owner": "ann", "active": True},
            {"owner": "ann", "network": {"polcy": "open"}},
        ],
    )
    def test_what_is_misspelt_or_not_for_a_caller_to_say_is_refused(self, body: dict[str, object]) -> None:
        with pytest.raises(BadField):
            KeyAsked.parse(json.dumps(body).encode())

    def test_a_network_that_would_not_fit_into_a_ticket_is_refused_with_its_size(self) -> None:
        allow = [{"host": f"host-{number}.example.com"} for number in range(60)]
        body = {"owner": "ann", "network": {"allow": allow}}
        with pytest.raises(BadField, match=f"network: must have at most {MAX_NETWORK_BYTES} bytes"):
            KeyAsked.parse(json.dumps(body).encode())
        body["network"] = {"allow": allow[:40]}
        asked = KeyAsked.parse(json.dumps(body).encode())
        assert asked.network is not None
        assert len(asked.network.allow) == 40


class TestEnds:
    def test_a_key_is_active_until_it_is_revoked_or_its_time_is_up(self) -> None:
        key = Key(ID, "ann", expires_ms=NOW_MS)
        assert Key(ID, "ann").state(1 << 53) == "active"
        assert key.state(NOW_MS - 1) == "active"
        assert key.state(NOW_MS) == "expired"
        assert key.revoked().state(NOW_MS - 1) == key.revoked().state(NOW_MS) == "revoked"

    @given(records, moments)
    def test_an_end_is_never_put_off_and_no_revoked_key_comes_back(self, key: Key, at_ms: int) -> None:
        ending = key.ending(at_ms)
        assert ending.expires_ms is not None
        assert ending.expires_ms <= at_ms
        assert key.expires_ms is None or ending.expires_ms <= key.expires_ms
        assert ending.active == key.active

    @given(records, moments)
    def test_a_successor_has_the_same_rights_and_what_is_over_has_none(self, key: Key, now_ms: int) -> None:
        if key.state(now_ms) != "active":
            with pytest.raises(WrongState, match=key.state(now_ms)):
                key.successor("f" * 64, now_ms)
            return
        new = key.successor("f" * 64, now_ms)
        assert (new.id, new.created_ms) == ("f" * 64, now_ms)
        assert {**new.view(), "id": 0, "created_ms": 0} == {**key.view(), "id": 0, "created_ms": 0}

"""`pooldctl keys`: secrets that are shown once and kept nowhere, and records that gateways can rely on."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from contract.errors import BadField, NotFound
from contract.keys import Key, Pools, Scope, key_id
from contract.network import HostRule, Mode, NetRule, Network
from poold.errors import ConfigError
from poold.keyring import Keyring
from tests.unit.ctl.conftest import LIMIT_S, Ctl, Ran

SECRET = re.compile(r"wrn_[0-9a-f]{40}")
NETWORK = Network(Mode.REGISTRIES)
IDS = ["aaaa1" + "0" * 59, "aaaa2" + "0" * 59, "bbbb1" + "0" * 59]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202eevil"


@pytest.fixture
def registry(folder: Path) -> Path:
    (folder / "registry").mkdir()
    return folder / "registry"


@pytest.fixture
def keys(ctl: Ctl, registry: Path) -> Ctl:
    """The commands, on that registry. No poold runs."""

    def run(*words: str, **variables: str) -> Ran:
        return ctl("keys", *words, POOLD_REGISTRY=str(registry), **variables)

    return run


def stored(registry: Path) -> dict[str, Key]:
    found, broken = Keyring(registry).all()
    assert broken == []
    return {key.id: key for key in found}


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


class TestCreate:
    def test_the_secret_is_shown_once_and_kept_nowhere(self, keys: Ctl, registry: Path) -> None:
        ran = keys("create", "--owner", "ann")
        assert ran.code == 0
        secret = ran.out.strip()
        assert SECRET.fullmatch(secret)
        assert secret[4:] not in ran.err
        assert "only time" in ran.err
        assert stored(registry)[key_id(secret)].owner == "ann"
        assert secret[4:].encode() not in everything_in(registry)
        assert secret[4:] not in keys("list").out + keys("list", "--json").out

    def test_everything_asked_for_is_in_the_record(self, keys: Ctl, registry: Path) -> None:
        words = (
            "create --owner ann --plan team --scope admin --scope tasks --vcpus 2 --memory-mb 3 --disk-mb 4 --rate 5"
            " --network registries --allow example.com --allow 10.0.0.0/8:5432"
        )
        ran = keys(*words.split(), "--name", "my laptop", "--expires", "6", "--json")
        key = stored(registry)[key_id(ran.json["secret"])]
        assert (key.owner, key.name, key.plan, key.rate, key.active) == ("ann", "my laptop", "team", 5, True)
        assert (key.pools, key.scopes) == (Pools(2, 3, 4), (Scope.ADMIN, Scope.TASKS))
        assert key.expires_ms == key.created_ms + 6 * 24 * 3600 * 1000
        allowed = (HostRule("example.com"),), (NetRule("10.0.0.0/8", 5432),)
        assert key.network == Network(Mode.REGISTRIES, *allowed)
        assert json.loads(key.encode()) == {name: value for name, value in ran.json.items() if name != "secret"}

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("create", "--owner"),
            ("create --owner b/d", "owner: must match"),
            ("create --owner ann --scope everything", "invalid choice"),
            ("create --owner ann --vcpus 0", "from 1"),
            ("create --owner ann --allow https://example.com", "argument --allow: nobody sees"),
            ("create --owner ann --network deny --allow example.com", "deny allows nothing"),
            ("create --owner ann" + " --allow example.com" * 100, "network: must have at most 4096 bytes"),
            ("create --owner ann --rate 1000001", "rate: must be"),
            ("create --owner ann --expires 999999999", "expires_ms: must be"),
        ],
    )
    def test_what_makes_no_sense_is_refused_and_makes_no_key(
        self, keys: Ctl, registry: Path, words: str, said: str
    ) -> None:
        ran = keys(*words.split())
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
        assert everything_in(registry) == b""


class TestList:
    def test_the_table_has_short_ids_and_what_each_may_have(self, keys: Ctl, registry: Path) -> None:
        Keyring(registry).add(
            Key(IDS[0], "ann", name="laptop", created_ms=1, pools=Pools(2, 2048, 1024), network=NETWORK)
        )
        Keyring(registry).add(Key(IDS[2], "bob", created_ms=2, expires_ms=3))
        Keyring(registry).add(Key(IDS[1], "eve", created_ms=3, active=False, scopes=()))
        lines = keys("list").out.splitlines()
        assert [line.split()[0] for line in lines] == ["ID", IDS[0][:12], IDS[2][:12], IDS[1][:12]]
        assert re.search(r"ann +default +sandboxes,tasks +2 +2 GB +1 GB +50 .* active +laptop +registries$", lines[1])
        assert "expired" in lines[2]
        assert "revoked" in lines[3]
        assert [key["id"] for key in keys("ls", "--json").json["keys"]] == [IDS[0], IDS[2], IDS[1]]

    def test_a_registry_without_keys_has_none(self, keys: Ctl) -> None:
        assert keys("list", "--json").json == {"keys": []}

    def test_a_broken_record_hides_no_other_and_is_told(self, keys: Ctl, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        wrong = {IDS[1]: b"{", IDS[2]: Key(IDS[0], "eve").encode(), "c" * 64: b" " * 70_000}
        for name, data in wrong.items():
            (registry / "keys" / f"{name}.json").write_bytes(data)
        (registry / "keys" / f".{IDS[1]}.json.1234").write_bytes(b"half of one")
        (registry / "keys" / "notes.json").write_bytes(b"none of ours")
        ran = keys("list", "--json")
        assert [key["id"] for key in ran.json["keys"]] == [IDS[0]]
        assert len(ran.err.splitlines()) == 3
        assert all(name in ran.err for name in wrong)
        assert keys("revoke", IDS[1]).code == 1

    def test_what_people_wrote_has_no_power_over_a_terminal(self, keys: Ctl, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann", name=HOSTILE, plan=HOSTILE))
        for ran in (keys("list"), keys("list", "--json")):
            assert "evil" in ran.out
            assert not set(ran.out) & set("\x1b\x07\r\u202e")


class TestRevoke:
    def test_the_first_characters_are_enough(self, keys: Ctl, registry: Path) -> None:
        for name in IDS:
            Keyring(registry).add(Key(name, "ann"))
        ran = keys("revoke", "aaaa1")
        assert ran.code == 0
        assert "revoked" in ran.out
        assert {name: key.active for name, key in stored(registry).items()} == {
            IDS[0]: False,
            IDS[1]: True,
            IDS[2]: True,
        }
        assert keys("revoke", "aaaa1", "--json").json["active"] is False  # twice is once

    @pytest.mark.parametrize(
        ("typed", "code", "said"),
        [
            ("aaaa", 2, "could be any of aaaa10000000, aaaa20000000"),
            ("aaa", 2, "at least 4"),
            ("../../x", 2, "at least 4"),
            ("AAAA1", 2, "at least 4"),
            ("cccc", 4, "there is no key cccc"),
        ],
    )
    def test_what_does_not_name_one_key_is_refused(
        self, keys: Ctl, registry: Path, typed: str, code: int, said: str
    ) -> None:
        for name in IDS:
            Keyring(registry).add(Key(name, "ann"))
        for command in ("revoke", "rotate"):
            ran = keys(command, typed)
            assert (ran.code, ran.out) == (code, "")
            assert said in ran.err
        assert all(key.active and key.expires_ms is None for key in stored(registry).values())


class TestRotate:
    def test_the_new_key_has_the_same_rights_and_the_old_one_ends_after_the_grace(
        self, keys: Ctl, registry: Path
    ) -> None:
        old = Key(IDS[0], "ann", name="laptop", scopes=(Scope.ADMIN,), pools=Pools(1, 2, 3), rate=4, created_ms=5)
        Keyring(registry).add(old)
        ran = keys("rotate", IDS[0][:12], "--grace", "60")
        assert ran.code == 0
        new = stored(registry)[key_id(ran.out.strip())]
        assert {**new.view(), "id": 0, "created_ms": 0} == {**old.view(), "id": 0, "created_ms": 0}
        ended = stored(registry)[IDS[0]]
        assert ended == old.ending(new.created_ms + 60_000)
        assert "in 60 seconds" in ran.err
        assert "only time" in ran.err

    def test_without_grace_the_old_one_ends_now(self, keys: Ctl, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        ran = keys("rotate", IDS[0], "--grace", "0", "--json")
        assert stored(registry)[IDS[0]].state(ran.json["created_ms"]) == "expired"
        assert stored(registry)[key_id(ran.json["secret"])].state(ran.json["created_ms"]) == "active"

    @pytest.mark.parametrize("over", [Key(IDS[0], "ann", active=False), Key(IDS[0], "ann", expires_ms=1)])
    def test_a_key_that_is_over_has_no_successor(self, keys: Ctl, registry: Path, over: Key) -> None:
        Keyring(registry).add(over)
        ran = keys("rotate", IDS[0])
        assert (ran.code, ran.out) == (1, "")
        assert "create another" in ran.err
        assert stored(registry) == {IDS[0]: over}

    def test_whoever_cannot_be_told_the_new_secret_keeps_the_old_key(
        self, registry: Path, environment: dict[str, str]
    ) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        with open("/dev/full", "wb") as full:
            ran = subprocess.run(
                [sys.executable, "-m", "poold.ctl", "keys", "rotate", IDS[0], "--grace", "0"],
                env={**environment, "POOLD_REGISTRY": str(registry)},
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=LIMIT_S,
                check=False,
            )
        assert ran.returncode != 0
        assert b"so revoke it: No space left" in ran.stderr
        assert stored(registry)[IDS[0]].state(1 << 53) == "active"


class TestRegistry:
    def test_it_is_named_by_option_or_environment_and_must_be_there(
        self, ctl: Ctl, registry: Path, folder: Path
    ) -> None:
        assert ctl("keys", "create", "--owner", "ann", "--registry", str(registry)).code == 0
        assert len(stored(registry)) == 1
        unnamed, missing = ctl("keys", "list"), ctl("keys", "list", "--registry", str(folder / "none"))
        assert (unnamed.code, missing.code) == (2, 1)
        assert "POOLD_REGISTRY" in unnamed.err
        assert "there is no registry at" in missing.err
        assert not (folder / "none").exists()

    def test_keys_are_completed(self, ctl: Ctl, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        Keyring(registry).add(Key(IDS[1], "ann", active=False))
        for command in ("revoke", "rotate"):
            ran = ctl("__complete", "--", "keys", command, "aaa", POOLD_REGISTRY=str(registry))
            assert (ran.out.split(), ran.err) == ([IDS[0][:12]], "")
        nowhere = ctl("__complete", "--", "keys", "revoke", "")
        assert (nowhere.code, nowhere.out, nowhere.err) == (0, "", "")

    def test_records_are_json_that_an_editor_shows(self, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        text = (registry / "keys" / f"{IDS[0]}.json").read_text()
        assert json.loads(text)["owner"] == "ann"
        assert text.count("\n") > 5

    def test_a_change_that_comes_during_another_is_not_undone_by_it(self, registry: Path) -> None:
        Keyring(registry).add(Key(IDS[0], "ann"))
        revoking = threading.Thread(target=lambda: Keyring(registry).change(IDS[0], Key.revoked))

        def slowly(key: Key) -> Key:
            """Long enough for the other, if nothing kept it from it."""
            revoking.start()
            revoking.join(0.5)
            return key.ending(7)

        Keyring(registry).change(IDS[0], slowly)
        revoking.join(LIMIT_S)
        assert stored(registry)[IDS[0]] == Key(IDS[0], "ann", expires_ms=7, active=False)

    def test_what_is_not_there_is_not_found(self, registry: Path) -> None:
        ring = Keyring(registry)
        assert ring.all() == ([], [])
        with pytest.raises(NotFound):
            ring.find(IDS[0])
        with pytest.raises(BadField):
            ring.find("")
        with pytest.raises(ConfigError):
            Keyring(registry / "none")

"""`pooldctl ledger accept` writes an operator's word, or says why not; `hosts` says what is not carried on, and why."""

from pathlib import Path
from typing import Any

import pytest

from poold.replica.accepted import MAX_EPOCH, accepted
from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_poold import Poold

WHY = "restoring s3://bucket/ledger/host-2/3: decode header: EOF"


@pytest.fixture
def state(folder: Path) -> Path:
    state = folder / "state"
    state.mkdir()
    return state


def test_what_an_operator_accepts_is_written_where_the_poold_here_looks(ctl: Ctl, poold: Poold, state: Path) -> None:
    poold.answers["GET", "/admin/ledger"] = {"path": str(state / "ledger.db")}
    ran = ctl("ledger", "accept", "host-2", "--epoch", "3")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"epoch 3 will do for host host-2 when it is next tried: {state}/accepted/host-2.json\n"
    assert accepted(state, "host-2") == 3
    assert accepted(state, "host-1") is None


def test_a_poold_that_does_not_run_is_not_asked(ctl: Ctl, state: Path) -> None:
    ran = ctl("ledger", "accept", "host-2", "--epoch", "0", "--state-dir", str(state))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no ledger at all will do for host host-2")
    assert accepted(state, "host-2") == 0
    again = ctl("--json", "ledger", "accept", "host-2", "--epoch", "7", "--state-dir", str(state))
    assert again.json == {"host": "host-2", "epoch": 7, "path": str(state / "accepted" / "host-2.json")}
    assert accepted(state, "host-2") == 7


def test_without_a_poold_that_could_tell_its_folder_the_command_says_what_helps(ctl: Ctl) -> None:
    ran = ctl("ledger", "accept", "host-2", "--epoch", "3")
    assert (ran.code, ran.out) == (3, "")
    assert "--state-dir" in ran.err


@pytest.mark.parametrize("host", ["", "../host", "a/b", "a--b/", "Host", "a" * 64, "a\nb"])
def test_what_is_no_name_of_a_host_is_refused(ctl: Ctl, state: Path, host: str) -> None:
    ran = ctl("ledger", "accept", host, "--epoch", "3", "--state-dir", str(state))
    assert (ran.code, ran.out) == (1, "")
    assert f"{host!r} is no name of a host" in ran.err
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("epoch", ["-1", str(MAX_EPOCH + 1)])
def test_what_is_no_epoch_is_refused(ctl: Ctl, state: Path, epoch: str) -> None:
    """Whoever reads it would take it for no word at all."""
    ran = ctl("ledger", "accept", "host-2", f"--epoch={epoch}", "--state-dir", str(state))
    assert (ran.code, ran.out) == (1, "")
    assert f"{epoch} is no epoch" in ran.err
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("words", [["host-2"], ["--epoch", "3"], ["host-2", "--epoch", "three"]])
def test_a_word_that_lacks_something_is_refused(ctl: Ctl, words: list[str]) -> None:
    assert ctl("ledger", "accept", *words).code == 2


def test_a_state_folder_that_is_not_there_is_refused_and_not_made(ctl: Ctl, folder: Path) -> None:
    ran = ctl("ledger", "accept", "host-2", "--epoch", "3", "--state-dir", str(folder / "mistyped"))
    assert (ran.code, ran.out) == (1, "")
    assert str(folder / "mistyped") in ran.err
    assert not (folder / "mistyped").exists()


def test_hosts_says_what_is_not_carried_on_and_why(ctl: Ctl, poold: Poold) -> None:
    poold.answers["GET", "/admin/lease"] = {"lease": None, "hosts": [host("host-1"), host("host-2", trouble=WHY)]}
    ran = ctl("hosts")
    assert ran.code == 0
    [_, first, second] = ran.out.splitlines()
    assert ("not carried on" in first, "http://host-1" in first) == (False, True)
    assert "not carried on" in second
    assert WHY in second
    assert [each.get("trouble") for each in ctl("hosts", "--json").json["hosts"]] == [None, WHY]


def host(name: str, **more: Any) -> dict[str, Any]:
    record = {"slots": {"all": 8, "free": 3}, "address": f"http://{name}"}
    return {"host": name, "state": "held", "epoch": 3, "alive": True, "record": record, **more}

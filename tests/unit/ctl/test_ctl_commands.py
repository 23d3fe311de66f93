"""Every command against a poold that is played: what it asks for, what it prints, and how it exits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from images.recipe import known_images
from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_poold import Poold, Refusal, sandbox, sandbox_id, status

RECIPES = Path(__file__).parents[3] / "images"
ONE = sandbox_id("one")
ONETWO = sandbox_id("onetwo")
PAUSED = sandbox_id("paused")

# Every read, with the fields that programs may rely on.
READS: list[tuple[str, set[str]]] = [
    ("status", {"version", "engine", "accel", "slots", "memory", "sandboxes", "pool", "pressure", "ledger"}),
    ("top --once --interval 0.01", {"at_ms", "machines"}),
    ("sandboxes ls", {"sandboxes"}),
    (f"sandboxes show {ONE}", {"id", "state", "rules", "next", "metadata", "expires_ms"}),
    (f"sandboxes logs {ONE}", {"lines"}),
    (f"sandboxes events {ONE}", {"events"}),
    ("pool ls", {"pool"}),
    ("events tail", {"events"}),
    ("audit ls", {"rows"}),
    ("audit verify", {"ok", "rows", "first", "last", "broken_at"}),
    ("ledger check", {"ok", "problems", "version", "bytes"}),
    ("rules show", set()),
]


@pytest.mark.parametrize(("command", "fields"), READS, ids=[command for command, _ in READS])
def test_every_read_gives_json_wherever_it_is_asked_for(ctl: Ctl, poold: Poold, command: str, fields: set[str]) -> None:
    before, after = ctl("--json", *command.split()), ctl(*command.split(), "--json")
    assert (before.code, after.code) == (0, 0), before.err + after.err
    assert fields <= set(before.json)
    assert set(after.json) == set(before.json)


@pytest.mark.parametrize("command", [command for command, _ in READS])
def test_every_read_has_words_for_people(ctl: Ctl, poold: Poold, command: str) -> None:
    ran = ctl(*command.split())
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.strip()
    assert "\x1b" not in ran.out  # this is no terminal
    assert "{'" not in ran.out
    assert "None" not in ran.out


def test_status_tells_what_an_operator_wants_to_know(ctl: Ctl, poold: Poold) -> None:
    said = ctl("status").out
    for words in (
        "0.1.0, up 2h",
        "serving",
        "qemu (tcg)",
        "1 running, 1 paused",
        "61 of 64 free",
        "17.2 GB of 19.2 GB",
    ):
        assert words in said
    assert "2 adopted (2h ago)" in said
    poold.answers["GET", "/admin/status"] = {**status(), "draining": True}
    assert "draining" in ctl("status").out
    pressed = {**status(), "pressure": {"what": "memory", "message": "memory is short"}}
    poold.answers["GET", "/admin/status"] = pressed
    assert "under pressure: memory is short" in ctl("status").out


def test_sandboxes_are_listed_to_the_last_page(ctl: Ctl, poold: Poold) -> None:
    lines = ctl("sb", "ls").out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "IMAGE", "VCPUS", "MEMORY", "CREATED", "NEXT", "OWNER", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [ONE, ONETWO, PAUSED]
    assert re.search(r"3m\d*s? ago", lines[1])
    assert re.search(r"pause in 2m\d*s? \(idle\)", lines[1])
    assert lines[1].endswith("job=7")
    assert ctl("sb", "ls", "-q").out.split() == [ONE, ONETWO, PAUSED]


def test_only_the_states_that_are_asked_for_are_listed(ctl: Ctl, poold: Poold) -> None:
    poold.sandboxes[sandbox_id("old")] = sandbox("old", "stopped")
    assert ctl("sb", "ls", "-q", "--state", "paused").out.split() == [PAUSED]
    assert sandbox_id("old") not in ctl("sb", "ls").out
    assert sandbox_id("old") in ctl("sb", "ls", "--all").out


def test_create_sends_every_field_and_prints_the_id(ctl: Ctl, poold: Poold) -> None:
    words = (
        "sandboxes create --image minimal --vcpus 2 --memory-mb 1024 --disk-mb 2048 --timeout-sec 60 "
        "--on-timeout pause --idle-sec 5 --paused-sec 6 --auto-resume --env A=1=2 --env B= --metadata job=7"
    )
    ran = ctl(*words.split())
    assert (ran.code, ran.out) == (0, sandbox_id("new") + "\n")
    assert poold.asked[-1].body == {
        "image": "minimal",
        "vcpus": 2,
        "memory_mb": 1024,
        "disk_mb": 2048,
        "timeout_sec": 60,
        "on_timeout": "pause",
        "idle_sec": 5,
        "paused_sec": 6,
        "auto_resume": True,
        "env": {"A": "1=2", "B": ""},
        "metadata": {"job": "7"},
    }
    assert ctl("sandboxes", "create", "--json").json["id"] == sandbox_id("new")
    assert poold.asked[-1].body == {}


def test_what_is_said_for_no_is_sent_too(ctl: Ctl, poold: Poold) -> None:
    assert ctl("sandboxes", "create", "--no-auto-resume").code == 0
    assert poold.asked[-1].body == {"auto_resume": False}


@pytest.mark.parametrize(("command", "state"), [("rm", "stopped"), ("pause", "paused"), ("resume", "running")])
def test_one_that_fails_does_not_keep_the_others_from_it(ctl: Ctl, poold: Poold, command: str, state: str) -> None:
    missing = sandbox_id("missing")
    ran = ctl("sandboxes", command, missing, ONE)
    assert ran.code == 4
    assert missing in ran.err
    assert ran.out == f"{ONE} {state}\n"
    poold.sandboxes[ONE]["state"] = "running"
    done = ctl("sandboxes", command, ONE, "--json")
    assert [row["state"] for row in done.json["sandboxes"]] == [state]


def test_a_refusal_is_told_with_its_code(ctl: Ctl, poold: Poold) -> None:
    ran = ctl("sandboxes", "pause", PAUSED)
    assert ran.code == 1
    assert "wrong_state: cannot pause a sandbox that is paused" in ran.err


def test_a_timeout_is_sent(ctl: Ctl, poold: Poold) -> None:
    assert re.fullmatch(rf"{ONE} pause in 2m\d*s? \(idle\)\n", ctl("sandboxes", "timeout", ONE, "90").out)
    assert poold.asked[-1].body == {"timeout_sec": 90}


def test_logs_are_as_long_as_asked_for(ctl: Ctl, poold: Poold) -> None:
    assert ctl("sb", "logs", ONE, "-n", "5").out == "first\nlast of 5\n"


class TestIds:
    def test_a_prefix_that_only_one_has_is_enough(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("sb", "show", "sb-onet", "--json").json["id"] == ONETWO

    def test_one_that_is_stopped_is_found_too(self, ctl: Ctl, poold: Poold) -> None:
        poold.sandboxes[sandbox_id("gone")] = sandbox("gone", "stopped")
        assert ctl("sb", "show", "sb-gone", "--json").json["state"] == "stopped"

    def test_a_prefix_of_several_is_refused_with_all_of_them(self, ctl: Ctl, poold: Poold) -> None:
        poold.sandboxes[sandbox_id("onetwothree")] = sandbox("onetwothree")
        ran = ctl("sb", "show", "sb-onet")
        assert ran.code == 2
        assert ONETWO in ran.err
        assert sandbox_id("onetwothree") in ran.err

    @pytest.mark.parametrize(("typed", "code"), [("sb-on", 2), ("one", 2), ("sb-zzzz", 4), (sandbox_id("zzz"), 4)])
    def test_what_names_none_is_refused(self, ctl: Ctl, poold: Poold, typed: str, code: int) -> None:
        assert ctl("sb", "show", typed).code == code

    def test_who_names_none_is_told_where_to_look(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("sb", "show", "sb-zzzz").err.splitlines()[1] == "pooldctl: see: pooldctl sandboxes ls --all"


class TestEvents:
    def test_tail_gives_the_last_ones_in_order(self, ctl: Ctl, poold: Poold) -> None:
        rows = ctl("events", "tail", "-n", "3", "--json").json["events"]
        assert [row["id"] for row in rows] == [2498, 2499, 2500]
        assert len(poold.asked) < 40  # of thousands it reads a few pages
        assert len(ctl("events", "tail").out.splitlines()) == 21

    def test_tail_of_one_sandbox(self, ctl: Ctl, poold: Poold) -> None:
        poold.events += [{**poold.events[0], "stream": ONETWO, "id": 2501, "seq": 1}]
        rows = ctl("events", "tail", "--sandbox", "sb-onet", "--json").json["events"]
        assert [row["stream"] for row in rows] == [ONETWO]

    def test_all_events_of_a_sandbox(self, ctl: Ctl, poold: Poold) -> None:
        assert len(ctl("sb", "events", ONE, "--json").json["events"]) == 2500
        assert len(ctl("sb", "events", ONE, "-n", "7", "--json").json["events"]) == 7

    def test_following_a_sandbox_ends_with_it(self, ctl: Ctl, poold: Poold) -> None:
        ran = ctl("sb", "events", ONE, "-n", "2", "-f")
        assert ran.code == 0
        assert [line.split()[3] for line in ran.out.splitlines()] == ["state", "state", "fresh"]
        rows = [json.loads(line) for line in ctl("events", "follow", "--sandbox", ONE, "--json").out.splitlines()]
        assert [row["kind"] for row in rows] == ["fresh"]

    def test_a_host_that_stops_is_told_to_its_follower(self, ctl: Ctl, poold: Poold) -> None:
        ran = ctl("events", "follow")
        assert ran.code == 3
        assert "fresh" in ran.out
        assert "after" not in poold.asked[-1].query


def test_the_pool_is_set_and_refilled(ctl: Ctl, poold: Poold) -> None:
    line = ctl("pool", "set", "python", "3-9").out.splitlines()[1]
    assert line.split()[-2:] == ["3", "9"]
    assert poold.asked[-1].body == {"image": "python", "floor": 3, "ceiling": 9}
    assert ctl("pool", "refill", "python", "--json").json["pool"][0]["warm"] == 0
    assert poold.asked[-1].body == {"image": "python"}
    assert ctl("pool", "refill").code == 0
    assert poold.asked[-1].body == {}


def test_audit_rows_are_the_last_that_match(ctl: Ctl, poold: Poold) -> None:
    rows = ctl("audit", "ls", "--owner", "anna", "-n", "4", "--json").json["rows"]
    assert [row["seq"] for row in rows] == [294, 296, 298, 300]
    assert "0.012s" in ctl("audit", "ls", "--sandbox", "sb-onea", "--action", "exec").out
    assert poold.asked[-1].query["sandbox"] == ONE


def test_what_an_audit_row_tells_is_compact_json_without_what_says_nothing(ctl: Ctl, poold: Poold) -> None:
    poold.audit[-1]["detail"] = {"from": "paused", "why": "it’s so", "reason": None}
    poold.audit[-2]["detail"] = {"reason": None}
    before, last = ctl("audit", "ls", "-n", "2").out.splitlines()[1:]
    assert last.endswith(' {"from":"paused","why":"it’s so"}')
    assert before.endswith(" 2.0 kB")


def test_a_broken_audit_log_fails(ctl: Ctl, poold: Poold) -> None:
    broken = {"ok": False, "rows": 9, "first": 1, "last": 9, "broken_at": 5, "why": "the hash differs"}
    poold.answers["GET", "/admin/audit/verify"] = broken
    ran = ctl("audit", "verify")
    assert (ran.code, ran.out) == (1, "BROKEN at row 5: the hash differs\n")
    assert ctl("audit", "verify", "--json").code == 1


def test_a_damaged_ledger_fails(ctl: Ctl, poold: Poold) -> None:
    poold.answers["GET", "/admin/ledger/check"] = {"ok": False, "problems": ["page 3"], "version": 7, "bytes": 1}
    ran = ctl("ledger", "check")
    assert (ran.code, ran.out) == (1, "problem: page 3\n")


def test_a_backup_is_asked_for_by_its_whole_path(ctl: Ctl, poold: Poold) -> None:
    assert ctl("ledger", "backup", "copy.db").out == f"{os.getcwd()}/copy.db 1.2 MB\n"


def test_what_was_swept_away_in_the_store_is_told_and_what_was_not(ctl: Ctl, poold: Poold) -> None:
    assert ctl("store", "sweep").out == "0 removed, 0 B\n"
    assert poold.asked[-1].body == {"older_days": 7, "dry_run": False}
    row = {"kind": "golden", "prefix": "goldens/a/", "objects": 3, "bytes": 2_000_000, "newest_ms": 1_790_000_000_000}
    told = {"dry_run": True, "swept": [row], "bytes": 2_000_000, "spared": [], "unsure": ["hibernated/x/manifest: bad"]}
    poold.answers["POST", "/admin/store/sweep"] = told
    ran = ctl("store", "sweep", "--dry-run", "--older", "30")
    assert (ran.code, poold.asked[-1].body) == (0, {"older_days": 30, "dry_run": True})
    for words in ("goldens/a/", "1 would be removed", "hibernated/x/manifest: bad"):
        assert words in ran.out
    assert ctl("store", "sweep", "--json").json == told
    poold.answers["POST", "/admin/store/sweep"] = {**told, "swept": [], "spared": ["goldens/a/"]}
    assert ctl("store", "sweep").code == 1
    assert ctl("store", "sweep", "--older", "soon").code == 2


class TestRules:
    def test_what_is_not_named_stays(self, ctl: Ctl, poold: Poold) -> None:
        poold.rules = {"timeout_sec": 60, "idle_sec": 5}
        assert ctl("rules", "set", "anna", "--idle-sec", "9", "--auto-resume").code == 0
        assert poold.asked[-1].path == "/admin/owners/anna/rules"
        assert poold.rules == {"timeout_sec": 60, "idle_sec": 9, "auto_resume": True}
        ran = ctl("rules", "set", "anna", "--unset", "timeout_sec")
        assert poold.rules == {"idle_sec": 9, "auto_resume": True}
        assert "timeout_sec     (the host's)" in ran.out
        assert "auto_resume     yes" in ran.out

    def test_nothing_to_change_is_a_mistake(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("rules", "set", "anna").code == 2


class TestImages:
    def test_builds_are_listed_with_their_use(self, ctl: Ctl, poold: Poold, folder: Path) -> None:
        rows = ctl("image", "ls", "--json", "--out", str(folder)).json["images"]
        assert {row["name"]: row["in_use"] for row in rows} == dict.fromkeys(known_images(RECIPES))
        assert "not built" in ctl("image", "ls", "--out", str(folder)).out

    def test_without_poold_they_are_listed_all_the_same(self, ctl: Ctl, folder: Path) -> None:
        ran = ctl("image", "ls", "--out", str(folder))
        assert ran.code == 0
        assert "what is in use is not known" in ran.err

    def test_the_builder_speaks_for_itself(self, ctl: Ctl, folder: Path) -> None:
        ran = ctl("image", "build", "nonesuch", "--out", str(folder))
        assert ran.code == 1
        assert "nonesuch" in ran.err

    def test_poold_removes_them(self, ctl: Ctl, poold: Poold) -> None:
        assert ctl("image", "rm", "minimal").out == "minimal removed\n"
        poold.answers["DELETE", "/admin/images/minimal"] = Refusal(409, "in_use", "3 machines use it")
        ran = ctl("image", "rm", "minimal")
        assert ran.code == 1
        assert "in_use: 3 machines use it" in ran.err


def test_a_reader_that_has_enough_is_no_error(poold: Poold, environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m poold.ctl sandboxes events {ONE} | head -n 1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[0].startswith("AT")
    assert ran.stdout.splitlines()[1] == "141"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202eevil"


@pytest.mark.parametrize(
    "command",
    [
        "sandboxes ls",
        f"sandboxes show {ONE}",
        f"sandboxes logs {ONE}",
        "events tail",
        "audit ls",
        "status",
        "image rm x",
        "top --interval 0.01",
    ],
)
def test_what_guests_and_callers_wrote_has_no_power_over_a_terminal(ctl: Ctl, poold: Poold, command: str) -> None:
    poold.sandboxes[ONE].update(metadata={HOSTILE: HOSTILE}, owner=HOSTILE)
    poold.sandboxes[ONETWO].update(state="error", reason=HOSTILE)
    poold.events[-1].update(kind=HOSTILE, data={"line": HOSTILE})
    poold.audit[-1].update(detail={HOSTILE: HOSTILE}, owner=HOSTILE)
    poold.answers["GET", f"/v1/sandboxes/{ONE}/logs"] = HOSTILE
    poold.answers["GET", "/admin/status"] = {**status(), "pressure": {"what": "memory", "message": HOSTILE}}
    poold.answers["DELETE", "/admin/images/x"] = Refusal(409, "in_use", HOSTILE)
    top = poold.top()
    poold.answers["GET", "/admin/top"] = {**top, "machines": [{**top["machines"][0], "owner": HOSTILE}]}
    ran = ctl(*command.split())
    assert "evil" in ran.out + ran.err
    for said in (ran.out, ran.err, ctl(*command.split(), "--json").out):
        assert not set(said) & set("\x1b\x07\x9b\r\u202e")

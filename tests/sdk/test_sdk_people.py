"""What people see of `warren`: names that mean one thing, and pages and lines that fit their terminal."""

import inspect
import re
from pathlib import Path
from typing import Any

from contract.keys import USUAL_GRACE_S, rotation_grace
from contract.schema import schema_of
from poold.ctl import parser as ctl_parser
from tests.sdk.conftest import LIMIT_S, Cli
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_service import BARE, Service
from tests.sdk.sdk_stage import open_stage, reply
from tests.terminal import open_screen
from warren import Sandbox, Warren, aio, client
from warren.cli import parser

CTRL_C = b"\x03"
PAGE = rb"\x1b\[H\x1b\[J"


def _staged(environment: dict[str, str], url: str) -> dict[str, str]:
    return {**environment, "WARREN_URL": url, "WARREN_API_KEY": KEY}


# Names


def test_a_name_that_is_taken_is_refused_and_told(cli: Cli, warren: Warren) -> None:
    with warren.create(metadata={"name": "taken"}, env=BARE) as first:
        for words in (("--name", "taken"), ("--metadata", "name=taken")):
            refused = cli("create", *words)
            assert (refused.code, refused.out) == (1, "")
            assert f"{first.id} has the name 'taken' already, and is running" in refused.err
            assert f"warren rm {first.id}" in refused.err
        assert [found.id for found in warren.sandboxes(metadata={"name": "taken"})] == [first.id]
    again = cli("create", "--name", "taken")
    assert again.code == 0, again.err
    assert cli("rm", "taken").out == f"{again.out.strip()} stopped\n"


# A terminal's size


def test_a_page_that_is_watched_fits_the_terminal_and_says_what_is_not_shown(environment: dict[str, str]) -> None:
    rows = [{**ROW, "id": f"{ID[:-1]}{letter}"} for letter in "abcdefghijkl"]
    with open_stage() as stage:
        stage.play(reply(200, {"sandboxes": rows, "next": None, "incomplete": []}))
        person = _staged(environment, stage.url)
        with open_screen("warren.cli", "ls", "-w", environment=person, columns=60, rows=8) as screen:
            screen.sees(PAGE + rb"(?s:.*)more\r\n")
            screen.types(CTRL_C)
            assert screen.ends() == 130
    lines = re.split(PAGE, screen.shown)[1].split(b"\r\n")
    assert lines[0].startswith(b"\x1b[1mID")
    assert [line[:19].decode() for line in lines[1:6]] == [row["id"] for row in rows[:5]]
    assert lines[6].decode() == "… 7 more"
    assert not lines[7].startswith(b"sb-")


# Times


def test_times_are_told_as_they_were_asked_for(cli: Cli, sandbox: Sandbox) -> None:
    assert re.fullmatch(rf"{sandbox.id} destroy in (10m|9m5\ds) \(timeout\)\n", cli("timeout", sandbox.id, "10m").out)


def test_what_has_ended_does_not_expire(cli: Cli, sandbox: Sandbox) -> None:
    assert re.search("^expires +20", cli("get", sandbox.id).out, re.MULTILINE)
    sandbox.kill()
    assert "expires" not in cli("get", sandbox.id).out


def test_one_processor_is_one(cli: Cli) -> None:
    for count, words in ((1, "1 vcpu, 512 MB memory, 4 GB disk"), (2, "2 vcpus, 512 MB memory, 4 GB disk")):
        row: dict[str, Any] = {**ROW, "vcpus": count}
        with open_stage() as stage:
            stage.play(reply(200, row))
            got = cli("get", ID, WARREN_URL=stage.url, WARREN_API_KEY=KEY)
        assert re.search(rf"^size +{words}$", got.out, re.MULTILINE)


# For programs


def test_a_command_for_a_program_is_one_object_and_its_own_code(cli: Cli, sandbox: Sandbox) -> None:
    done = cli("exec", sandbox.id, "--json", "--", "echo hi; echo no >&2; exit 7")
    assert (done.code, done.err) == (7, "")
    assert done.json.pop("duration_ms") >= 0
    said = {"exit_code": 7, "signal": None, "stdout": "hi\n", "stderr": "no\n", "is_truncated": False}
    assert said.items() <= done.json.items()
    killed = cli("exec", sandbox.id, "--json", "-i", "cat; kill -9 $$", stdin=b"given")
    assert (killed.code, killed.json["signal"], killed.json["stdout"]) == (137, "SIGKILL", "given")


def test_errors_are_told_to_programs_as_to_people(cli: Cli) -> None:
    for words, code in ((("get", "nobody"), 4), (("exec", "nobody", "true"), 125)):
        failed = cli("--json", *words)
        assert (failed.code, failed.out) == (code, "")
        assert failed.err == "warren: there is no sandbox 'nobody'; see `warren ls --all`\n"


# What goes wrong


def test_a_folder_that_is_not_there_is_told_by_the_name_that_was_asked_for(
    cli: Cli, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.write(f"{tmp_path}/f", "x")
    failed = cli("cp", f"{sandbox.id}:{tmp_path}/f", f"{tmp_path}/nowhere/x")
    assert failed.code == 1
    assert failed.err == f"warren: {tmp_path}/nowhere/x: No such file or directory\n"


def test_what_a_folder_cannot_take_along_is_told(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "out").symlink_to("/etc/passwd")
    done = cli("cp", str(folder), f"{sandbox.id}:{tmp_path}/there")
    assert done.code == 0
    assert done.err == "warren: left out: 'out' is a link to '/etc/passwd', which is elsewhere\n"
    assert list((tmp_path / "there").iterdir()) == []


def test_an_address_that_cannot_be_meant_is_told_with_one_that_can(cli: Cli, service: Service) -> None:
    path = cli("ls", WARREN_URL=f"{service.url}/v1")
    assert path.code == 1
    assert path.err == f"warren: the gateway's address goes without the path /v1: {service.url}\n"
    assert "a path too many" in cli("ls", WARREN_URL=f"{service.url}/x").err
    plain = cli("ls", "--patience", "5", WARREN_URL=service.url.replace("http:", "https:"))
    assert plain.code == 3
    assert "no TLS is spoken there; if it is on this machine, try http://" in plain.err
    assert "SSL" not in plain.err


def test_what_was_used_has_titles_for_people(cli: Cli) -> None:
    row = {"owner": "ann", "runs": 2, "vcpu_s": 1.5, "gib_s": 0.75, "egress_bytes": 0}
    with open_stage() as stage:
        stage.play(reply(200, {"owners": [row], "incomplete": []}))
        used = cli("usage", WARREN_URL=stage.url, WARREN_API_KEY=KEY)
    assert re.split(r" {2,}", used.out.splitlines()[0]) == [
        "OWNER",
        "EGRESS BYTES",
        "GIB SECONDS",
        "RUNS",
        "VCPU SECONDS",
    ]


# Keys


def test_a_key_that_is_rotated_is_good_for_an_hour_wherever_it_is_rotated() -> None:
    spoken = schema_of(rotation_grace)["properties"]["grace_sec"]["default"]
    typed = [build().parse_args(["keys", "rotate", "abcdef"]).grace for build in (parser.build, ctl_parser.build)]
    methods = [inspect.signature(keys.rotate).parameters["grace_sec"].default for keys in (client.Keys, aio.AsyncKeys)]
    assert {spoken, *typed, *methods} == {USUAL_GRACE_S} == {3600}


def test_keys_are_made_and_rotated(cli: Cli, warren: Warren) -> None:
    made = cli("keys", "create", "--owner", "cleo", "--expires", "3", "--json").json["key"]
    assert abs(made["expires_ms"] - made["created_ms"] - 3 * 86_400_000) < LIMIT_S * 1000
    rotated = cli("keys", "rotate", made["id"][:8])
    assert f"{made['id'][:12]} ends in 1h\n" in rotated.err
    assert f"{made['id'][:12]} ends now\n" in cli("keys", "rotate", made["id"], "--grace", "0").err
    assert {key.active for key in warren.keys.list() if key.id == made["id"]} == {False}
    assert "(3600 s)" in cli("keys", "rotate", "--help").out

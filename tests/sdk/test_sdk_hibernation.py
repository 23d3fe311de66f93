"""Hibernation as programs and people ask for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.conftest import SDK, Ran
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import LIMIT_S, Stage, open_stage, refusal, reply
from warren import AsyncWarren, Warren

DISK = b"zstd of a disk" * 100
ASLEEP = {**ROW, "state": "hibernated", "hibernated": {"bytes": 7, "at_ms": 3}}


def disk(**headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/zstd\r\nContent-Length: {len(DISK)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + DISK


def cli(stage: Stage, folder: Path, *words: str) -> Ran:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WARREN_", "XDG_"))}
    told = {"HOME": str(folder), "PYTHONPATH": str(SDK), "WARREN_API_KEY": KEY, "WARREN_URL": stage.url}
    argv = [sys.executable, "-m", "warren.cli", *words]
    done = subprocess.run(argv, capture_output=True, env={**kept, **told}, cwd=folder, timeout=LIMIT_S, check=False)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_program_puts_a_sandbox_into_the_store_and_knows_what_it_has_there() -> None:
    with open_stage() as stage:
        stage.play(reply(200, ROW), reply(200, ASLEEP))
        sandbox = Warren(stage.url, KEY).get(ID)
        assert sandbox.info.hibernated is None
        info = sandbox.hibernate()
        assert (info.state, info.hibernated) == ("hibernated", {"bytes": 7, "at_ms": 3})
        assert (stage.asked[1].method, stage.asked[1].target) == ("POST", f"/v1/sandboxes/{ID}/hibernate")


@pytest.mark.parametrize(("headers", "damaged"), [({}, ()), ({"X_Warren_Damaged": "a-1,b-2"}, ("a-1", "b-2"))])
async def test_a_disk_is_carried_here_with_the_names_of_what_is_damaged(
    tmp_path: Path, headers: dict[str, str], damaged: tuple[str, ...]
) -> None:
    with open_stage() as stage:
        stage.play(reply(200, ASLEEP), disk(**headers))
        assert Warren(stage.url, KEY).get(ID).recover(tmp_path / "one") == damaged
        stage.play(reply(200, ASLEEP), disk(**headers))
        async with AsyncWarren(stage.url, KEY) as warren:
            sandbox = await warren.get(ID)
            assert await sandbox.recover(tmp_path / "two") == damaged
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == DISK


def test_a_person_hibernates_and_recovers(tmp_path: Path) -> None:
    with open_stage() as stage:
        stage.play(reply(200, ROW), reply(200, ASLEEP))
        assert cli(stage, tmp_path, "hibernate", ID).code == 0
        stage.play(reply(200, ASLEEP), disk())
        ran = cli(stage, tmp_path, "recover", ID)
        assert (ran.code, (tmp_path / f"{ID}.ext4.zst").read_bytes()) == (0, DISK)
        stage.play(reply(200, ASLEEP), disk(X_Warren_Damaged="drive-00002"))
        ran = cli(stage, tmp_path, "--json", "recover", ID, "-o", "here")
        assert (ran.code, json.loads(ran.out)) == (1, {"file": "here", "damaged": ["drive-00002"]})
        assert "drive-00002" in ran.err
        assert (tmp_path / "here").read_bytes() == DISK


def test_who_cannot_resume_a_damaged_one_is_told_what_helps(tmp_path: Path) -> None:
    with open_stage() as stage:
        stage.play(reply(200, ASLEEP), refusal(500, "hibernation_damaged"))
        ran = cli(stage, tmp_path, "resume", ID)
        assert (ran.code, "warren recover" in ran.err) == (1, True)


FILES = {**ASLEEP, "hibernated": {"bytes": 7, "at_ms": 3, "kind": "files"}}


async def test_files_alone_are_asked_for_by_programs(tmp_path: Path) -> None:
    with open_stage() as stage:
        stage.play(reply(200, ROW), reply(200, FILES), reply(200, ROW), reply(200, FILES))
        assert Warren(stage.url, KEY).get(ID).hibernate(kind="files").state == "hibernated"
        async with AsyncWarren(stage.url, KEY) as warren:
            await (await warren.get(ID)).hibernate(kind="files")
        assert [json.loads(stage.asked[at].body) for at in (1, 3)] == [{"kind": "files"}] * 2


def test_files_alone_are_asked_for_and_recovered_by_people(tmp_path: Path) -> None:
    with open_stage() as stage:
        stage.play(reply(200, ROW), reply(200, FILES))
        assert cli(stage, tmp_path, "hibernate", "--files", ID).code == 0
        assert json.loads(stage.asked[1].body) == {"kind": "files"}
        stage.play(reply(200, FILES), disk())
        ran = cli(stage, tmp_path, "recover", ID)
        assert (ran.code, (tmp_path / f"{ID}.tar.zst").read_bytes()) == (0, DISK)
        assert "tar" in ran.out

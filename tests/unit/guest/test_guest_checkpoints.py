"""Checkpoints of a workspace and of an agent's session: made in one guest, restored in another, and worked on there."""

import asyncio
import json
import os
import random
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gitserver import git
from tests.unit.archives.archives_tars import made, member
from tests.unit.guest.client import Client, end, launch
from tests.unit.guest.run_client import RunClient

ROUNDS = 8
CHANGES = 12
NAMES = ["a", "b", "c.txt", "ä ö", "-x", "new\nline", os.fsdecode(b"odd-\xff"), "n" * 120, "removed", "d"]


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Client]:
    """The guest of another machine."""
    folder = tmp_path / "other"
    (folder / "workspace").mkdir(parents=True)
    process, path = launch(folder)
    client = Client(path, process.pid, folder / "workspace")
    yield client
    log = (await client.call("GET", "/logs")).body.decode()
    assert "Traceback" not in log, log
    await client.close()
    end(process)


async def taken(guest: Client, number: int, base: int | None = None) -> tuple[dict[str, Any], bytes]:
    query = f"/checkpoint?number={number}" + (f"&base={base}" if base else "")
    reply = await guest.call("GET", query)
    assert reply.status == 200, reply
    facts: dict[str, Any] = json.loads(reply.headers["warren-checkpoint"])
    return facts, reply.body


async def restored(guest: Client, chain: list[bytes]) -> None:
    for number, body in enumerate(chain):
        query = f"?whole={int(number == 0)}&last={int(number == len(chain) - 1)}"
        reply = await guest.call("PUT", f"/checkpoint{query}", body)
        assert reply.status == 200, reply


def listed(folder: Path) -> dict[str, object]:
    """All that is in a folder: kinds, modes, contents, holes as zeros, and which names are one file."""
    found: dict[str, object] = {}
    links: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        name, facts = str(path.relative_to(folder)), path.lstat()
        mode = stat.filemode(facts.st_mode)
        if path.is_symlink():
            found[name] = (mode, os.readlink(path))
        elif stat.S_ISREG(facts.st_mode):
            first = links.setdefault(facts.st_ino, name)
            found[name] = (mode, path.read_bytes(), facts.st_mtime_ns, first)
        else:
            found[name] = (mode,)
    return found


def changed(folder: Path, dice: random.Random) -> None:  # noqa: PLR0912
    """Something that programs do to files."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    place = dice.choice(folders) / dice.choice(NAMES)
    what = dice.choice(
        ["write", "write", "touch", "rename", "remove", "link", "hard", "mode", "folder", "sparse", "fifo"]
    )
    if what not in ("rename", "remove", "mode", "touch", "hard") and place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    match what:
        case "write":
            place.unlink(missing_ok=True)
            place.write_bytes(dice.randbytes(dice.choice([0, 1, 600, 70_000])))
        case "touch" if files:  # in place, of the same size
            path = dice.choice(files)
            with path.open("r+b") as file:
                file.write(b"!" * min(3, path.stat().st_size))
        case "rename" if len(folders) > 1:
            target = folder / f"moved-{dice.randrange(1000)}"
            if not target.exists():
                dice.choice(folders[1:]).rename(target)
        case "remove" if folders[1:] or files:
            path = dice.choice([*folders[1:], *files])
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "link":
            place.unlink(missing_ok=True)
            place.symlink_to(dice.choice(["../x", "/etc/passwd", "a", "."]))
        case "hard" if files:
            target = folder / f"hard-{dice.randrange(1000)}"
            if not target.exists():
                os.link(dice.choice(files), target)
        case "mode" if files or folders[1:]:
            path = dice.choice([*files, *folders[1:]])
            path.chmod(dice.choice([0o700, 0o755] if path.is_dir() else [0o600, 0o4755, 0o444]))
        case "folder":
            place.unlink(missing_ok=True)
            place.mkdir()
        case "sparse":
            place.unlink(missing_ok=True)
            with place.open("wb") as file:
                file.truncate(1 << 20)
                file.seek(dice.randrange(1 << 19))
                file.write(b"in a hole")
        case "fifo":
            place.unlink(missing_ok=True)
            os.mkfifo(place)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_changes_a_chain_that_is_restored_is_what_was(
    fresh_guest: Client, other: Client, seed: int
) -> None:
    dice = random.Random(seed)
    chain: list[bytes] = []
    for number in range(1, ROUNDS + 1):
        for _ in range(CHANGES):
            changed(fresh_guest.workspace, dice)
        facts, body = await taken(fresh_guest, number, number - 1 or None)
        assert facts["base"] == (number - 1 or None)
        chain.append(body)
        await restored(other, chain)
        assert listed(other.workspace) == listed(fresh_guest.workspace), (seed, number)


async def test_only_what_changed_is_told_and_an_unknown_base_is_answered_with_everything(fresh_guest: Client) -> None:
    (fresh_guest.workspace / "large").write_bytes(os.urandom(1 << 20))
    _, first = await taken(fresh_guest, 1)
    assert len(first) > 1 << 20
    await asyncio.sleep(0.2)  # beyond the tick in which a file may change twice
    await taken(fresh_guest, 2, 1)
    (fresh_guest.workspace / "small").write_text("x")
    facts, third = await taken(fresh_guest, 3, 2)
    assert (facts["base"], len(third) < 64 << 10) == (2, True)
    facts, fourth = await taken(fresh_guest, 4, 2)  # the third was not kept: once more since the second
    assert (facts["base"], len(fourth) < 64 << 10) == (2, True)
    facts, fifth = await taken(fresh_guest, 5, 3)
    assert (facts["base"], len(fifth) > 1 << 20) == (None, True)


async def test_an_agent_stands_still_while_it_is_read_and_goes_on_whoever_leaves(fresh_guest: Client) -> None:
    (fresh_guest.workspace / "large").write_bytes(os.urandom(16 << 20))
    host = RunClient(fresh_guest)
    loop = "while true; do date +%N > now; sleep 0.01; done"
    await host.started(f"run ({loop}) & echo $! > pid; sleep 600")
    pid = await fresh_guest.until(lambda: _text(fresh_guest.workspace / "pid"))
    state = Path(f"/proc/{int(pid)}/stat")
    stream = await fresh_guest.stream("GET", "/checkpoint?number=1")
    before = (fresh_guest.workspace / "now").read_text()
    assert state.read_text().rpartition(")")[2].split()[0] == "T"
    await stream.piece()
    assert (fresh_guest.workspace / "now").read_text() == before
    await stream.close()
    await fresh_guest.until(lambda: _another(fresh_guest.workspace / "now", before))
    stream = await fresh_guest.stream("GET", "/checkpoint?number=2&hold_ms=50")
    before = (fresh_guest.workspace / "now").read_text()
    await fresh_guest.until(lambda: _another(fresh_guest.workspace / "now", before))
    await stream.close()
    await host.stop(0)


async def _text(path: Path) -> str | None:
    return path.read_text().strip() or None if path.exists() else None


async def _another(path: Path, before: str) -> bool:
    return path.read_text() not in ("", before)


@pytest.mark.parametrize("seed", range(4))
async def test_an_agent_goes_on_in_another_machine_and_does_nothing_twice(
    fresh_guest: Client, other: Client, seed: int
) -> None:
    dice = random.Random(seed)
    work = "\n".join(f"append log.txt {n}\nrun sleep 0.02\ncommit Step {n}\ntokens 10 1" for n in range(8))
    host = RunClient(fresh_guest)
    await host.started(work)
    await asyncio.sleep(dice.uniform(0.1, 2.5))  # it may have ended by itself
    facts, body = await taken(fresh_guest, 1)
    await host.stop(0)
    await restored(other, [body])
    assert (await other.call("GET", "/run")).json["state"] == "none"
    second = RunClient(other)
    second.seen = [{"number": facts["events"]}]
    past = {"events": facts["events"], "questions": 0, "used": facts["used"], "covered": facts["used"]}
    ended = await _continued(second, work, facts, past)
    assert ended["outcome"] == "success"
    assert git("log", "--reverse", "--format=%s", cwd=other.workspace).splitlines() == [
        "Plan of the task",
        *(f"Step {n}" for n in range(8)),
    ]
    assert (other.workspace / "log.txt").read_text().split() == [str(n) for n in range(8)]
    last = [event for event in second.seen[1:] if event["event"] == "agent.usage"][-1]
    assert (last["input_tokens"], last["output_tokens"]) == (80, 8)
    assert (await other.call("PUT", "/checkpoint?whole=1", body)).code == "run_under_way"


async def _continued(host: RunClient, work: str, facts: dict[str, Any], past: dict[str, Any]) -> dict[str, Any]:
    await host.started(work, run=2, session=facts["session"], continues=past)
    return await host.ended()


async def test_no_link_of_one_checkpoint_is_followed_by_the_next(other: Client, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    await restored(other, [made(member("workspace/way", tarfile.SYMTYPE, str(outside)))])
    await restored_delta(other, made((member("workspace/way/new"), b"x")))
    assert [path.name for path in outside.iterdir()] == ["kept"]
    await restored(other, [made(member("workspace/way", tarfile.SYMTYPE, str(outside)))])
    gone = b"workspace/way/kept\0workspace/../../outside/kept\0/etc/nothing\0workspace/\0\0"
    await restored_delta(other, made((member("removed"), gone)))
    assert (outside / "kept").read_text() == "kept"
    assert other.workspace.is_dir()


async def restored_delta(guest: Client, body: bytes) -> None:
    assert (await guest.call("PUT", "/checkpoint", body)).status == 200


async def test_what_is_no_checkpoint_is_refused_and_changes_nothing(other: Client) -> None:
    (other.workspace / "here").write_text("here")
    reply = await other.call("PUT", "/checkpoint?whole=1", os.urandom(10_240))
    assert (reply.status, reply.code) == (400, "bad_request")
    whole = made((member("workspace/there"), b"x" * 100_000))
    assert (await other.call("PUT", "/checkpoint?whole=1", whole[:50_000])).code == "bad_request"
    assert [path.name for path in other.workspace.iterdir()] == ["here"]


async def test_locks_of_a_git_that_died_with_its_machine_are_removed(other: Client) -> None:
    names = ["workspace/r/.git/index.lock", "workspace/r/.git/refs/heads/main.lock", "workspace/r/yarn.lock"]
    await restored(other, [made(*((member(name), b"x") for name in names))])
    assert {path.name for path in other.workspace.rglob("*.lock")} == {"yarn.lock"}

"""What is wrong in the store is told with the object's name, and nothing is deleted for it."""

import asyncio
import hashlib
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from contract.workspaces import WorkspaceTooLarge
from poold.archives.errors import BadArchive
from poold.archives.tar import Tar
from poold.store.folder import open_folder
from poold.workspace_config import WorkspacesConfig
from poold.workspaces import Damaged, Shelf, listing, of_owner, sweeping
from poold.workspaces.census import WorkspaceCensus
from poold.workspaces.listing import Inconsistent, Item
from poold.workspaces.manifest import FORMAT, Manifest, Object, decode, encode
from tests.unit.archives.archives_tars import made, member
from tests.unit.workspaces.workspaces_stage import NAME, Stage, open_stage

PLACE = of_owner("local", NAME)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage


async def saved(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    await stage.save(sandbox)
    await stage.run(sandbox, "echo two > b")
    await stage.end(sandbox)


async def rewritten(stage: Stage, **changes: Any) -> None:
    """The newest version, with another content."""
    key = PLACE.version(2)
    told = orjson.loads((await stage.shelf.store.get(key)).data) | changes
    await stage.shelf.store.put(key, orjson.dumps(told))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x40
    path.write_bytes(data)


async def flip_pack(stage: Stage) -> None:
    flipped(stage.objects("/packs/")[-1])


async def flip_listing(stage: Stage) -> None:
    flipped(stage.objects("/listings/")[-1])


async def flip_version(stage: Stage) -> None:
    flipped(stage.objects("/versions/")[-1])


async def lose_pack(stage: Stage) -> None:
    stage.objects("/packs/")[-1].unlink()


async def lose_listing(stage: Stage) -> None:
    stage.objects("/listings/")[-1].unlink()


async def swap_packs(stage: Stage) -> None:
    """An object that is whole, in the place of another."""
    one, two = (path.relative_to(stage.store) for path in stage.objects("/packs/"))
    data = (await stage.shelf.store.get(str(one))).data
    await stage.shelf.store.put(str(two), data)


DAMAGE: dict[str, tuple[Callable[[Stage], Any], str]] = {
    "a flipped bit in a pack": (flip_pack, "/packs/"),
    "a flipped bit in a listing": (flip_listing, "/listings/"),
    "a flipped bit in a version": (flip_version, "/versions/000000000002.json"),
    "a pack that is missing": (lose_pack, "/packs/"),
    "a listing that is missing": (lose_listing, "/listings/"),
    "another pack in its place": (swap_packs, "/packs/"),
    "another format": (lambda stage: rewritten(stage, format=FORMAT + 1), "/versions/000000000002.json"),
    "another cluster": (lambda stage: rewritten(stage, cluster="cl-other"), "/versions/000000000002.json"),
    "another owner": (lambda stage: rewritten(stage, owner="mallory"), "/versions/000000000002.json"),
    "another number": (lambda stage: rewritten(stage, version=1), "/versions/000000000002.json"),
    "a key that leads elsewhere": (
        lambda stage: rewritten(stage, packs=[{"key": "../../other/packs/x", "bytes": 1}]),
        "/versions/000000000002.json",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_workspace_fails_the_create_by_name_and_nothing_is_deleted(stage: Stage, what: str) -> None:
    await saved(stage)
    damage, named = DAMAGE[what]
    await damage(stage)
    before = stage.objects()
    reply = await stage.host.ask("POST", "/v1/sandboxes", {"workspace": NAME})
    assert reply.status == 500, reply.body
    assert reply.code in ("workspace_damaged", "store_corrupt")
    assert f"workspaces/local/{NAME}{named}" in reply.json["error"]["message"]
    assert "nothing was deleted" in reply.json["error"]["message"]
    assert await sweeping.sweep(stage.shelf, PLACE) in (True, False)
    assert stage.objects() == before
    # What there was before can be had again.
    assert (await stage.ask("/my-repl/restore", "POST", {"version": 1})).status == 201
    assert await stage.run(await stage.create(), "cat *") == "one\n"


async def test_a_version_that_cannot_be_read_is_listed_as_such(stage: Stage) -> None:
    await saved(stage)
    await flip_version(stage)
    (newest, first) = await stage.versions()
    assert (newest["version"], "damaged" in newest["problem"], first["problem"]) == (2, True, None)
    (workspace,) = (await stage.ask()).json["workspaces"]
    assert (workspace["name"], workspace["version"], "damaged" in workspace["problem"]) == (NAME, 2, True)


async def test_a_sandbox_whose_base_was_damaged_saves_all_of_it(stage: Stage) -> None:
    sandbox = await stage.create()
    await stage.run(sandbox, "echo one > a")
    await stage.save(sandbox)
    await lose_listing(stage)
    await stage.run(sandbox, "echo two > b")
    await stage.end(sandbox)
    assert (await stage.run(await stage.create(), "cat a b")).split() == ["one", "two"]


async def test_what_is_too_large_is_not_saved_and_says_so() -> None:
    async with open_stage(settings={"POOLD_WORKSPACE_FILES": "3", "POOLD_WORKSPACE_MB": "1"}) as stage:
        sandbox = await stage.create()
        await stage.run(sandbox, "touch a b c d")
        reply = await stage.host.ask("POST", f"/v1/sandboxes/{sandbox}/workspace/save")
        assert (reply.status, reply.code) == (413, "workspace_too_large")
        assert "3 files" in reply.json["error"]["message"]
        await stage.run(sandbox, "rm *; head -c 2000000 /dev/urandom > a")
        reply = await stage.end(sandbox)
        assert (reply.status, reply.code) == (503, "workspace_unsaved")
        assert "1048576 bytes" in reply.json["error"]["message"]
        await stage.run(sandbox, "rm *; echo small > a")
        assert (await stage.end(sandbox)).json["workspace"]["saved_version"] == 1


def census_of(*members: Any) -> WorkspaceCensus:
    census = WorkspaceCensus(100)
    tar = Tar(census.judge, census.hear)
    tar.feed(made(*members))
    tar.end()
    return census


@pytest.mark.parametrize(
    "members",
    [
        [(member("workspace/../../etc/passwd"), b"x")],
        [(member("/workspace/a"), b"x")],
        [(member("etc/passwd"), b"x")],
        [(member("workspace/a"), b"x"), (member("workspace/a"), b"y")],
        [(member("workspace/a"), b"x"), (member("workspace/./a"), b"y")],
        [member("workspace/a", tarfile.SYMTYPE, "/etc"), (member("workspace/a/passwd"), b"x")],
        [member("workspace/a", tarfile.LNKTYPE, "workspace/b")],
        [member("workspace/a", tarfile.LNKTYPE, "home/b")],
        [member("workspace/a", tarfile.LNKTYPE, "../../etc/passwd")],
    ],
)
def test_what_a_hostile_guest_sends_is_refused(members: list[Any]) -> None:
    with pytest.raises(BadArchive):
        census_of(*members)


def test_what_a_guest_sends_is_listed_with_its_hash() -> None:
    census = census_of((member("removed"), b"workspace/old\0home/x\0"), (member("workspace/a"), b"one"))
    item = census.listing()["a"]
    assert (item.kind, item.size, item.sha256) == ("file", 3, hashlib.sha256(b"one").hexdigest())
    assert census.removed() == ["old"]


def test_more_files_than_are_kept_are_refused() -> None:
    with pytest.raises(WorkspaceTooLarge):
        census_of(*((member(f"workspace/{number}"), b"") for number in range(101)))


def item(kind: str = "file", *, pack: int = 0, sha256: str | None = "0" * 64, hard: str | None = None) -> Item:
    return Item(kind, 0o644, 1000, 1000, 1, sha256 if kind == "file" else None, None, hard, pack)


def test_what_is_gone_takes_along_what_is_below_it() -> None:
    before = {"a": item("folder"), "a/b": item(), "ab": item()}
    assert listing.overlaid(before, ["a"], {"c": item()}, 1) == {"ab": item(), "c": item(pack=1)}


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        ({}, {"a/b": item()}),
        ({"a": item()}, {"a/b": item()}),
        ({"a": item("folder"), "a/b": item()}, {"a": item()}),
        ({"a": item(), "b": item(hard="a")}, {"a": item()}),
        ({}, {"b": item(hard="a")}),
    ],
)
def test_a_change_that_does_not_fit_is_noticed(before: Any, changed: Any) -> None:
    with pytest.raises(Inconsistent):
        listing.overlaid(before, [], changed, 1)


def test_a_listing_is_read_as_it_was_written_also_with_names_that_are_no_text() -> None:
    told = {"a\udcff": item(), "b": item("folder"), "ü": item(pack=1)}
    assert listing.decode("key", listing.encode(told), 2) == told
    assert [change.path for change in listing.changes({}, told)] == ["a\\xff", "b", "ü"]
    with pytest.raises(Damaged, match="pack 1 of 1"):
        listing.decode("key", listing.encode(told), 1)
    for bad in (b"", b"{}", listing.encode(told)[:-2]):
        with pytest.raises(Damaged):
            listing.decode("key", bad, 2)


def manifest(version: int = 1, **more: Any) -> Manifest:
    facts: dict[str, Any] = {"parent": None, "created_ms": 1, "size_bytes": 1, "files": 1, "packs": ()}
    told = Object(f"listings/{1:013d}-{'0' * 64}.json.zst", 1)
    return Manifest("cl-1", "local", NAME, version, **{**facts, "listing": told, **more})


def test_a_version_is_read_as_it_was_written() -> None:
    whole = manifest(packs=(Object(f"packs/{1:013d}-{'a' * 64}.tar.zst", 7),), sandbox="sb-1", template="web")
    assert decode("key", encode(whole), PLACE, 1, "cl-1") == whole


class Clock:
    now_ms = 10**12

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[tuple[Shelf, Clock]]:
    clock = Clock()
    async with open_folder(tmp_path / "store") as store:
        yield Shelf(store, "cl-1", WorkspacesConfig(versions=2, days=1), tmp_path / "spool", clock), clock


async def put(shelf: Shelf, clock: Clock, content: bytes) -> Manifest:
    """A version with one pack of its own."""
    sha256 = hashlib.sha256(content).hexdigest()
    pack = Object(PLACE.pack(clock(), sha256), len(content))
    await shelf.store.put(PLACE.prefix + pack.key, content)
    told = listing.encode({"a": item()})
    about = Object(PLACE.listing(clock(), hashlib.sha256(told).hexdigest()), len(told))
    await shelf.store.put(PLACE.prefix + about.key, told)
    return await shelf.add(PLACE, manifest(0, packs=(pack,), listing=about, created_ms=clock()))


async def packs(shelf: Shelf) -> list[str]:
    return [entry.key async for entry in shelf.store.list(PLACE.prefix + "packs/")]


async def test_old_versions_are_given_up_and_what_others_use_stays(shelf: tuple[Shelf, Clock]) -> None:
    of, clock = shelf
    first = await put(of, clock, b"one")
    clock.now_ms += 1
    await of.restore(PLACE, 1)
    for number in range(3):
        clock.now_ms += 3600 * 1000
        await put(of, clock, b"%d" % number)
    assert await of.prune(PLACE) == 0  # all of them are young
    clock.now_ms += 2 * DAY_MS
    await put(of, clock, b"last")
    assert await of.prune(PLACE) == 4
    assert await of.numbers(PLACE) == [5, 6]
    assert not await sweeping.sweep(of, PLACE)  # whoever is about to name them may
    assert len(await packs(of)) == 5
    late = await of.add(PLACE, manifest(0, packs=first.packs, listing=first.listing, created_ms=clock()))
    clock.now_ms += 2 * DAY_MS
    assert await sweeping.sweep(of, PLACE)
    assert late.version == 7
    assert len(await packs(of)) == 3
    await of.listing(PLACE, late)


async def test_what_a_save_that_was_cut_short_left_is_removed_a_day_later(shelf: tuple[Shelf, Clock]) -> None:
    of, clock = shelf
    await of.store.put(PLACE.prefix + PLACE.pack(clock(), "0" * 64), b"half")
    assert not await sweeping.sweep(of, PLACE)
    clock.now_ms += 2 * DAY_MS
    assert await sweeping.sweep(of, PLACE)
    assert await packs(of) == []


async def test_numbers_are_won_once_however_many_try(shelf: tuple[Shelf, Clock]) -> None:
    of, clock = shelf
    won = await asyncio.gather(*(of.add(PLACE, manifest(0, created_ms=clock())) for _ in range(20)))
    assert sorted(each.version for each in won) == list(range(1, 21))
    assert await of.numbers(PLACE) == list(range(1, 21))

"""A host is lost, and another carries its tasks on: from its ledger in the store, and from what is sealed there."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from poold import takeover
from poold.errors import LedgerError
from poold.lease.members import Lost
from poold.ledger import inheriting
from poold.ledger.care import backup
from poold.ledger.driver import Connection, sqlite3
from poold.ledger.tasks import ids
from poold.lifetimes import beside
from poold.seal import Seal, new_key
from poold.store.errors import NoObject, Unreachable
from poold.store.folder import open_folder
from poold.takeover import Carrying, Heir, Restore, carry_on
from poold.tasks import Tasks
from poold.tasks.escrow import Escrow
from poold.tasks.vault import Kept
from tests.replicas import until
from tests.unit.tasks.tasks_stage import Stage, a_folder, nobody_listens, open_stage

KEY = new_key()
CLUSTER = "cl-1"


@asynccontextmanager
async def an_escrow(folder: Path, key: bytes = KEY) -> AsyncIterator[Escrow]:
    async with open_folder(folder) as store:
        yield Escrow(store, Seal(key), CLUSTER)


def use(stage: Stage, escrow: Escrow) -> None:
    tasks = stage.host.services.tasks
    tasks.tools = replace(tasks.tools, escrow=escrow)


async def take(stage: Stage, lost: Path, folder: Path, *, is_killed: bool = False) -> dict[str, int]:
    """As the daemon does it, with a copy of the lost ledger for its replica; or until it is killed."""

    async def restore(_line: Lost, path: Path) -> int:
        shutil.copy(lost, path)
        return 1

    return await carry_on(heir_of(stage, folder, restore, is_killed=is_killed), Lost("one", 1, 2))


def heir_of(stage: Stage, folder: Path, restore: Restore, *, is_killed: bool = False) -> Heir:
    services = stage.host.services

    async def go_on(kind: str, one: str) -> None:
        if kind == "task" and not is_killed:
            await services.tasks.adopt(one)

    return Heir(services.ledger, folder / "takeovers", restore, go_on, services.tasks.tools.now_ms)


@asynccontextmanager
async def a_lost_task(folder: Path, escrow: Escrow, prompt: str, **fields: object) -> AsyncIterator[tuple[Path, str]]:
    """A task whose host has no room, so that it waits; then the host is gone."""
    async with open_stage(folder, slots=1) as stage:
        use(stage, escrow)
        full = await stage.create("sleep 600")
        await stage.until(full, lambda view: view["state"] == "running")
        name = await stage.create(prompt, **fields)
        copy = folder / "lost.db"
        backup(stage.host.services.facts.ledger_path, copy)
    yield copy, name


async def test_a_task_goes_on_at_another_host_with_its_secrets_and_its_numbers() -> None:
    async with a_folder() as one, a_folder() as two, an_escrow(two / "shared") as escrow:
        lost = a_lost_task(one, escrow, "run echo is ${WORD%-*}\ncommit Word", env={"WORD": "ahem-4711"})
        async with lost as (ledger, task), open_stage(two) as stage:
            use(stage, escrow)
            assert await take(stage, ledger, two) == {"sandboxes": 1, "tasks": 2}
            view = await stage.ended(task)
            assert view["state"] == "completed", view
            reply = await stage.ask("GET", task, "/events?limit=1000")
            numbers = [event["seq"] for event in reply.json["events"]]
            assert numbers == list(range(1, len(numbers) + 1))
            outputs = [step["output"] or "" for step in await stage.steps(task)]
            assert any("is ahem" in output for output in outputs)


async def test_secrets_in_the_store_are_sealed_and_go_with_their_task() -> None:
    async with a_folder() as one, a_folder() as two, an_escrow(two / "shared") as escrow:
        lost = a_lost_task(one, escrow, "run true", env={"WORD": "ahem-4711"})
        async with lost as (_, task):
            kept = [path for path in (two / "shared").rglob("*") if path.is_file() and task in str(path)]
            assert len(kept) == 1
            assert b"ahem-4711" not in kept[0].read_bytes()
            assert (await escrow.get(task)).env == {"WORD": "ahem-4711"}
            await escrow.remove(task)
            with pytest.raises(NoObject):
                await escrow.get(task)


async def test_a_task_whose_secrets_cannot_be_read_ends_and_says_why() -> None:
    async with a_folder() as one, a_folder() as two, an_escrow(two / "shared") as escrow:
        lost = a_lost_task(one, escrow, "run true", env={"WORD": "ahem-4711"})
        async with (
            lost as (ledger, task),
            open_stage(two) as stage,
            an_escrow(two / "shared", new_key()) as other,
        ):
            use(stage, other)
            await take(stage, ledger, two)
            view = await stage.ended(task)
            assert (view["state"], view["reason"]["code"]) == ("failed", "host_lost")
            assert "seal.key" in view["reason"]["message"]


async def test_taken_over_twice_is_taken_over_once() -> None:
    async with (
        a_folder() as one,
        a_folder() as two,
        an_escrow(two / "shared") as escrow,
        a_lost_task(one, escrow, "run true") as (ledger, task),
        open_stage(two) as stage,
    ):
        use(stage, escrow)
        first = await take(stage, ledger, two)
        assert await take(stage, ledger, two) == first
        assert (await stage.ended(task))["state"] == "completed"
        assert not list((two / "takeovers").iterdir())


async def test_a_task_that_was_lost_while_its_work_was_kept_does_the_last_of_it_again() -> None:
    async with a_folder() as one, a_folder() as two, an_escrow(two / "shared") as escrow:
        async with open_stage(one) as stage:
            use(stage, escrow)
            task = await stage.create("run true\nsleep 5")
            await stage.until(task, lambda view: view["state"] == "running" and view["phase"] == "run")
            backup(stage.host.services.facts.ledger_path, one / "lost.db")
        with contextlib.closing(sqlite3.connect(one / "lost.db")) as db, db:
            end = '{"event": "complete", "reason": null}'  # its agent had ended well
            db.execute("UPDATE tasks SET phase = 'finish', ending = ? WHERE id = ?", (end, task))
        async with open_stage(two) as stage:
            use(stage, escrow)
            await take(stage, one / "lost.db", two)
            assert (await stage.ended(task))["state"] == "completed"
            assert "task.continued" in await stage.kinds(task)


async def test_a_host_without_a_replica_left_nothing() -> None:
    async with open_stage() as stage:
        services = stage.host.services

        async def nothing(_line: Lost, _path: Path) -> None:
            return None

        async def go_on(_kind: str, _one: str) -> None:
            raise AssertionError

        folder = services.facts.ledger_path.parent / "takeovers"
        heir = Heir(services.ledger, folder, nothing, go_on, services.tasks.tools.now_ms)
        assert await carry_on(heir, Lost("one", 1, 2)) == {"sandboxes": 0, "tasks": 0}


async def test_a_host_that_comes_back_empty_leaves_the_secrets_of_what_others_carry_on() -> None:
    async with a_folder() as one, an_escrow(one / "shared") as escrow, open_stage(one) as stage:
        use(stage, escrow)
        tasks = stage.host.services.tasks
        kept, theirs = Kept(env={"WORD": "ahem-4711"}), "tk-aaaaaaaaaaaaaaaa"
        tasks.tools.vault.put(theirs, kept)  # of before: the ledger that knew it was set aside
        await escrow.put(theirs, kept)
        await tasks._sweep()
        assert tasks.tools.vault.get(theirs).env == {}
        assert (await escrow.get(theirs)).env == kept.env


async def test_a_task_that_was_written_and_not_acknowledged_keeps_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_folder() as one, an_escrow(one / "shared") as escrow, open_stage(one) as stage:
        use(stage, escrow)
        ledger = stage.host.services.ledger
        write = ledger.write

        async def unheard(work: Callable[[Connection], object], *, durable: bool = True) -> object:
            await write(work, durable=durable)
            raise LedgerError("replicating", "a write", hint="the ledger was closed before the store had it")

        monkeypatch.setattr(ledger, "write", unheard)
        body = {"agent": "mock", "prompt": "run true", "env": {"WORD": "ahem-4711"}}
        assert (await stage.host.ask("POST", "/v1/tasks", body)).status == 500
        monkeypatch.undo()
        [task] = await ledger.read(ids)
        assert (await escrow.get(task)).env == {"WORD": "ahem-4711"}


def broken(ledger: Path, but: str, progress: str) -> tuple[str, str]:
    """Let the other task's row have this progress; which it is, and what it had."""
    with contextlib.closing(sqlite3.connect(ledger)) as db, db:
        name, had = db.execute("SELECT id, progress FROM tasks WHERE id <> ?", (but,)).fetchone()
        db.execute("UPDATE tasks SET progress = ? WHERE id = ?", (progress, name))
    return name, had


async def test_a_row_that_makes_no_sense_costs_no_other_and_is_tried_again() -> None:
    async with (
        a_folder() as one,
        a_folder() as two,
        an_escrow(two / "shared") as escrow,
        a_lost_task(one, escrow, "run true") as (ledger, task),
    ):
        bad, good = broken(ledger, task, "{")
        async with open_stage(two) as stage:
            use(stage, escrow)
            told = await take(stage, ledger, two)
            assert (told["tasks"], told["missing"]) == (1, 1)
            assert (await stage.ended(task))["state"] == "completed"
            broken(ledger, task, good)  # a person has mended it
            assert await take(stage, ledger, two) == {"sandboxes": 1, "tasks": 2}
            assert bad in await stage.host.services.ledger.read(ids)


async def test_what_could_not_be_taken_in_comes_in_by_itself_once_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "AGAIN_S", 0.05)
    async with (
        a_folder() as one,
        a_folder() as two,
        an_escrow(two / "shared") as escrow,
        a_lost_task(one, escrow, "run true") as (ledger, task),
    ):
        bad, good = broken(ledger, task, "{")
        async with open_stage(two) as stage:
            use(stage, escrow)
            lost, forgotten = Lines(ledger), list[str]()
            carrying = Carrying()
            carrying.begin(replace(heir_of(stage, two, lost.restore), forget=forgotten.append))
            await carrying.take_over(Lost("one", 1, 2))
            assert (carrying.missing, forgotten) == ({"one": 1}, ["one"])
            async with beside(carrying.finish_others()):
                await until(lambda: len(lost.asked) > 2)  # it is tried again, and costs nothing
                assert carrying.missing == {"one": 1}
                lost.is_away = True
                await until(lambda: lost.refused)
                assert carrying.missing == {"one": 1}
                broken(ledger, task, good)
                lost.is_away = False
                await until(lambda: not carrying.missing)
                assert (await stage.ended(task))["state"] == "completed"
                assert bad in await stage.host.services.ledger.read(ids)
                assert await stage.host.services.ledger.read(inheriting.unfinished) == []
                asked = len(lost.asked)
                await asyncio.sleep(0.3)
                assert len(lost.asked) == asked  # it is whole: nobody asks any more
            assert set(lost.asked[1:]) == {Lost("one", 1, 1)}  # the epoch that was found
            assert forgotten == ["one"]  # what an operator says later is of another line


class Lines:
    """The replica of a lost host, which may be away."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self.asked: list[Lost] = []
        self.is_away = False
        self.refused = 0

    async def restore(self, line: Lost, path: Path) -> int:
        self.asked.append(line)
        if self.is_away:
            self.refused += 1
            raise Unreachable("the store is away")
        shutil.copy(self._ledger, path)
        return 1


async def test_one_that_cannot_go_on_at_once_does_not_keep_the_others_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        a_folder() as one,
        a_folder() as two,
        an_escrow(two / "shared") as escrow,
        a_lost_task(one, escrow, "run true") as (ledger, task),
        open_stage(two) as stage,
    ):
        use(stage, escrow)
        adopt, failures = stage.host.services.tasks.adopt, [Unreachable("the store is away")]

        async def failing(name: str) -> None:
            if name != task and failures:
                raise failures.pop()
            await adopt(name)

        monkeypatch.setattr(stage.host.services.tasks, "adopt", failing)
        with pytest.raises(Unreachable):
            await take(stage, ledger, two)
        assert (await stage.ended(task))["state"] == "completed"
        assert await take(stage, ledger, two) == {"sandboxes": 1, "tasks": 2}


async def test_a_host_that_was_killed_between_the_row_and_its_secrets_has_them_when_it_comes_back() -> None:
    """And so does one whose own ledger came from the store, without the disk that had them."""
    async with a_folder() as one, a_folder() as two, an_escrow(two / "shared") as escrow:
        lost = a_lost_task(one, escrow, "run echo is ${WORD%-*}", env={"WORD": "ahem-4711"})
        async with lost as (ledger, task), open_stage(two) as stage:
            await take(stage, ledger, two, is_killed=True)
            again = Tasks(replace(stage.host.services.tasks.tools, escrow=escrow), nobody_listens, lambda: 0.0)
            async with again.running():
                view = await stage.ended(task)
                assert view["state"] == "completed", view
                outputs = [step["output"] or "" for step in await stage.steps(task)]
                assert any("is ahem" in output for output in outputs), outputs

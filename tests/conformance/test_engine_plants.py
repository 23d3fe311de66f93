"""What an engine promises of saved machines that are taken apart and put together again."""

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from poold.engines import Found, Machine
from poold.engines.qemu import saved
from poold.errors import EngineError
from tests.conformance.bench import LOCAL, PLAIN, QEMU, Bench

ON_QEMU = pytest.mark.parametrize("engine_name", [QEMU], indirect=True)


@dataclass
class Apart:
    """A machine of which nothing is left but its parts."""

    machine: Machine
    facts: Mapping[str, Any]
    golden: Path
    files: dict[str, Path]

    def put(self, paths: Mapping[str, Path]) -> None:
        for name, path in paths.items():
            shutil.copyfile(self.files[name], path)


@asynccontextmanager
async def taken_apart(bench: Bench, folder: Path) -> AsyncIterator[Apart]:
    async with bench.machine() as machine:
        assert await bench.sh(machine, "echo here > file; echo word > /dev/shm/word") == (0, "")
        await bench.engine.pause(machine)
        await bench.engine.save(machine)
        await bench.engine.halt(machine.id)
        parts = await bench.engine.parts(machine.id)
        files = {name: Path(shutil.copy(path, folder)) for name, path in parts.files.items()}
        golden = Path(shutil.copy(parts.golden, folder / "golden"))
        await bench.engine.destroy(machine.id)
        yield Apart(machine, parts.facts, golden, files)


async def plant(bench: Bench, apart: Apart, then: Callable[[Mapping[str, Path]], object] = len) -> None:
    async with bench.engine.planting(apart.machine.id, apart.facts, bench.image, apart.golden) as paths:
        apart.put(paths)
        then(paths)


def _hurt(paths: Mapping[str, Path], name: str, damage: Callable[[Path], object]) -> None:
    damage(paths[name])


def machines(bench: Bench) -> list[str]:
    return [path.name for path in (bench.folder / "machines").iterdir()]


@ON_QEMU
async def test_a_machine_is_put_together_of_its_parts_and_goes_on(bench: Bench, tmp_path: Path) -> None:
    async with taken_apart(bench, tmp_path) as apart:
        machine = apart.machine
        bench.engine.check_fits(machine.id, apart.facts, bench.image)
        async with bench.engine.planting(machine.id, apart.facts, bench.image, apart.golden) as paths:
            apart.put(paths)
            assert not (bench.folder / "machines" / machine.id).exists()
        assert bench.engine.found() == [Found(machine.id, None, is_saved=True)]
        again = await bench.engine.load(machine.id, machine.slot)
        await bench.engine.resume(again)
        assert await bench.sh(again, "cat file /dev/shm/word") == (0, "here\nword\n")
        await bench.engine.discard(machine.id)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


@ON_QEMU
async def test_what_is_not_whole_is_no_machine(bench: Bench, tmp_path: Path) -> None:
    async with taken_apart(bench, tmp_path) as apart:
        wrong: list[tuple[str, Any]] = [
            *(("drive", _cut), ("pages", _cut), ("pages", _flip)),
            *(("devices", lambda path: path.write_bytes(b"")), ("pages", Path.unlink)),
        ]
        for name, damage in wrong:
            with pytest.raises(EngineError):
                await plant(bench, apart, partial(_hurt, name=name, damage=damage))
            assert machines(bench) == []
        with pytest.raises(KeyError):
            await plant(bench, apart, lambda paths: paths["another"].unlink())
        assert machines(bench) == []


@ON_QEMU
async def test_what_does_not_fit_this_host_is_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    async with taken_apart(bench, tmp_path) as apart:
        for name in ("qemu", "accel", "layout", "image_key"):
            with pytest.raises(EngineError, match="another"):
                bench.engine.check_fits("vm-1", {**apart.facts, name: "another"}, bench.image)
        other = replace(bench.image, key="another")
        with pytest.raises(EngineError, match="another"):
            bench.engine.check_fits("vm-1", apart.facts, other)
        with pytest.raises(EngineError):
            bench.engine.check_fits("vm-1", {}, bench.image)


@ON_QEMU
async def test_only_a_saved_machine_is_taken_apart(bench: Bench) -> None:
    async with bench.machine() as machine:
        with pytest.raises(EngineError, match="not saved"):
            await bench.engine.parts(machine.id)
        await bench.engine.pause(machine)
        await bench.engine.save(machine)
        parts = await bench.engine.parts(machine.id)
        assert sorted(parts.files) == ["devices", "drive", "pages"]
        (machine.folder / "drive").touch()
        with pytest.raises(EngineError, match="written to"):
            await bench.engine.parts(machine.id)
        saved.remove(machine.folder)


@pytest.mark.parametrize("engine_name", [LOCAL, PLAIN], indirect=True)
async def test_an_engine_that_saves_nothing_takes_nothing_apart(bench: Bench) -> None:
    with pytest.raises(EngineError, match="cannot save"):
        await bench.engine.parts("vm-1")
    with pytest.raises(EngineError, match="cannot save"):
        bench.engine.check_fits("vm-1", {}, bench.image)
    with pytest.raises(EngineError, match="cannot save"):
        bench.engine.planting("vm-1", {}, bench.image, Path("/nonexistent"))

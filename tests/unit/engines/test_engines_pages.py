"""The file of a machine's pages: what was written is what comes back, and what was not written is refused."""

import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poold.engines.qemu import pages, touched
from poold.engines.qemu.pages import PAGE
from poold.errors import EngineError

PAGES = 24
MEMORY = PAGES * PAGE

# A page in words: what it is filled with. 0 is a page of zeros.
memories = st.lists(st.integers(0, 3), min_size=PAGES, max_size=PAGES)


def _memory(words: list[int]) -> bytes:
    return b"".join(bytes([word]) * PAGE for word in words)


def _runs(touched_pages: set[int]) -> list[tuple[int, int]]:
    """(first, count) of adjacent pages."""
    runs: list[tuple[int, int]] = []
    for page in sorted(touched_pages):
        if runs and sum(runs[-1]) == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs


def _write(path: Path, mine: bytes, golden: bytes, runs: list[tuple[int, int]]) -> int:
    with path.open("wb", buffering=0) as file:
        return pages.write(
            pages.Writer(file.fileno(), len(mine)),
            runs,
            lambda offset, count: mine[offset : offset + count],
            lambda offset, count: golden[offset : offset + count],
            lambda _done, _total: None,
        )


def _load(path: Path, golden: bytes) -> bytes:
    """What a memory that begins as `golden` is after the pages were put into it."""
    memory = bytearray(golden)

    def write(pieces: Sequence[pages.Piece], data: memoryview) -> None:
        assert sum(size for _, size in pieces) == len(data) <= pages.CHUNK
        for offset, size in pieces:
            memory[offset : offset + size], data = data[:size], data[size:]

    with pages.open_pages(path, len(golden)) as content:
        content.check(lambda _done, _total: None)
        content.put(content.batches(), write, lambda _done, _total: None)
    return bytes(memory)


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "pages"


@given(memories, memories, st.sets(st.integers(0, PAGES - 1)))
def test_what_was_touched_comes_back_and_the_rest_stays(mine: list[int], golden: list[int], own: set[int]) -> None:
    now = [mine[page] if page in own else golden[page] for page in range(PAGES)]
    with _file() as path:
        size = _write(path, _memory(now), _memory(golden), _runs(own))
        assert size == path.stat().st_size
        assert _load(path, _memory(golden)) == _memory(now)


@given(memories, memories)
def test_only_pages_that_differ_and_are_not_zero_have_bytes(mine: list[int], golden: list[int]) -> None:
    with _file() as path:
        size = _write(path, _memory(mine), _memory(golden), [(0, PAGES)])
        with pages.open_pages(path, MEMORY) as content:
            told = sum(count for _, count, _ in content.runs)
            assert size == pages.DATA_AT + len(content.runs) * pages.RUN.size + PAGE * sum(
                count for _, count, is_zero in content.runs if not is_zero
            )
        assert told == sum(one != other for one, other in zip(mine, golden, strict=True))


@settings(max_examples=300)
@given(memories, st.data())
def test_a_file_with_any_byte_changed_is_refused(mine: list[int], data: st.DataObject) -> None:
    golden = bytes(MEMORY)
    with _file() as path:
        _write(path, _memory(mine), golden, [(0, PAGES)])
        content = bytearray(path.read_bytes())
        unused = range(pages.HEAD.size, pages.DATA_AT)
        at = data.draw(st.integers(0, len(content) - 1).filter(lambda at: at not in unused))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(EngineError):
            _load(path, golden)


@given(memories, st.integers(1, MEMORY))
def test_a_file_of_another_length_is_refused(mine: list[int], count: int) -> None:
    golden = bytes(MEMORY)
    with _file() as path:
        size = _write(path, _memory(mine), golden, [(0, PAGES)])
        for length in (max(0, size - count), size + count):
            os.truncate(path, length)
            with pytest.raises(EngineError):
                _load(path, golden)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_garbage_is_refused(head: bytes, rest: bytes) -> None:
    with _file() as path:
        path.write_bytes(head.ljust(pages.DATA_AT, b"\0") + rest)
        with pytest.raises(EngineError):
            _load(path, bytes(MEMORY))


@pytest.mark.parametrize(
    "runs",
    [
        [(0, 0, 0)],
        [(PAGES, 1, 1)],
        [(0, PAGES + 1, 1)],
        [(2**63, 2**31, 1)],
        [(1, 1, 1), (0, 1, 1)],
        [(0, 2, 1), (1, 1, 1)],
        [(0, 1, 2)],
        [(0, 1, 0)],  # a page whose bytes are not there
    ],
)
def test_a_table_that_makes_no_sense_is_refused_even_if_its_checksum_is_right(
    tmp_path: Path, runs: list[pages.Run]
) -> None:

    table = b"".join(pages.RUN.pack(*run) for run in runs)
    head = pages.HEAD.pack(pages.MAGIC, MEMORY, 0, len(runs), 0, zlib.crc32(table))
    path = tmp_path / "pages"
    path.write_bytes(head.ljust(pages.DATA_AT, b"\0") + table)
    with pytest.raises(EngineError, match="its table"), pages.open_pages(path, MEMORY):
        pass


def test_pages_of_another_memory_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "pages", bytes(MEMORY), bytes(MEMORY), [])
    with pytest.raises(EngineError, match="of a memory of"), pages.open_pages(tmp_path / "pages", MEMORY + PAGE):
        pass


def test_long_runs_are_read_in_chunks_and_written_as_one(tmp_path: Path) -> None:
    mine = os.urandom(2 * pages.CHUNK + PAGE)
    seen: list[int] = []

    def own(offset: int, count: int) -> bytes:
        seen.append(count)
        return mine[offset : offset + count]

    with (tmp_path / "pages").open("wb", buffering=0) as file:
        writer = pages.Writer(file.fileno(), len(mine))
        pages.write(writer, [(0, len(mine) // PAGE)], own, lambda _at, count: bytes(count), lambda *_: None)
    assert seen == [pages.CHUNK, pages.CHUNK, PAGE]
    with pages.open_pages(tmp_path / "pages", len(mine)) as content:
        assert content.runs == [(0, len(mine) // PAGE, 0)]
    assert _load(tmp_path / "pages", bytes(len(mine))) == mine


def test_holes_of_the_golden_memory_are_zeros_and_its_data_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with path.open("wb") as file:
        file.truncate(64 * PAGE)
        file.seek(16 * PAGE)
        file.write(b"a" * PAGE)
    with touched.GoldenMemory(path, 64 * PAGE) as golden:
        for first, count in [(0, 16), (15, 3), (16, 1), (17, 40), (0, 64)]:
            expected = path.read_bytes()[first * PAGE : (first + count) * PAGE]
            assert golden.read(first * PAGE, count * PAGE) == expected

"""When checkpoints are due, what they are a change of, and what may be in one."""

import tarfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.tasks import Checkpointing
from poold.archives.errors import BadArchive
from poold.archives.members import CheckpointCensus
from poold.archives.tar import Tar
from poold.ledger.checkpoints import Checkpoint, chain
from poold.tasks.pacing import MAX_CHAIN, SHARE, Marks, base_for, due_s, rest_s
from tests.unit.archives.archives_tars import made, member

ONE = Checkpoint(1, None, 1, 10, 3, 1, "s", {}, 1, 100, "a" * 64, 1)
OFTEN = Checkpointing(steps=5, minutes=2)
COUNTS = st.integers(0, 1000)


def links(count: int, run: int = 1, **more: int) -> list[Checkpoint]:
    return [replace(ONE, number=n, base=n - 1 or None, run=run, **(more if n > 1 else {})) for n in range(1, count + 1)]


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 1e6))
def test_one_is_due_after_a_commit_after_steps_and_after_minutes_if_something_was_told(
    told: int, steps: int, commits: int, since_s: float
) -> None:
    kept = Marks(100, 10, 2)
    wait_s = due_s(kept, Marks(100 + told, 10 + steps, 2 + commits), OFTEN, since_s=since_s)
    if not told:
        assert wait_s is None
    elif commits or steps >= 5 or since_s >= 120:
        assert wait_s == 0
    else:
        assert wait_s == 120 - since_s
    never = due_s(kept, Marks(100 + told, 10 + steps, 2), Checkpointing(0, 0), since_s=since_s)
    assert never is None


@given(st.floats(0, 1e5), st.integers(0, 100))
def test_nothing_is_kept_so_often_that_it_costs_more_than_a_tenth(took_s: float, failures: int) -> None:
    rest = rest_s(took_s, failures)
    assert took_s <= (took_s + rest) / 10 * (1 + 1e-9)
    assert rest >= SHARE * took_s
    assert failures == 0 or rest > 0


def test_a_chain_is_whole_at_its_beginning_and_neither_long_nor_large_nor_of_two_machines() -> None:
    assert base_for([], 1) is None
    assert base_for(links(3), 1) == links(3)[-1]
    assert base_for(links(3), 2) is None
    assert base_for(links(MAX_CHAIN), 1) is None
    assert base_for(links(3, bytes=3 << 20), 1) is None


def test_a_chain_with_a_link_missing_is_none() -> None:
    whole = links(4)
    assert chain(whole) == whole
    assert chain(whole[1:]) == []
    assert chain([]) == []
    assert chain([*whole, replace(ONE, number=5)]) == [replace(ONE, number=5)]


@pytest.mark.parametrize(
    "name", ["etc/passwd", "workspace", "home", "removed/x", "./other", "workspace/../x", "/workspace/a"]
)
def test_what_is_in_neither_folder_is_refused(name: str) -> None:
    with pytest.raises(BadArchive):
        Tar(CheckpointCensus().judge).feed(made((member(name), b"x")))


def test_a_list_that_is_a_link_is_refused_and_a_good_checkpoint_is_not() -> None:
    with pytest.raises(BadArchive):
        Tar(CheckpointCensus().judge).feed(made(member("removed", tarfile.SYMTYPE, "/etc/passwd")))
    through = made(member("workspace/a", tarfile.SYMTYPE, "/etc"), (member("workspace/a/b"), b"x"))
    with pytest.raises(BadArchive):
        Tar(CheckpointCensus().judge).feed(through)
    good = made((member("removed"), b"workspace/x\0"), (member("workspace/a"), b"x"), (member("home/.codex/b"), b"x"))
    reader = Tar(CheckpointCensus().judge)
    assert reader.feed(good)[: 512 * 4]
    reader.end()

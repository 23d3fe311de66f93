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
from poold.ledger.checkpoints import Checkpoint, chain, resumable
from poold.link import GuestEvent
from poold.tasks.continuing import continued
from poold.tasks.pacing import MAX_CHAIN, SHARE, Marks, base_for, due_s, rest_s
from poold.tasks.progress import Progress, read
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


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 1e6))
def test_none_is_due_before_the_agent_has_said_its_session(told: int, steps: int, commits: int, since_s: float) -> None:
    now = Marks(100 + told, 10 + steps, 2 + commits, has_session=False)
    assert due_s(Marks(100, 10, 2), now, OFTEN, since_s=since_s) is None


def test_a_session_is_that_of_the_run_that_is_under_way() -> None:
    told = [("agent.started", {}), ("agent.session", {"session": "s"}), ("agent.thought", {"text": "x"})]
    batch = [GuestEvent(number, kind, data) for number, (kind, data) in enumerate(told, 1)]
    known, _ = read(Progress(), batch, at_ms=1, price=lambda *_: None)
    assert (known.session, Marks.of(known)) == ("s", Marks(3, 0, 0, has_session=True))
    lost = continued(known)
    assert (lost.session, Marks.of(lost).has_session) == ("s", False)
    again, _ = read(known, [GuestEvent(4, "agent.started", {})], at_ms=1, price=lambda *_: None)
    assert not Marks.of(again).has_session
    before = {name: value for name, value in known.encode().items() if name != "has_session"}
    assert Progress.decode(before).has_session  # a poold of before wrote this while its agent worked


def test_nobody_goes_on_from_a_moment_without_a_session() -> None:
    whole = links(4)
    assert resumable(whole) == whole
    assert resumable([*whole, replace(ONE, number=5, session=None)]) == whole
    assert resumable([replace(ONE, session=None)]) == []
    assert chain(resumable([replace(ONE, session=None), replace(ONE, number=2, base=1)]))[-1].number == 2


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

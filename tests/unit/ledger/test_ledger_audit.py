"""The audit chain: whatever is done to its rows behind its back is found, up to what no chain can find by itself."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.ledger import audit
from poold.ledger.audit import Entry, Head
from poold.ledger.connect import open_reader, open_writer
from poold.ledger.driver import sqlite3
from poold.ledger.migrate import migrate
from tests.unit.ledger.rows import count, memory

texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    Entry,
    at_ms=st.integers(0, 2**40),
    action=texts,
    owner=texts,
    sandbox=st.none() | texts,
    request=st.none() | texts,
    detail=st.dictionaries(texts, texts | st.integers(-9, 9), max_size=2),
    exit_code=numbers,
    duration_ms=numbers,
    bytes=numbers,
)
histories = st.lists(entries, min_size=1, max_size=8)
ALL = "seq, at_ms, owner, sandbox, request, action, detail, exit_code, duration_ms, bytes, hash"
COLUMNS = ALL.split(", ")
OTHER: dict[str, Callable[[object], object]] = {
    **{name: lambda old: (old or 0) + (1 if (old or 0) < 0 else -1) for name in COLUMNS},  # type: ignore[operator]
    **{name: lambda old: f"{old or ''}x" for name in ("owner", "sandbox", "request", "action", "detail")},
    "seq": lambda old: old + 1000,  # type: ignore[operator]
    "hash": lambda old: bytes([old[0] ^ 1]) + old[1:],  # type: ignore[index]
}


def unguarded(db: sqlite3.Connection) -> None:
    """As somebody with the file in hand: no trigger holds them up."""
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")


def written(db: sqlite3.Connection, history: list[Entry]) -> None:
    for entry in history:
        audit.add(db, entry)


@given(histories)
def test_a_chain_verifies_and_says_what_it_has(history: list[Entry]) -> None:
    with memory() as db:
        assert audit.verify(db).view() == {
            "ok": True, "rows": 0, "first": None, "last": None, "broken_at": None, "why": None,
        }  # fmt: skip
        written(db, history)
        verdict = audit.verify(db, head=audit.head(db))
        assert (verdict.ok, verdict.rows, verdict.first, verdict.last) == (True, len(history), 1, len(history))
        found = audit.listed(db, limit=100)
        assert [entry.view() | {"seq": 0} for entry in found] == [entry.view() for entry in history]


def test_the_hash_can_be_computed_by_anyone_who_reads_the_docstring() -> None:
    with memory() as db:
        before = bytes(32)
        written(db, [Entry(5, "sandbox.stop", "ada", "sb-1", None, {"why": "ü"}), Entry(6, "x", exit_code=1)])
        for row in db.execute(f"SELECT {ALL} FROM audit ORDER BY seq").fetchall():
            text = json.dumps(tuple(row)[:-1], separators=(",", ":"), ensure_ascii=False)
            before = hashlib.sha256(before + text.encode()).digest()
            assert row["hash"] == before


@pytest.mark.parametrize("column", COLUMNS)
@given(history=histories, data=st.data())
def test_a_changed_column_is_found_where_it_is(column: str, history: list[Entry], data: st.DataObject) -> None:
    with memory() as db:
        written(db, history)
        seq = data.draw(st.integers(1, len(history)))
        unguarded(db)
        (old,) = db.execute(f"SELECT {column} FROM audit WHERE seq = ?", (seq,)).fetchone()
        db.execute(f"UPDATE audit SET {column} = ? WHERE seq = ?", (OTHER[column](old), seq))
        verdict = audit.verify(db)
        assert not verdict.ok
        assert verdict.broken_at == seq
        assert verdict.rows == seq - 1


@given(histories, st.data())
def test_a_removed_row_is_found_unless_it_was_the_last(history: list[Entry], data: st.DataObject) -> None:
    with memory() as db:
        written(db, history)
        head = audit.head(db)
        seq = data.draw(st.integers(1, len(history)))
        unguarded(db)
        db.execute("DELETE FROM audit WHERE seq = ?", (seq,))
        assert audit.verify(db).ok == (seq == len(history))  # the chain alone cannot know its own end
        verdict = audit.verify(db, head=head)
        assert (verdict.ok, verdict.broken_at) == (False, seq)


@given(st.lists(entries, min_size=2, max_size=8, unique_by=lambda entry: entry.at_ms), st.data())
def test_swapped_rows_are_found(history: list[Entry], data: st.DataObject) -> None:
    with memory() as db:
        written(db, history)
        first = data.draw(st.integers(1, len(history) - 1))
        second = data.draw(st.integers(first + 1, len(history)))
        unguarded(db)
        for old, new in ((first, -1), (second, first), (-1, second)):
            db.execute("UPDATE audit SET seq = ? WHERE seq = ?", (new, old))
        assert audit.verify(db).broken_at == first


@given(histories, entries, st.data())
def test_an_inserted_row_is_found(history: list[Entry], foreign: Entry, data: st.DataObject) -> None:
    """Somebody makes room, and computes the hash of the new row as it has to be, but not those behind it."""
    with memory() as db:
        written(db, history)
        seq = data.draw(st.integers(1, len(history)))
        with memory() as forged:
            written(forged, [*history[: seq - 1], foreign])
            row = forged.execute(f"SELECT {ALL} FROM audit WHERE seq = ?", (seq,)).fetchone()
        unguarded(db)
        for (number,) in db.execute("SELECT seq FROM audit WHERE seq >= ? ORDER BY seq DESC", (seq,)).fetchall():
            db.execute("UPDATE audit SET seq = seq + 1 WHERE seq = ?", (number,))
        db.execute(f"INSERT INTO audit ({ALL}) VALUES ({', '.join('?' * len(COLUMNS))})", tuple(row))
        assert audit.verify(db).broken_at == seq + 1


@given(histories, histories)
def test_a_chain_computed_anew_is_found_with_a_head_that_was_kept(history: list[Entry], other: list[Entry]) -> None:
    with memory() as db, memory() as forged:
        written(db, history)
        written(forged, other)
        same = len(other) >= len(history) and other[: len(history)] == history
        assert audit.verify(forged).ok
        assert audit.verify(forged, head=audit.head(db)).ok is same


def test_text_that_is_no_text_is_a_broken_row_and_no_crash() -> None:
    with memory() as db:
        written(db, [Entry(1, "a"), Entry(2, "b")])
        unguarded(db)
        db.execute("UPDATE audit SET action = CAST(x'ff' AS TEXT) WHERE seq = 2")
        assert audit.verify(db).broken_at == 2


def test_a_changed_anchor_is_found() -> None:
    with memory() as db:
        unguarded(db)
        db.execute("UPDATE audit_anchor SET hash = randomblob(32)")
        assert not audit.verify(db).ok
        written(db, [Entry(1, "a")])
        assert not audit.verify(db).ok
    with memory() as db:
        written(db, [Entry(1, "a"), Entry(2, "b")])
        unguarded(db)
        db.execute("UPDATE audit_anchor SET seq = 1")
        assert not audit.verify(db).ok
        db.execute("UPDATE audit_anchor SET seq = -1")
        assert not audit.verify(db).ok


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit SET owner = 'x'",
        "DELETE FROM audit",
        "UPDATE audit_anchor SET hash = randomblob(32), seq = 1",
        "UPDATE audit_anchor SET seq = 77",
        "DELETE FROM audit_anchor",
        "UPDATE events SET kind = 'x'",
        "DELETE FROM events",
    ],
)
def test_history_is_guarded_against_our_own_mistakes(change: str) -> None:
    with memory() as db:
        written(db, [Entry(1, "a")])
        db.execute("INSERT INTO events (stream, seq, at_ms, kind, data) VALUES ('s', 1, 1, 'k', '{}')")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(change)
        assert audit.verify(db).ok
        assert count(db, "events") == 1


@given(st.lists(entries, max_size=20), st.integers(1, 5), st.data())
def test_pages_of_a_filtered_list_are_the_list(history: list[Entry], limit: int, data: st.DataObject) -> None:
    with memory() as db:
        written(db, history)
        one = data.draw(st.sampled_from(history)) if history else Entry(0, "none")
        asked = {
            name: getattr(one, name) for name in data.draw(st.sets(st.sampled_from(["sandbox", "owner", "action"])))
        }
        pages: list[Entry] = []
        while page := audit.listed(db, **asked, after=pages[-1].seq if pages else 0, limit=limit):
            assert len(page) <= limit
            pages += page
        given_ = {name: value for name, value in asked.items() if value is not None}
        wanted = [n for n, entry in enumerate(history, 1) if all(getattr(entry, k) == v for k, v in given_.items())]
        assert [entry.seq for entry in pages] == wanted


def test_a_chain_verifies_on_a_connection_that_can_only_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = open_writer(path)
    migrate(db)
    written(db, [Entry(1, "a"), Entry(2, "b")])
    reader = open_reader(path)
    assert audit.verify(reader).rows == 2
    assert audit.verify(reader, head=Head(1, bytes(32))).broken_at == 1
    reader.close()
    db.close()

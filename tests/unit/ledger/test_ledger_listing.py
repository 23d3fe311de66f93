"""Lists of sandboxes: by owner, state, image and metadata, in pages whose cursor any host understands."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.models import Sandbox
from contract.states import State
from poold.ledger import sandboxes
from poold.ledger.driver import sqlite3
from tests.unit.ledger.rows import SHAPE, box, memory

# Quotes and backslashes have a meaning in JSON, percent signs and dots in paths and patterns.
texts = st.text(alphabet="a\"\\'%.$[]é\n ☃", max_size=4)
made = st.builds(
    lambda number, created_ms, state, owner, image, metadata: replace(
        box(number, created_ms, state, owner), shape=replace(SHAPE, image=image), metadata=metadata
    ),
    st.integers(0, 40),
    st.integers(0, 5),
    st.sampled_from(list(State)),
    st.sampled_from(["ada", "bob"]),
    st.sampled_from(["host", "python"]),
    st.dictionaries(texts, texts, max_size=3),
)
some_made = st.lists(made, max_size=20, unique_by=lambda sandbox: sandbox.id)


def fill(db: sqlite3.Connection, rows: list[Sandbox]) -> None:
    for sandbox in rows:
        sandboxes.add(db, sandbox)


def newest_first(rows: list[Sandbox]) -> list[str]:
    return [row.id for row in sorted(rows, key=lambda row: (row.created_ms, row.id), reverse=True)]


questions = st.fixed_dictionaries(
    {
        "states": st.sets(st.sampled_from(list(State))),
        "owner": st.none() | st.sampled_from(["ada", "bob", "eve"]),
        "image": st.none() | st.sampled_from(["host", "python"]),
        "metadata": st.dictionaries(texts, texts, max_size=2),
        "before": st.none() | st.tuples(st.integers(0, 6), st.integers(0, 50).map(lambda number: box(number).id)),
    }
)


def answers(row: Sandbox, asked: dict[str, Any]) -> bool:
    return (
        row.state in asked["states"]
        and asked["owner"] in (None, row.owner)
        and asked["image"] in (None, row.shape.image)
        and asked["metadata"].items() <= row.metadata.items()
        and (asked["before"] is None or (row.created_ms, row.id) < asked["before"])
    )


@given(some_made, questions)
def test_a_list_has_exactly_what_has_all_that_was_asked_for(rows: list[Sandbox], asked: dict[str, Any]) -> None:
    with memory() as db:
        fill(db, rows)
        found = sandboxes.listed(db, **asked, limit=100)
        assert [row.id for row in found] == newest_first([row for row in rows if answers(row, asked)])


@given(some_made)
def test_metadata_is_found_whatever_it_is_made_of(rows: list[Sandbox]) -> None:
    with memory() as db:
        fill(db, rows)
        for row in rows:
            for pair in row.metadata.items():
                found = sandboxes.listed(db, states=list(State), metadata=dict([pair]), limit=100)
                assert row.id in [one.id for one in found]


@given(st.lists(some_made, min_size=2, max_size=3), st.integers(1, 5))
def test_pages_of_many_hosts_merge_into_one_list(hosts: list[list[Sandbox]], limit: int) -> None:
    """As a gateway does: a page of each host behind the same cursor, of which it keeps the newest."""
    hosts = [[replace(row, id=f"{row.id}-{number}") for row in rows] for number, rows in enumerate(hosts)]
    seen: list[str] = []
    before: tuple[int, str] | None = None
    while True:
        pages: list[Sandbox] = []
        for rows in hosts:
            with memory() as db:
                fill(db, rows)
                pages += sandboxes.listed(db, states=list(State), before=before, limit=limit)
        page = sorted(pages, key=lambda row: (row.created_ms, row.id), reverse=True)[:limit]
        if not page:
            break
        seen += [row.id for row in page]
        before = page[-1].created_ms, page[-1].id
    assert seen == newest_first([row for rows in hosts for row in rows])


def plan_of(db: sqlite3.Connection, states: list[State], owner: str | None) -> str:
    """How SQLite answers a list: asked of a connection that only explains."""
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    sandboxes.listed(db, states=states, owner=owner, before=(5, "sb-x"), limit=10)
    db.set_trace_callback(None)
    return " ".join(row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {asked[-1]}"))


def test_lists_use_an_index_and_sort_nothing() -> None:
    left = [state for state in State if state is not State.STOPPED]
    with memory() as db:
        for states, owner, index in (
            (left, "ada", "sandboxes_left_by_owner"),
            (list(State), "ada", "sandboxes_by_owner"),
            (left, None, "sandboxes_by_creation"),
        ):
            plan = plan_of(db, states, owner)
            assert f"USING INDEX {index} " in plan
            assert "TEMP B-TREE" not in plan


@given(some_made)
def test_what_lives_of_an_owner_is_what_has_not_ended(rows: list[Sandbox]) -> None:
    with memory() as db:
        fill(db, rows)
        living = {row.id for row in rows if row.owner == "ada" and row.state not in (State.STOPPED, State.ERROR)}
        assert {row.id for row in sandboxes.living(db, "ada")} == living
        assert sandboxes.states(db, [row.id for row in rows]) == {row.id: row.state for row in rows}

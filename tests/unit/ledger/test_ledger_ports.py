"""Public ports: written with their event and audit row, each once, and not for a sandbox that has ended."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import BadField, WrongState
from contract.models import MAX_PUBLIC_PORTS
from contract.states import Event
from poold.ledger import audit, events, sandboxes
from poold.ledger.driver import sqlite3
from tests.unit.ledger.rows import box, memory


def told(db: sqlite3.Connection) -> list[tuple[int, bool]]:
    stream = events.after(db, box(1).id, 0, 1000)
    return [(event.data["port"], event.data["public"]) for event in stream if event.kind == "port"]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=15))
def test_each_change_has_its_event_and_its_audit_row_and_what_is_so_already_has_neither(
    asked: list[tuple[int, bool]],
) -> None:
    with memory() as db:
        sandboxes.add(db, replace(box(1), public_ports=(2, 3)))
        public, changes = {2, 3}, []
        for port, is_public in asked:
            if (port in public) is not is_public:
                changes.append((port, is_public))
            public = public | {port} if is_public else public - {port}
            after = sandboxes.set_public(db, box(1).id, port, public=is_public, now_ms=2000, request="rq-1")
            assert after.public_ports == tuple(sorted(public))
        assert sandboxes.get(db, box(1).id).public_ports == tuple(sorted(public))
        assert told(db) == changes
        noted = audit.listed(db, action="sandbox.port", limit=100)
        assert [(row.detail["port"], row.detail["public"]) for row in noted] == changes
        assert {row.request for row in noted} <= {"rq-1"}


def test_a_sandbox_has_so_many_public_ports_and_no_more() -> None:
    with memory() as db:
        sandboxes.add(db, replace(box(1), public_ports=tuple(range(1, MAX_PUBLIC_PORTS + 1))))
        with pytest.raises(BadField, match="32"):
            sandboxes.set_public(db, box(1).id, 8080, public=True, now_ms=2000)
        sandboxes.set_public(db, box(1).id, 1, public=False, now_ms=2000)
        assert 8080 in sandboxes.set_public(db, box(1).id, 8080, public=True, now_ms=2000).public_ports


def test_ports_of_a_sandbox_that_has_ended_cannot_be_changed() -> None:
    with memory() as db:
        sandboxes.add(db, box(1))
        sandboxes.move(db, box(1).id, Event.STOP, now_ms=2000)
        with pytest.raises(WrongState):
            sandboxes.set_public(db, box(1).id, 80, public=True, now_ms=2000)
        assert told(db) == []

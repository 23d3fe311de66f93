"""Replies that are kept: the first one, for a day, and for the request that it was given to."""

import pytest

from contract.errors import KeyReused
from poold.ledger import replies
from poold.ledger.repeats import KEPT_MS
from poold.ledger.replies import Reply
from tests.unit.ledger.rows import memory

FIRST, SECOND = Reply(201, b'{"id":"sb-1"}'), Reply(503, b"{}")


def test_the_first_reply_is_kept_for_a_day_and_then_makes_room() -> None:
    with memory() as db:
        assert replies.get(db, "sb-1", "a", now_ms=1) is None
        replies.keep(db, "sb-1", "a", FIRST, now_ms=1)
        replies.keep(db, "sb-1", "b", SECOND, now_ms=KEPT_MS)
        assert replies.get(db, "sb-1", "a", now_ms=KEPT_MS) == FIRST
        assert replies.get(db, "sb-1", "a", now_ms=KEPT_MS + 1) is None
        replies.keep(db, "sb-1", "b", SECOND, now_ms=KEPT_MS + 1)
        assert replies.get(db, "sb-1", "b", now_ms=KEPT_MS + 1) == SECOND


def test_another_request_for_the_same_id_is_refused() -> None:
    with memory() as db:
        replies.keep(db, "sb-1", "a", FIRST, now_ms=1)
        with pytest.raises(KeyReused) as refused:
            replies.get(db, "sb-1", "b", now_ms=1)
        assert (refused.value.status, refused.value.code) == (422, "key_reused")

"""A key that is not in a book counts as new only if nobody who could not be asked may know of it."""

from typing import cast

import pytest

from contract.errors import NoBook
from poold.api.books import AGAIN_S, Books, NotSettled
from poold.lease.membership import Membership


class Cluster:
    """What a member sees of the others."""

    def __init__(self) -> None:
        self.is_alone = False
        self.lost: set[str] = set()
        self.held = {"one", "two", "three"}
        self.now_s = 100.0

    def open_lines(self) -> frozenset[str]:
        return frozenset(self.lost)

    def holders(self) -> frozenset[str]:
        return frozenset(self.held)

    def books(self) -> Books:
        return Books(cast(Membership, self), lambda: self.now_s)


def collected(books: Books, *unreached: str) -> None:
    """As a gateway does it that is told that there is no book."""
    with pytest.raises(NoBook):
        books.must_know("ann")
    books.missed("ann")
    books.opened("ann", unreached)


def test_a_host_that_is_alone_knows_all() -> None:
    Books(Membership()).must_know("ann")


def test_a_book_is_collected_once_after_a_start_and_then_known() -> None:
    books = Cluster().books()
    collected(books)
    for _ in range(2):
        books.must_know("ann")


def test_a_book_that_was_collected_since_nobody_knows_when_is_collected_again() -> None:
    books = Cluster().books()
    books.opened("ann", ())
    with pytest.raises(NoBook):
        books.must_know("ann")


def test_a_host_that_could_not_be_asked_may_know_the_key_until_its_ledger_is_somebodys() -> None:
    cluster = Cluster()
    books = cluster.books()
    collected(books, "two")
    with pytest.raises(NotSettled, match="two") as refused:
        books.must_know("ann")
    assert (refused.value.status, refused.value.retry_after_s) == (503, 2)
    cluster.held, cluster.lost = {"one", "three"}, {"two"}  # it was taken, and is being carried on
    with pytest.raises(NotSettled):
        books.must_know("ann")
    cluster.lost = set()
    collected(books, "two")  # who carries it on has its keys now
    books.must_know("ann")


def test_what_was_carried_on_while_a_book_was_collected_is_collected_again() -> None:
    cluster = Cluster()
    cluster.lost = {"two"}
    books = cluster.books()
    with pytest.raises(NoBook):
        books.must_know("ann")
    books.missed("ann")
    cluster.lost, cluster.held = set(), {"one", "three"}  # after the first host was asked
    books.opened("ann", ())
    collected(books)
    books.must_know("ann")


def test_a_lost_host_that_is_back_does_not_hide_that_its_ledger_is_being_carried_on() -> None:
    cluster = Cluster()
    cluster.lost = {"two"}  # it can be asked, and knows nothing any more
    books = cluster.books()
    collected(books)
    with pytest.raises(NotSettled, match="two"):
        books.must_know("ann")


def test_a_book_that_lacks_something_is_collected_again_now_and_then() -> None:
    cluster = Cluster()
    books = cluster.books()
    collected(books, "two")
    cluster.now_s += AGAIN_S
    collected(books)  # it could be asked this time
    books.must_know("ann")


def test_a_host_without_a_lease_is_not_waited_for() -> None:
    books = Cluster().books()
    collected(books, "four")
    books.must_know("ann")

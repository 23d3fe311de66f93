"""The book of an owner: what its sandboxes take together, on whatever host they are.

An owner has one open book, on one host; the gateways see to that. To move it they close it, which gives out its rows,
and open it elsewhere with them. A closed book keeps its rows and gives them out again: a gateway may die before it has
opened the next one. So rows may come back that were released meanwhile elsewhere; they cost room until a gateway looks
which sandboxes still live, and never let an owner have too much.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contract.errors import NoBook, PoolExhausted
from contract.keys import Pools
from poold.ledger import audit, repeats
from poold.ledger.driver import sqlite3
from poold.ledger.repeats import Repeat

MAX_ROWS = 20_000  # of a book: so many fit into one request that opens it elsewhere
MOVED_REPEATS = 8_000  # of a book that moves, the newest; it remembers more while it stays
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for the sandbox `id`, which may not be there yet."""

    id: str
    vcpus: int
    memory_mb: int
    disk_mb: int
    created_ms: int = 0

    @property
    def size(self) -> Pools:
        return Pools(self.vcpus, self.memory_mb, self.disk_mb)

    def view(self) -> dict[str, Any]:
        """The reply's JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Key:
    """An idempotency key and the request that it was used for, both as hashes."""

    key: str
    asked: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """`repeated`: the id is that of an earlier request with the same key, and nothing was reserved."""

    id: str
    repeated: bool


def reserve(
    db: sqlite3.Connection,
    owner: str,
    wanted: Reservation,
    pools: Pools,
    *,
    now_ms: int,
    key: Key | None = None,
) -> Reserved:
    """Reserve room for a sandbox, or raise `PoolExhausted`, `NoBook` or `KeyReused` and change nothing.

    An id that has its room is a success: whoever lost our reply asks again.
    """
    _must_be_open(db, owner)
    if key is not None:
        known = repeats.find(db, owner, key.key, key.asked, now_ms=now_ms)
        if known not in (None, wanted.id):
            return Reserved(str(known), repeated=True)
    if not _has(db, owner, wanted.id):
        _must_fit(db, owner, wanted, pools)
        _add(db, owner, [wanted], now_ms)
    if key is not None:
        repeats.merge(db, owner, [Repeat(key.key, key.asked, wanted.id, now_ms)], now_ms=now_ms)
    return Reserved(wanted.id, repeated=False)


def release(db: sqlite3.Connection, owner: str, ids: Iterable[str], *, forget: bool = False) -> int:
    """Give the room of these sandboxes back, and return how many had some. Unknown ids are fine.

    `forget`: they never came to be and never will, so their idempotency keys may be used for another id.
    """
    wanted = list(ids)
    released = sum(
        db.execute("DELETE FROM reservations WHERE owner = ? AND id = ?", (owner, one)).rowcount for one in wanted
    )
    if forget:
        repeats.forget(db, owner, wanted)
    return released


def rows(db: sqlite3.Connection, owner: str) -> list[Reservation]:
    """All of the owner's open book, or `NoBook`."""
    _must_be_open(db, owner)
    return _rows(db, owner)


def used(db: sqlite3.Connection, owner: str) -> Pools:
    row = db.execute(
        "SELECT coalesce(sum(vcpus), 0), coalesce(sum(memory_mb), 0), coalesce(sum(disk_mb), 0)"
        " FROM reservations WHERE owner = ?",
        (owner,),
    ).fetchone()
    return Pools(*row)


def open_book(
    db: sqlite3.Connection,
    owner: str,
    brought: Sequence[Reservation],
    remembered: Sequence[Repeat],
    *,
    now_ms: int,
    request: str | None = None,
) -> bool:
    """Open the book with these rows beside those that it has. One that is open stays as it is, and this is False.

    Of a sandbox that both tell of, what is brought counts: it is newer than a closed book.
    """
    if _state(db, owner) == "open":
        return False
    _set(db, owner, "open", now_ms)
    _add(db, owner, brought, now_ms)
    repeats.merge(db, owner, remembered, now_ms=now_ms)
    detail = {"rows": len(brought), "repeats": len(remembered)}
    audit.add(db, audit.Entry(now_ms, "book.open", owner=owner, request=request, detail=detail))
    return True


def close_book(
    db: sqlite3.Connection, owner: str, *, now_ms: int, request: str | None = None
) -> tuple[list[Reservation], list[Repeat]]:
    """Refuse reservations until it is opened again, and give out all that is in it; again, if it was closed before."""
    found = _rows(db, owner), repeats.newest(db, owner, MOVED_REPEATS, now_ms=now_ms)
    if _state(db, owner) == "open":
        _set(db, owner, "closed", now_ms)
        detail = {"rows": len(found[0]), "repeats": len(found[1])}
        audit.add(db, audit.Entry(now_ms, "book.close", owner=owner, request=request, detail=detail))
    return found


def _state(db: sqlite3.Connection, owner: str) -> str | None:
    row = db.execute("SELECT state FROM books WHERE owner = ?", (owner,)).fetchone()
    return None if row is None else str(row[0])


def _set(db: sqlite3.Connection, owner: str, state: str, now_ms: int) -> None:
    db.execute("INSERT OR REPLACE INTO books (owner, state, at_ms) VALUES (?, ?, ?)", (owner, state, now_ms))


def _must_be_open(db: sqlite3.Connection, owner: str) -> None:
    if _state(db, owner) != "open":
        raise NoBook(f"this host has no open book of owner {owner}: close it elsewhere and open it here", owner=owner)


def _must_fit(db: sqlite3.Connection, owner: str, wanted: Reservation, pools: Pools) -> None:
    taken, allowed, asked = vars(used(db, owner)), vars(pools), vars(wanted.size)
    over = [name for name in allowed if taken[name] + asked[name] > allowed[name]]
    if over:
        short = ", ".join(
            f"{taken[name]} of {allowed[name]} {name} are used and {asked[name]} asked for" for name in over
        )
        message = f"owner {owner} has no room for this sandbox: {short}; destroy one, or ask for a smaller one"
        raise PoolExhausted(message, retry_after_s=RETRY_AFTER_S, used=taken, allowed=allowed, asked=asked)
    (count,) = db.execute("SELECT count(*) FROM reservations WHERE owner = ?", (owner,)).fetchone()
    if count >= MAX_ROWS:
        message = f"owner {owner} has {count} sandboxes, and more than {MAX_ROWS} are not possible; destroy one"
        raise PoolExhausted(message, retry_after_s=RETRY_AFTER_S, used=taken, allowed=allowed, asked=asked)


def _has(db: sqlite3.Connection, owner: str, sandbox_id: str) -> bool:
    row = db.execute("SELECT 1 FROM reservations WHERE owner = ? AND id = ?", (owner, sandbox_id)).fetchone()
    return row is not None


def _add(db: sqlite3.Connection, owner: str, wanted: Iterable[Reservation], now_ms: int) -> None:
    """Rows of another host get our time: how long ago they were made is only known by one clock."""
    db.executemany(
        "INSERT OR REPLACE INTO reservations (owner, id, vcpus, memory_mb, disk_mb, created_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [(owner, one.id, one.vcpus, one.memory_mb, one.disk_mb, now_ms) for one in wanted],
    )


def _rows(db: sqlite3.Connection, owner: str) -> list[Reservation]:
    found = db.execute(
        "SELECT id, vcpus, memory_mb, disk_mb, created_ms FROM reservations WHERE owner = ? ORDER BY id", (owner,)
    )
    return [Reservation(*row) for row in found]

"""What agents did: one row for each call of a tool, or for a message with none."""

from dataclasses import dataclass
from typing import Any

import orjson

from poold.ledger.driver import sqlite3

COLUMNS = (
    "number, thought, tool, arguments, output, output_bytes, output_artifact, is_error, started_ms, ended_ms,"
    " input_tokens, output_tokens, usd"
)


@dataclass(frozen=True)
class Begun:
    """A step that begins."""

    number: int
    thought: str | None
    tool: str | None
    arguments: Any
    started_ms: int


@dataclass(frozen=True)
class Ended:
    """What came of one. `file`: where its machine has all of the output, if this is only a part of it."""

    number: int
    output: str | None
    output_bytes: int
    file: str | None
    is_error: bool
    ended_ms: int


@dataclass(frozen=True)
class Spent:
    """What a step cost, beside what is known already."""

    number: int
    input_tokens: int
    output_tokens: int
    usd: float | None


def begin(db: sqlite3.Connection, task_id: str, step: Begun) -> None:
    db.execute(
        "INSERT OR IGNORE INTO steps (task, number, thought, tool, arguments, started_ms) VALUES (?, ?, ?, ?, ?, ?)",
        (task_id, step.number, step.thought, step.tool, orjson.dumps(step.arguments).decode(), step.started_ms),
    )


def end(db: sqlite3.Connection, task_id: str, step: Ended) -> None:
    db.execute(
        "UPDATE steps SET output = ?, output_bytes = ?, output_file = ?, is_error = ?, ended_ms = ?"
        " WHERE task = ? AND number = ?",
        (step.output, step.output_bytes, step.file, step.is_error, step.ended_ms, task_id, step.number),
    )


def spend(db: sqlite3.Connection, task_id: str, spent: Spent) -> None:
    db.execute(
        "UPDATE steps SET input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,"
        " usd = CASE WHEN ? IS NULL THEN usd ELSE coalesce(usd, 0) + ? END WHERE task = ? AND number = ?",
        (spent.input_tokens, spent.output_tokens, spent.usd, spent.usd, task_id, spent.number),
    )


def lose(db: sqlite3.Connection, task_id: str, why: str, *, now_ms: int) -> None:
    """Those that are under way will never end, and files of others are gone: their machine is."""
    db.execute(
        "UPDATE steps SET output = ?, is_error = 1, ended_ms = ? WHERE task = ? AND ended_ms IS NULL",
        (why, now_ms, task_id),
    )
    db.execute("UPDATE steps SET output_file = NULL WHERE task = ? AND output_file IS NOT NULL", (task_id,))


def to_fetch(db: sqlite3.Connection, task_id: str) -> list[tuple[int, str]]:
    """The steps whose whole output is still in their machine, and where."""
    rows = db.execute(
        "SELECT number, output_file FROM steps WHERE task = ? AND output_file IS NOT NULL ORDER BY number LIMIT 100",
        (task_id,),
    )
    return [(row[0], row[1]) for row in rows]


def fetched(db: sqlite3.Connection, task_id: str, number: int, artifact: str | None) -> None:
    """The whole output is an artifact now; None: it is lost."""
    db.execute(
        "UPDATE steps SET output_file = NULL, output_artifact = ? WHERE task = ? AND number = ?",
        (artifact, task_id, number),
    )


def after(db: sqlite3.Connection, task_id: str, number: int, limit: int) -> list[dict[str, Any]]:
    """The steps behind number `number`, in their order, as replies have them."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM steps WHERE task = ? AND number > ? ORDER BY number LIMIT ?",  # noqa: S608 — constants
        (task_id, number, limit),
    )
    names = [name.strip() for name in COLUMNS.split(",")]
    return [_view(dict(zip(names, row, strict=True))) for row in rows]


def _view(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"arguments": orjson.loads(row["arguments"]), "is_error": bool(row["is_error"])}

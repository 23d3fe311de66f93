"""What tasks ask people, and what people tell them. An answer is written down before it is delivered."""

from dataclasses import dataclass
from typing import Any

import orjson

from contract.tasks import Waiting
from poold.ledger.driver import sqlite3

MAX_OPEN = 64  # of one task; more is no question but noise
ALWAYS = ("sp-", "hp-")  # how ids begin of what the host itself must know: what is spent, and whether to push
COLUMNS = "id, kind, text, tool, arguments, since_ms, answer, answer_text, answered_ms, is_done"


@dataclass(frozen=True)
class Question:
    """One, with its answer if there is one. `is_done`: the answer had its effect."""

    id: str
    kind: str
    text: str
    tool: str | None
    arguments: Any
    since_ms: int
    answer: str | None = None
    answer_text: str | None = None
    answered_ms: int | None = None
    is_done: bool = False

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.id, self.kind, self.text, self.tool, self.arguments, self.since_ms)


def ask(db: sqlite3.Connection, task_id: str, waiting: Waiting) -> bool:
    """Write a question down, and return whether it is one: not if it was asked before, or too many are open.

    What the host must know before it goes on is asked however much noise a guest has made.
    """
    if not waiting.id.startswith(ALWAYS) and len(open_ones(db, task_id)) >= MAX_OPEN:
        return False
    return (
        db.execute(
            "INSERT OR IGNORE INTO questions (task, id, kind, text, tool, arguments, since_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                task_id,
                waiting.id,
                waiting.kind,
                waiting.text,
                waiting.tool,
                orjson.dumps(waiting.arguments).decode(),
                waiting.since_ms,
            ),
        ).rowcount
        > 0
    )


def answer(db: sqlite3.Connection, task_id: str, question_id: str, kind: str, text: str, *, now_ms: int) -> None:
    """Write the answer to an open question down."""
    db.execute(
        "UPDATE questions SET answer = ?, answer_text = ?, answered_ms = ?"
        " WHERE task = ? AND id = ? AND answered_ms IS NULL",
        (kind, text, now_ms, task_id, question_id),
    )


def instruct(db: sqlite3.Connection, task_id: str, text: str, *, now_ms: int) -> str:
    """Write down what somebody said unasked, to be delivered as an answer is. Returns its id."""
    count = db.execute("SELECT count(*) FROM questions WHERE task = ? AND kind = 'instruct'", (task_id,)).fetchone()[0]
    name = f"in-{count + 1}"
    db.execute(
        "INSERT INTO questions (task, id, kind, text, arguments, since_ms, answer, answer_text, answered_ms)"
        " VALUES (?, ?, 'instruct', '', 'null', ?, 'instruct', ?, ?)",
        (task_id, name, now_ms, text, now_ms),
    )
    return name


def done(db: sqlite3.Connection, task_id: str, question_id: str) -> None:
    """The answer had its effect."""
    db.execute("UPDATE questions SET is_done = 1 WHERE task = ? AND id = ?", (task_id, question_id))


def withdraw(db: sqlite3.Connection, task_id: str, question_id: str, *, now_ms: int) -> bool:
    """Nobody waits for the answer any more. Returns whether somebody did."""
    return (
        db.execute(
            "UPDATE questions SET answer = 'withdrawn', answered_ms = ?, is_done = 1"
            " WHERE task = ? AND id = ? AND answered_ms IS NULL",
            (now_ms, task_id, question_id),
        ).rowcount
        > 0
    )


def get(db: sqlite3.Connection, task_id: str, question_id: str) -> Question | None:
    found = _found(db, "task = ? AND id = ?", task_id, question_id)
    return found[0] if found else None


def open_ones(db: sqlite3.Connection, task_id: str) -> list[Waiting]:
    """Those without an answer, oldest first."""
    return [each.waiting for each in _found(db, "task = ? AND is_done = 0 AND answered_ms IS NULL", task_id)]


def undelivered(db: sqlite3.Connection, task_id: str) -> list[Question]:
    """Those whose answer has had no effect yet, in the order of their answers."""
    found = _found(db, "task = ? AND is_done = 0 AND answered_ms IS NOT NULL", task_id)
    return sorted(found, key=lambda each: (each.answered_ms, each.since_ms, each.id))


def count(db: sqlite3.Connection, task_id: str, prefix: str) -> int:
    """How many questions have an id that begins so: the next one's number is one more."""
    return int(
        db.execute("SELECT count(*) FROM questions WHERE task = ? AND id GLOB ?", (task_id, f"{prefix}-*")).fetchone()[
            0
        ]
    )


def last_asked(db: sqlite3.Connection, task_id: str) -> int:
    """The highest number of a question that a guest has asked."""
    rows = db.execute("SELECT id FROM questions WHERE task = ? AND id GLOB 'ap-*'", (task_id,))
    return max((int(row[0].removeprefix("ap-")) for row in rows), default=0)


def has_answers(db: sqlite3.Connection, task_id: str) -> bool:
    """Whether a person has said anything to the task."""
    asked = "SELECT 1 FROM questions WHERE task = ? AND answered_ms IS NOT NULL AND answer <> 'withdrawn' LIMIT 1"
    return db.execute(asked, (task_id,)).fetchone() is not None


def like(db: sqlite3.Connection, task_id: str, kind: str, arguments: Any) -> bool:
    """Whether this was asked before, by whatever id."""
    asked = orjson.dumps(arguments).decode()
    return bool(_found(db, "task = ? AND kind = ? AND arguments = ?", task_id, kind, asked))


def _found(db: sqlite3.Connection, where: str, *values: object) -> list[Question]:
    rows = db.execute(
        f"SELECT {COLUMNS} FROM questions WHERE {where} ORDER BY since_ms, id",  # noqa: S608 — constants
        values,
    )
    return [_question(tuple(row)) for row in rows]


def _question(row: tuple[Any, ...]) -> Question:
    name, kind, text, tool, arguments, since_ms, answer, answer_text, answered_ms, is_done = row
    asked = orjson.loads(arguments)
    return Question(name, kind, text, tool, asked, since_ms, answer, answer_text, answered_ms, bool(is_done))

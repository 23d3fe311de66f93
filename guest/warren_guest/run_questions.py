"""Questions to a person: numbered, open until they are answered or withdrawn, and never answered twice.

An answer may be delivered again by a host that does not know whether the first one arrived; the same one is welcome.
"""

from collections.abc import Callable
from dataclasses import dataclass

from warren_guest.agents.adapter import Answer
from warren_guest.errors import RefusedError
from warren_guest.fields import bad_field

_ANSWERED_KEPT = 1000
# What may be said to each kind of question; to all others yes or no.
_ALLOWED = {"question": ("answer", "reject")}
_YES_OR_NO = ("approve", "reject")
# Each may hold a call with megabytes of arguments.
OPEN_LIMIT = 16


@dataclass(frozen=True, slots=True)
class _Open:
    kind: str
    key: object
    deliver: Callable[[Answer | None], None]


class Questions:
    """Lives on the loop. `tell` emits an event."""

    def __init__(self, tell: Callable[[str, dict[str, object]], None]) -> None:
        self._tell = tell
        self._open: dict[str, _Open] = {}
        self._answered: dict[str, tuple[str, int]] = {}
        self._number = 0

    def go_on(self, number: int) -> None:
        """So many were asked in another machine."""
        self._number = max(self._number, number)

    @property
    def waiting(self) -> list[str]:
        return list(self._open)

    def ask(
        self, event: str, fields: dict[str, object], *, kind: str, key: object, deliver: Callable[[Answer | None], None]
    ) -> str:
        """Ask with `event`, and return the id. `deliver` is called once: with the answer, or None if it is withdrawn.

        Raises `too_many_questions`.
        """
        if len(self._open) >= OPEN_LIMIT:
            raise RefusedError("too_many_questions", f"{OPEN_LIMIT} questions are open")
        self._number += 1
        name = f"ap-{self._number}"
        self._open[name] = _Open(kind, key, deliver)
        self._tell(event, {"id": name, **fields})
        return name

    def answer(self, name: str, answer: Answer) -> None:
        """Raises `not_found` if nobody waits, `already_answered` if another answer came first, `bad_field`."""
        if name in self._answered:
            self._check_same(name, answer)
            return
        asked = self._open.get(name)
        if asked is None:
            raise RefusedError("not_found", f"nothing waits for an answer to {name[:80]}", field="id")
        allowed = _ALLOWED.get(asked.kind, _YES_OR_NO)
        if answer.kind not in allowed:
            raise bad_field("kind", f"{name} takes {' or '.join(allowed)}, not {answer.kind}")
        del self._open[name]
        self.remember(name, answer)
        self._tell("approval.answered", {"id": name, "kind": answer.kind})
        asked.deliver(answer)

    def remember(self, name: str, answer: Answer) -> None:
        self._answered[name] = answer.kind, hash(answer.text)
        while len(self._answered) > _ANSWERED_KEPT:
            del self._answered[next(iter(self._answered))]

    def is_repeated(self, name: str, answer: Answer) -> bool:
        """Whether this was said before under this id. Raises `already_answered` if something else was."""
        if name not in self._answered:
            return False
        self._check_same(name, answer)
        return True

    def withdraw(self, key: object) -> None:
        """Nobody waits any more for what was asked with `key`."""
        for name in [name for name, asked in self._open.items() if asked.key == key]:
            asked = self._open.pop(name)
            self._tell("approval.answered", {"id": name, "kind": "withdrawn"})
            asked.deliver(None)

    def withdraw_all(self) -> None:
        for asked in list(self._open.values()):
            self.withdraw(asked.key)

    def _check_same(self, name: str, answer: Answer) -> None:
        said, text = self._answered[name]
        if (said, text) != (answer.kind, hash(answer.text)):
            raise RefusedError("already_answered", f"{name[:80]} was answered before, with {said}", field="id")

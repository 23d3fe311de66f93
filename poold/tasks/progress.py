"""What an agent's events come to: steps, what was used, what was asked. No I/O.

A guest is hostile: whatever it tells is bounded here, only kinds that are known are believed, and a number that is none
counts as nothing. `Progress` is how far a task's events are read; it is in the task's row, and goes on from there.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import orjson

from contract.tasks import QUESTION_ID, Usage, Waiting
from poold.ledger.steps import Begun, Ended, Spent
from poold.link import GuestEvent
from poold.tasks.words import cut, has_form, number, shown_json, text_of, usd_of

KEPT_BYTES = 64 << 10  # of an event's data
MAX_THOUGHT_CHARS = 16 << 10
MAX_OUTPUT_CHARS = 64 << 10
MAX_ARGUMENTS_BYTES = 32 << 10
MAX_CALLS = 64  # that are open at a time; what was called before that never ends
MAX_DIFFS = 256  # changes of the workspace that are remembered
ROW_BYTES = 128  # of an event in the ledger, besides its data
MAX_QUESTION_CHARS = 16 << 10
# What a guest may tell. Everything else that it might think of is the host's to tell.
TOLD = frozenset(
    {
        *("agent.started", "agent.session", "agent.thought", "agent.message", "agent.tool", "agent.log", "agent.usage"),
        *("file.diff", "approval.requested", "approval.answered", "agent.ended", "git.push_requested"),
    }
)
ASKED_KINDS = ("question", "tool", "command")
# Ids of questions that the host asks (a push at the end, spending, a host) and of what people say unasked. A guest that
# could ask under one of them would have a person approve something else than what they read.
HOSTS_OWN = ("hp-", "sp-", "ho-", "in-")
COMMIT = re.compile(r"\bgit\b[^|;&]*\bcommit\b")
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

Price = Callable[[str | None, Mapping[str, int]], float | None]


@dataclass(frozen=True)
class Failure:
    """The command that failed last, and how often in a row."""

    command: str = ""
    times: int = 0


@dataclass(frozen=True)
class Progress:
    seq: int = 0  # of the guest's last event that was read
    steps: int = 0
    calls: dict[str, int] = field(default_factory=dict)  # calls of tools that are under way, and which steps they are
    thought: str = ""  # of the next step
    is_said: bool = False  # the thought has a message in it: it is a step of its own if no tool is called
    session: str | None = None
    has_session: bool = False  # the run that is under way has said its own
    model: str | None = None
    used: dict[str, int] = field(default_factory=dict)  # tokens by kind
    usd: float | None = None
    is_estimate: bool = False
    output_bytes: int = 0
    told_bytes: int = 0  # of all events, as the host counts them: a guest may not tell what it has printed
    diffs: dict[str, int] = field(default_factory=dict)  # by hash: how often the workspace was so
    last_diff: str = ""
    failure: Failure = field(default_factory=Failure)
    approved_spends: int = 0  # questions about spending that were asked so far
    commits: int = 0  # that it was seen to make
    has_begun: bool = False
    ended: dict[str, Any] | None = None  # what the agent came to

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "Progress":
        """What `encode` wrote; of an empty row the beginning."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        failure = values.pop("failure", None)
        values.setdefault("has_session", values.get("session") is not None)  # of a poold that did not know yet
        return cls(**values, failure=Failure(**failure) if failure else Failure())

    def encode(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def usage(self) -> Usage:
        """Without its time, which is not the agent's to tell."""
        tokens = {name: self.used.get(name, 0) for name in TOKENS}
        return Usage(
            steps=self.steps,
            **tokens,
            usd=self.usd,
            usd_is_estimate=self.is_estimate,
            output_bytes=self.output_bytes,
        )


@dataclass(frozen=True)
class Told:
    """An event for the task's stream."""

    kind: str
    data: dict[str, Any]
    guest_seq: int


@dataclass
class Changes:
    """What a batch of events comes to, for one transaction."""

    told: list[Told] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    asked: list[Waiting] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)  # questions that the agent no longer asks


def read(before: Progress, batch: Iterable[GuestEvent], *, at_ms: int, price: Price) -> tuple[Progress, Changes]:
    """What is known after `batch`, and what is to be written down. Events that were read before change nothing."""
    reader = Reader(before, at_ms, price)
    for event in batch:
        reader.take(event)
    return reader.now, reader.changes


class Reader:
    """Reads one event after the other; `now` is how far it is."""

    def __init__(self, before: Progress, at_ms: int, price: Price) -> None:
        self.now = before
        self.changes = Changes()
        self._at_ms = at_ms
        self._price = price
        self._known: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "agent.started": self._started,
            "agent.session": self._session,
            "agent.thought": lambda data: self._say(data, is_said=False),
            "agent.message": lambda data: self._say(data, is_said=True),
            "agent.tool": self._tool,
            "agent.usage": self._usage,
            "file.diff": self._diff,
            "approval.requested": self._asks,
            "approval.answered": self._answered,
            "git.push_requested": self._pushes,
            "agent.ended": self._ends,
        }

    def take(self, event: GuestEvent) -> None:
        if event.number is not None and event.number > self.now.seq:
            self.now = replace(self.now, seq=event.number)
            self._take(event.kind, event.data)

    def _take(self, kind: str, data: Mapping[str, Any]) -> None:
        told_bytes = self.now.told_bytes + ROW_BYTES + len(orjson.dumps(data))
        self.now = replace(self.now, told_bytes=told_bytes)
        if kind not in TOLD:
            self._tell("agent.log", {"stream": "guest", "text": f"it told of {cut(kind, 64)}"})
            return
        if kind not in ("approval.requested", "approval.answered"):  # those are told as what they come to
            self._tell(kind, bounded(data))
        known = self._known.get(kind)
        if known is not None:
            known(data)

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self.changes.told.append(Told(kind, data, self.now.seq))

    def _started(self, data: Mapping[str, Any]) -> None:
        model = text_of(data.get("model"), 128)
        begun = replace(self.now, has_begun=True, model=model or self.now.model, ended=None)
        self.now = replace(begun, has_session=False)

    def _session(self, data: Mapping[str, Any]) -> None:
        model = text_of(data.get("model"), 128) or self.now.model
        session = text_of(data.get("session"), 200)
        self.now = replace(self.now, session=session or self.now.session, has_session=bool(session), model=model)

    def _say(self, data: Mapping[str, Any], *, is_said: bool) -> None:
        text = text_of(data.get("text"), MAX_THOUGHT_CHARS) or ""
        if is_said and self.now.is_said:  # two messages with nothing between them: the first was a step
            self._silent_step()
        thought = cut(f"{self.now.thought}\n{text}" if self.now.thought else text, MAX_THOUGHT_CHARS)
        self.now = replace(self.now, thought=thought, is_said=self.now.is_said or is_said)

    def _silent_step(self) -> None:
        """What was said is a step without a tool."""
        begun = self._begin(None, None)
        self.changes.ended.append(Ended(begun.number, None, 0, None, False, self._at_ms))

    def _begin(self, tool: str | None, arguments: Any) -> Begun:
        step = Begun(self.now.steps + 1, self.now.thought or None, tool, arguments, self._at_ms)
        self.changes.begun.append(step)
        self.now = replace(self.now, steps=step.number, thought="", is_said=False)
        return step

    def _tool(self, data: Mapping[str, Any]) -> None:
        call, tool = text_of(data.get("call"), 200) or "", text_of(data.get("tool"), 200) or "unknown"
        if data.get("phase") != "end":
            step = self._begin(tool, shown_json(data.get("arguments"), MAX_ARGUMENTS_BYTES))
            calls = dict(list(self.now.calls.items())[-(MAX_CALLS - 1) :]) | {call: step.number}
            self.now = replace(self.now, calls=calls)
            return
        calls = dict(self.now.calls)
        # One that ends without a beginning (a guest may tell anything) is a step, too.
        number_of = calls.pop(call, None) or self._begin(tool, shown_json(data.get("arguments"), 0)).number
        self.now = replace(self.now, calls=calls)
        self._end(number_of, data)

    def _end(self, step: int, data: Mapping[str, Any]) -> None:
        is_error = data.get("is_error") is True
        file = text_of(data.get("file"), 512)
        ended = Ended(
            step,
            text_of(data.get("output"), MAX_OUTPUT_CHARS),
            number(data.get("output_bytes")),
            file if file is not None and file.startswith("/") else None,  # of the guest's own files, for it to serve
            is_error,
            self._at_ms,
        )
        self.changes.ended.append(ended)
        command = text_of(data.get("command"), 4096)
        if data.get("kind") == "command" and command is not None:
            self._command(command, is_error=is_error)
            if not is_error and COMMIT.search(command):
                self.now = replace(self.now, commits=self.now.commits + 1)

    def _command(self, command: str, *, is_error: bool) -> None:
        before = self.now.failure
        if not is_error:
            failure = Failure()
        elif before.command == command:
            failure = Failure(command, before.times + 1)
        else:
            failure = Failure(command, 1)
        self.now = replace(self.now, failure=failure)

    def _usage(self, data: Mapping[str, Any]) -> None:
        """Totals of the task so far. What is less than before is not believed: nothing is unspent."""
        used = {name: max(self.now.used.get(name, 0), number(data.get(name))) for name in TOKENS}
        told = usd_of(data.get("usd"))
        usd, is_estimate = (told, False) if told is not None else (self._price(self.now.model, used), True)
        if usd is None or (is_estimate and self.now.usd is not None and not self.now.is_estimate):
            usd, is_estimate = self.now.usd, self.now.is_estimate
        elif self.now.usd is not None:
            usd = max(usd, self.now.usd)
        self._spend(used, usd)
        printed = max(self.now.output_bytes, number(data.get("output_bytes")))
        self.now = replace(
            self.now, used=used, usd=usd, is_estimate=usd is not None and is_estimate, output_bytes=printed
        )

    def _spend(self, used: Mapping[str, int], usd: float | None) -> None:
        """What is new of it was spent by the step that is the newest."""
        new = {name: count - self.now.used.get(name, 0) for name, count in used.items()}
        dollars = None if usd is None else round(usd - (self.now.usd or 0.0), 6)
        if self.now.steps and (any(new.values()) or dollars):
            read_in = new["input_tokens"] + new["cache_read_tokens"] + new["cache_write_tokens"]
            self.changes.spent.append(Spent(self.now.steps, read_in, new["output_tokens"], dollars))

    def _diff(self, data: Mapping[str, Any]) -> None:
        name = text_of(data.get("hash"), 128)
        if not name:
            return
        times = self.now.diffs.get(name, 0) + 1
        others = [(each, count) for each, count in self.now.diffs.items() if each != name]
        self.now = replace(self.now, diffs=dict([*others[-(MAX_DIFFS - 1) :], (name, times)]), last_diff=name)

    def _asks(self, data: Mapping[str, Any]) -> None:
        kind = data.get("kind")
        if _is_guests(data.get("id")):
            self._ask(str(data["id"]), kind if kind in ASKED_KINDS else "question", data)

    def _pushes(self, data: Mapping[str, Any]) -> None:
        """The agent's own push: the wrapper around git waits for an answer, as for every other question."""
        if _is_guests(data.get("id")):
            branch, commit = text_of(data.get("branch"), 200), text_of(data.get("commit"), 64)
            arguments = {"branch": branch, "commit": commit}
            told = {"text": f"may it push {branch or 'its branch'}?", "tool": "git push", "arguments": arguments}
            self._ask(str(data["id"]), "push", told)

    def _ask(self, name: str, kind: str, data: Mapping[str, Any]) -> None:
        text = text_of(data.get("text"), MAX_QUESTION_CHARS) or ""
        arguments = shown_json(data.get("arguments"), MAX_ARGUMENTS_BYTES)
        waiting = Waiting(name, kind, text, text_of(data.get("tool"), 200), arguments, self._at_ms)
        self.changes.asked.append(waiting)

    def _answered(self, data: Mapping[str, Any]) -> None:
        """Those that were answered are known: this is news only of one that is no longer asked."""
        if _is_guests(data.get("id")):
            self.changes.withdrawn.append(str(data["id"]))

    def _ends(self, data: Mapping[str, Any]) -> None:
        if self.now.is_said:
            self._silent_step()
        outcome = data.get("outcome")
        ended = {
            "outcome": outcome if outcome in ("success", "failure", "stopped") else "failure",
            "result": text_of(data.get("result"), MAX_THOUGHT_CHARS),
            "error": text_of(data.get("error"), MAX_THOUGHT_CHARS),
            "exit_code": number(data.get("exit_code"), None),
            "signal": text_of(data.get("signal"), 32),
            "output_tail": text_of(data.get("output_tail"), MAX_THOUGHT_CHARS),
            "run": number(data.get("run")),
        }
        printed = max(self.now.output_bytes, number(data.get("output_bytes")))
        self.now = replace(self.now, ended=ended, calls={}, thought="", output_bytes=printed)


def _is_guests(name: object) -> bool:
    """Whether a guest may have asked something under this id."""
    return has_form(name, QUESTION_ID) and not str(name).startswith(HOSTS_OWN)


def bounded(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data`, or what is most useful of it: what is short."""
    if len(orjson.dumps(data)) <= KEPT_BYTES:
        return dict(data)
    kept = {cut(name, 64): value for name, value in list(data.items())[:32] if len(orjson.dumps(value)) <= 1024}
    return kept | {"truncated": True}


def fingerprint(text: str) -> str:
    """Something short that stands for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Tasks for threads, and the browser of a sandbox: thin methods over `task_calls` and a `Line`."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Unpack

from warren import task_calls
from warren.calls import Call
from warren.flows import TASK_EVENTS, Following, Progress
from warren.lines import Line
from warren.listings import Listing
from warren.models import Transfer
from warren.task_calls import TaskOptions
from warren.task_models import Artifact, Diff, Question, Step, TaskEvent, TaskInfo, View

FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0  # between two looks of `wait`


class Tasks:
    """What agents do for you."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def create(
        self, prompt: str, *, agent: str, idempotency_key: str | None = None, **options: Unpack[TaskOptions]
    ) -> "Task":
        """A new task. Sent again if need be, it is still one task."""
        return Task(self._line, self._line.send(task_calls.create(prompt, agent, options, idempotency_key)))

    def get(self, task: str) -> "Task":
        return Task(self._line, self._line.send(task_calls.get(task)))

    def list(
        self, state: str | Sequence[str] | None = None, agent: str | None = None, owner: str | None = None
    ) -> "Listing[TaskInfo, Task]":
        """Your tasks, newest first, page after page. With an admin key, `owner` asks for somebody else's."""
        return Listing(
            lambda before: self._line.send(task_calls.listed(state, agent, owner, before)),
            lambda info: Task(self._line, info),
        )


class Task:
    """A task. `info` is what was told of it last."""

    def __init__(self, line: Line, info: TaskInfo) -> None:
        self._line = line
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        return self.info.state

    @property
    def waiting(self) -> tuple[Question, ...]:
        """What it waits for a person to say, when it was looked at last."""
        return self.info.waiting

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.state}>"

    def refresh(self) -> TaskInfo:
        return self._know(task_calls.get(self.id))

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> TaskInfo:
        """Until it has ended; `TimeoutError` if that takes longer, and with `check` `TaskFailed` if it failed."""
        looks = Looks(timeout_s)
        while not self.refresh().is_over:
            time.sleep(looks.wait_s(self.info))
        return self.info.check() if check else self.info

    def events(self, after: int = 0, *, follow: bool = True) -> Iterator[TaskEvent]:
        """What happened behind number `after`, and then what happens, until the task has ended.

        A connection that breaks is made again; no event is told twice, and none is left out.
        """
        following = Following(TASK_EVENTS, self.id, after, self._line.retries)
        return self._line.follow(following, (lambda: self.refresh().is_over) if follow else None)

    def stop(self) -> TaskInfo:
        """End it. What it has done so far is kept as of one that completed."""
        return self._know(task_calls.act(self.id, "stop"))

    def pause(self) -> TaskInfo:
        """Put its machine to sleep on disk."""
        return self._know(task_calls.act(self.id, "pause"))

    def resume(self) -> TaskInfo:
        return self._know(task_calls.act(self.id, "resume"))

    def approve(self, question: str, text: str = "") -> TaskInfo:
        """Yes. `question` is the id of one of `waiting`."""
        return self._say("approve", question, text)

    def reject(self, question: str, text: str = "") -> TaskInfo:
        """No, and why, or what to do instead."""
        return self._say("reject", question, text)

    def answer(self, question: str, text: str) -> TaskInfo:
        return self._say("answer", question, text)

    def instruct(self, text: str) -> TaskInfo:
        """Tell the agent something that it did not ask for."""
        return self._say("instruct", None, text)

    def steps(self, after: int = 0) -> Iterator[Step]:
        """What it did behind step `after`, so far."""
        while page := self._line.send(task_calls.steps(self.id, after)):
            yield from page
            after = max(after + 1, page[-1].number)

    def diff(self) -> Diff:
        """What it has changed by now, or in the end."""
        return self._line.send(task_calls.diff(self.id))

    def artifacts(self) -> list[Artifact]:
        return self._line.send(task_calls.artifacts(self.id))

    def download(
        self, artifact: str | Artifact, target: str | Path | IO[bytes], *, progress: Progress | None = None
    ) -> Transfer:
        """Carry an artifact here. Given as an `Artifact`, it is also checked to be what it was said to be."""
        name, sha256 = (artifact, None) if isinstance(artifact, str) else (artifact.name, artifact.sha256)
        return self._line.download(task_calls.artifact(self.id, name), target, progress, sha256)

    def archive(self, target: str | Path | IO[bytes], *, progress: Progress | None = None) -> Transfer:
        """Carry the whole workspace here, a tar in zstd, as it was at the end: checked if its hash was told."""
        return self._line.download(task_calls.archive(self.id), target, progress, archive_hash(self.info))

    def retry(self, *, idempotency_key: str | None = None, **changes: Any) -> "Task":
        """A new task that is asked for the same, but for `changes`: fields as of `create`."""
        return Task(self._line, self._line.send(task_calls.retry(self.id, changes, idempotency_key)))

    def _say(self, kind: str, question: str | None, text: str) -> TaskInfo:
        return self._know(task_calls.say(self.id, kind, question, text))

    def _know(self, call: Call[TaskInfo]) -> TaskInfo:
        self.info = self._line.send(call)
        return self.info


class Looks:
    """When to look at a task again: often at first, later less often, and not for longer than was asked for."""

    def __init__(self, timeout_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._until = None if timeout_s is None else clock() + timeout_s
        self._next_s = FIRST_LOOK_S

    def wait_s(self, info: TaskInfo) -> float:
        wait_s, self._next_s = self._next_s, min(LONGEST_LOOK_S, self._next_s * 1.5)
        if self._until is None:
            return wait_s
        left_s = self._until - self._clock()
        if left_s <= 0:
            raise TimeoutError(f"{info.id} is {info.state} after {self._timeout_s:g} s")
        return min(wait_s, left_s)


def archive_hash(info: TaskInfo) -> str | None:
    """What the host says that the archive is."""
    archive = (info.result or {}).get("archive")
    sha256 = archive.get("sha256") if isinstance(archive, dict) else None
    return sha256 if isinstance(sha256, str) else None


class Browser:
    """The browser in a sandbox: one page. What it shows comes from anybody: treat it so."""

    def __init__(self, line: Line, sandbox: str) -> None:
        self._line, self._sandbox = line, sandbox

    def open(
        self, url: str, *, width: int | None = None, height: int | None = None, full_page: bool | None = None
    ) -> View:
        return self._do("open", url=url, width=width, height=height, full_page=full_page)

    def click(self, selector: str) -> View:
        return self._do("click", selector=selector)

    def type(self, selector: str, text: str, *, submit: bool = False) -> View:
        return self._do("type", selector=selector, text=text, submit=submit)

    def evaluate(self, script: str) -> View:
        """Run it in the page; `value` is what it gives."""
        return self._do("evaluate", script=script)

    def close(self) -> None:
        self._line.send(task_calls.close_browser(self._sandbox))

    def _do(self, what: str, **fields: Any) -> View:
        return self._line.send(task_calls.browse(self._sandbox, what, fields))

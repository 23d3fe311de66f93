"""A task as it happens: for a person at a terminal, for a pipe, and for a program (`--json`).

At a terminal one loop waits for events, for what is typed and for control-C. A thread reads the events, and wakes it.
"""

import contextlib
import os
import queue
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.program import PROGRAM, say
from warren.cli.progress import WHEEL
from warren.errors import CallerError, WarrenError
from warren.task_models import COMPLETED, STOPPED, Question, TaskEvent, TaskInfo
from warren.tasks import Task
from warren_console.bottom import KEYBOARD, Bottom, has_person, open_pipe
from warren_console.output import Output
from warren_console.rows import NARROW, Row, laid_out
from warren_console.summary import ending, head, live_line
from warren_console.text import clean, cut
from warren_console.timeline import Timeline

TICK_S = 0.2
TYPED = 8  # columns for an answer, at least
INDENT = " " * 12  # of the text of a row with a clock and a mark
WAITING_EVENTS = 1000  # read, and not shown yet
EXIT_CODES = {COMPLETED: errors.DONE, STOPPED: errors.TASK_STOPPED}
ANSWER = "{id}: your answer: "
PERMISSION = "{id}: [y]es, [n]o, or what to do instead: "
LEAVE = "[s]top the task, [l]eave it running, or enter to go on: "


def follow(context: Context, task: Task, after: int = 0) -> int:
    """Show it until it has ended. Its exit code says how."""
    out = context.out
    try:
        if out.as_json:
            return _told(out, task, after)
        _show(out, [head(asdict(task.info))])
        if not out.is_terminal:
            return _piped(out, task, after)
        return _Watching(out, task, after, is_asking=has_person(out)).run()
    except KeyboardInterrupt:
        say(f"{task.id} goes on; come back with: {PROGRAM} tasks follow {task.id}")
        raise


def exit_code(info: TaskInfo) -> int:
    return EXIT_CODES.get(info.state, errors.FAILED)


def _told(out: Output, task: Task, after: int) -> int:
    """One event a line, and the task at the end."""
    for event in task.events(after):
        out.json_line(asdict(event))
    info = task.refresh()
    out.json_line({"task": asdict(info)})
    return exit_code(info)


def _piped(out: Output, task: Task, after: int) -> int:
    timeline = Timeline()
    for event in task.events(after):
        rows = _rows(timeline, event)
        if event.kind == "approval.requested" and rows:
            rows.append(Row(None, " ", how_to_answer(task, timeline), "yellow"))
        _show(out, rows)
    return _end(out, task)


def _end(out: Output, task: Task) -> int:
    info = task.refresh()
    out.line()
    _show(out, ending(asdict(info), PROGRAM))
    return exit_code(info)


def how_to_answer(task: Task, timeline: Timeline) -> str:
    name, question = next(reversed(timeline.open.items()))
    if question.get("kind") == "question":
        return f"{PROGRAM} tasks answer {task.id} {name} TEXT"
    return f"{PROGRAM} tasks approve {task.id} {name}, or: {PROGRAM} tasks reject {task.id} {name}"


def _rows(timeline: Timeline, event: TaskEvent) -> list[Row]:
    """What is shown of an event. The last one is told with all that came of the task."""
    rows = timeline.feed(event.kind, event.data, at_ms=event.at_ms, by=event.by)
    return [] if event.is_final else rows


def _show(out: Output, rows: list[Row]) -> None:
    for line in _lines(out, rows):
        out.raw(line + "\n")


def _lines(out: Output, rows: list[Row]) -> list[str]:
    return [line for row in rows for line in laid_out(row, out.columns, out.painted)]


class _Reading:
    """The events of a task, read by a thread that wakes us. The last thing is the end, or what went wrong."""

    def __init__(self, task: Task, after: int, wake: int) -> None:
        self._task, self._after, self._wake = task, after, wake
        self._read: queue.Queue[TaskEvent | WarrenError | None] = queue.Queue(WAITING_EVENTS)
        self.is_over = False
        threading.Thread(target=self._run, daemon=True).start()

    def ready(self) -> Iterator[TaskEvent]:
        """What has come since the last time."""
        while not self.is_over:
            try:
                one = self._read.get_nowait()
            except queue.Empty:
                return
            if isinstance(one, TaskEvent):
                yield one
                continue
            self.is_over = True
            if one is not None:
                raise one

    def _run(self) -> None:
        end: WarrenError | None = None
        try:
            for event in self._task.events(self._after):
                self._put(event)
        except WarrenError as error:
            end = error
        self._put(end)

    def _put(self, one: TaskEvent | WarrenError | None) -> None:
        self._read.put(one)
        with contextlib.suppress(OSError):  # full, so that we are awake; or we have left
            os.write(self._wake, b"e")


class _Watching:
    """A person looks at a task, answers what it asks, and may stop it or leave it."""

    def __init__(self, out: Output, task: Task, after: int, *, is_asking: bool) -> None:
        self._out, self._task, self._after, self._is_asking = out, task, after, is_asking
        self._timeline = Timeline()
        self._bottom = Bottom(out)
        self._question: Question | None = None  # that we ask now
        self._is_leaving = False  # we ask whether to stop
        self._done: set[str] = set()  # questions that we do not ask again
        self._interrupts = 0
        self._turn = 0

    def run(self) -> int:
        with open_pipe() as (wait, wake), self._bottom, self._signals(wake):
            # A handle of its own: both of us look at the task.
            reading = _Reading(Task(self._task._line, self._task.info), self._after, wake)
            while not reading.is_over:
                self._wait(wait)
                for event in reading.ready():
                    self._bottom.above(_lines(self._out, _rows(self._timeline, event)))
                self._interrupted()
                self._ask()
                self._draw()
            self._bottom.withdraw()
        return _end(self._out, self._task)

    def _wait(self, wait: int) -> None:
        """Until something has come, or it is time to draw again."""
        heard = [wait, KEYBOARD] if self._bottom.is_asking else [wait]
        ready, _, _ = select.select(heard, [], [], TICK_S)
        if wait in ready:
            os.read(wait, 4096)
        if KEYBOARD in ready:
            self._typed(self._bottom.typed())

    def _draw(self) -> None:
        self._turn += 1
        wheel = WHEEL[self._turn % len(WHEEL)]
        self._bottom.line(live_line(self._timeline, wheel, self._out.now_ms, self._out.columns - 1))

    def _ask(self) -> None:
        """Ask what is open, one after the other; take back what somebody else has answered."""
        if self._question is not None and self._question.id not in self._timeline.open:
            self._question = None
            if not self._is_leaving:
                self._bottom.withdraw()
        if not self._is_asking or self._bottom.is_asking:
            return
        name = next((name for name in self._timeline.open if name not in self._done), None)
        if name is None:
            return
        # The host knows what is open now; what was told may be long past.
        self._question = next((each for each in self._task.refresh().waiting if each.id == name), None)
        if self._question is None:
            self._done.add(name)
            return
        is_text = self._question.kind == "question"
        self._prompt((ANSWER if is_text else PERMISSION).format(id=name))

    def _prompt(self, words: str) -> None:
        """Below what is told, and under its words if there is room."""
        indent = INDENT if self._out.columns >= NARROW else ""
        # A prompt that wraps could not be taken back.
        shown = cut(clean(words), max(1, self._out.columns - len(indent) - TYPED))
        self._bottom.ask(indent + self._out.painted(shown, "yellow"))

    def _typed(self, line: str | None) -> None:
        if self._is_leaving:
            self._is_leaving = False
            self._leave(line)
        elif self._question is not None:
            self._answer(self._question, line)

    def _answer(self, question: Question, line: str | None) -> None:
        self._question = None
        if line is None:  # the keyboard has ended: nobody will answer here
            self._done.add(question.id)
            self._note(f"answer later: {how_to_answer(self._task, self._timeline)}")
            return
        if not line:
            return  # it is asked again
        try:
            self._send(question, line)
            self._done.add(question.id)
        except CallerError as error:
            self._done.add(question.id)
            self._note(f"{question.id}: {error}")
        except WarrenError as error:
            self._note(f"{question.id} could not be answered: {error}")

    def _send(self, question: Question, line: str) -> None:
        if question.kind == "question":
            self._task.answer(question.id, line)
        elif line.lower() in ("y", "yes"):
            self._task.approve(question.id)
        else:
            self._task.reject(question.id, "" if line.lower() in ("n", "no") else line)

    def _leave(self, line: str | None) -> None:
        word = (line or "").lower()
        if line is None or word in ("l", "leave"):
            raise KeyboardInterrupt
        if word not in ("s", "stop"):
            self._interrupts = 0
            return
        try:
            self._task.stop()
            self._note("it is asked to stop")
        except WarrenError as error:
            self._note(f"it could not be stopped: {error}")
        self._interrupts = 0

    def _note(self, words: str) -> None:
        self._bottom.above(_lines(self._out, [Row(None, "·", words, "dim", "dim")]))

    def _interrupted(self) -> None:
        if not self._interrupts or self._is_leaving:
            return
        if not self._is_asking:
            raise KeyboardInterrupt
        self._bottom.withdraw()
        self._question, self._is_leaving = None, True
        self._prompt(LEAVE)

    @contextlib.contextmanager
    def _signals(self, wake: int) -> Iterator[None]:
        def interrupt(_number: int, _frame: object) -> None:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
            with contextlib.suppress(OSError):
                os.write(wake, b"i")

        kept = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, kept)

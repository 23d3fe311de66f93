"""The mock agent's program: reads a prompt, does what its lines say with real files and commands, and tells of it.

It speaks JSON lines: what to do comes in on standard input (`begin`, `answer`, `instruct`), what it does goes out on
standard output. A line of the prompt that begins with a known word is a directive; everything else is its plan.
It imports nothing of the guest's but its own other half, and runs with the rights of whoever it works for.
"""

import contextlib
import json
import os
import select
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run apart from everything, with no path at all

from warren_guest.agents import mock_effects as effects

ANSWER = Path("ANSWER.md")
LOOP = Path("LOOP.md")
_PIECE = 8192
_REPEAT_LIMIT = 10_000


class Failed(Exception):
    """The agent gives up: the prompt said so."""


class Host:
    """Who we speak with, over standard input and output."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: deque[dict[str, Any]] = deque()
        self._asked = 0

    def tell(self, kind: str, /, **fields: object) -> None:
        sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
        sys.stdout.flush()

    def ask(self, kind: str, /, **fields: object) -> dict[str, Any]:
        """Ask, and wait for the answer. Instructions that come meanwhile wait their turn."""
        self._asked += 1
        key = f"q{self._asked}"
        self.tell(kind, id=key, **fields)
        while True:
            for line in self._lines:
                if line["type"] == "answer" and line.get("id") == key:
                    self._lines.remove(line)
                    return line
            self._read(None)

    def next(self, kind: str) -> dict[str, Any]:
        while not any(line["type"] == kind for line in self._lines):
            self._read(None)
        return self.take(kind)[0]

    def take(self, kind: str) -> list[dict[str, Any]]:
        """All lines of this kind that have come."""
        self._read(0)
        found = [line for line in self._lines if line["type"] == kind]
        self._lines = deque(line for line in self._lines if line["type"] != kind)
        return found

    def _read(self, limit_s: float | None) -> None:
        if not select.select([0], [], [], limit_s)[0]:
            return
        data = os.read(0, 1 << 20)
        if not data:
            if limit_s is None:
                raise EOFError("nobody will answer")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += [json.loads(line) for line in lines if line]


class Todo:
    """What is to be done: the directives of the prompt in their order, and before them what came up meanwhile."""

    def __init__(self, directives: list[str]) -> None:
        self._directives = directives
        self._next = 0
        self._extra: deque[tuple[int, str]] = deque()

    def __bool__(self) -> bool:
        return bool(self._extra) or self._next < len(self._directives)

    def first(self, directives: list[str], times: int = 1) -> None:
        """These come before everything else."""
        self._extra.extendleft((times, each) for each in reversed(directives))

    def take(self) -> str:
        if not self._extra:
            self._next += 1
            return self._directives[self._next - 1]
        times, directive = self._extra.popleft()
        if times > 1:
            self._extra.appendleft((times - 1, directive))
        return directive

    def encode(self) -> dict[str, object]:
        return {"next": self._next, "extra": list(self._extra)}

    def go_on(self, told: dict[str, Any]) -> None:
        """From where `encode` was called."""
        self._next = int(told["next"])
        self._extra = deque((int(times), str(directive)) for times, directive in told["extra"])


class Agent:
    """What it has done is in its memory, a file, before and after each directive: whoever finds that file with the
    workspace of the same moment goes on from there, and does nothing twice.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._calls = 0
        self._todo = Todo([])
        self._totals: dict[str, float] = {"input_tokens": 0, "output_tokens": 0}
        self._memory = Path()
        self._is_done_before: Callable[[], bool] = lambda: False
        self._words: dict[str, Callable[[str], None]] = {
            "edit": self._edit,
            "append": self._append,
            "run": lambda command: self._run("Bash", command),
            "commit": self._commit,
            "think": lambda text: self._host.tell("thought", text=text),
            "say": lambda text: self._host.tell("message", text=text),
            "ask": self._ask,
            "tool": self._tool,
            "tokens": self._tokens,
            "sleep": self._sleep,
            "print": self._print,
            "noise": self._noise,
            "fail": self._fail,
            "crash": self._crash,
            "loop": self._loop,
            "push": lambda rest: self._run("Bash", f"git push {rest or 'origin HEAD'}"),
            "browse": self._browse,
            "once": self._once,
            "repeat": self._repeat,
        }

    def work(self) -> None:
        """All of it: the plan, the directives, what is said meanwhile, and the result."""
        begin = self._host.next("begin")
        prompt = str(begin["prompt"])
        self._todo = Todo(self._directives(prompt))
        doing = self._remember(begin.get("session"), goes_on=begin.get("continues") is True)
        if doing is not None:
            self._again(doing, prompt)
        elif begin.get("session") is None or not (self._todo or begin.get("continues")):
            self._todo.first([effects.PLANNING, "commit Plan of the task"])
        while self._todo or self._instructed():
            directive = self._todo.take()
            self._keep(doing={"directive": directive, **effects.before(directive)})
            self._do(directive, prompt)
            self._keep(doing=None)
            self._instructed()
        self._host.tell("result", is_error=False, text="Done as the prompt said.")

    def _do(self, directive: str, prompt: str) -> None:
        word, _, rest = directive.partition(" ")
        if word == effects.PLANNING:
            self._plan(prompt)
        else:
            self._words[word](rest.strip())

    def _again(self, doing: dict[str, Any], prompt: str) -> None:
        """What was under way when the machine was lost. It may have been done, in part or not at all."""
        directive = str(doing["directive"])
        if "head" in doing:
            self._is_done_before = lambda: effects.head() != doing["head"]
        for name, size in doing.get("sizes", {}).items():
            effects.cut(Path(name), size)
        self._do(directive, prompt)
        self._is_done_before = lambda: False
        self._keep(doing=None)

    def _directives(self, text: str) -> list[str]:
        lines = (line.strip() for line in text.splitlines())
        return [line for line in lines if line.partition(" ")[0] in self._words]

    def _instructed(self) -> bool:
        """Put what was said meanwhile before everything else."""
        for line in reversed(self._host.take("instruct")):
            text = str(line["text"])
            self._todo.first(self._directives(text) or [f"say Heard: {text}"])
        return bool(self._todo)

    def _remember(self, session: str | None, *, goes_on: bool) -> dict[str, Any] | None:
        """Totals go on when a session is resumed, as those of other agents do. Returns what was under way."""
        name = session or f"mock-{uuid.uuid4().hex[:16]}"
        home = Path(os.environ.get("WARREN_MOCK_HOME") or Path.home())
        self._memory = home / ".warren-mock" / f"{Path(name).name}.json"
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self._memory.read_text())
        self._totals = known.get("totals", self._totals)
        self._host.tell("session", session=name)
        if not goes_on or "todo" not in known:
            return None
        self._todo.go_on(known["todo"])
        if any(self._totals.values()):
            self._host.tell("usage", **self._totals)  # the last of it may not have been heard
        doing: dict[str, Any] | None = known["doing"]
        return doing

    def _keep(self, doing: dict[str, Any] | None) -> None:
        """How far it is, there as a whole or not at all."""
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        beside = self._memory.with_suffix(".new")
        beside.write_text(json.dumps({"totals": self._totals, "todo": self._todo.encode(), "doing": doing}))
        beside.replace(self._memory)

    # Directives.

    def _plan(self, prompt: str) -> None:
        old = effects.PLAN.read_text() + "\n" if effects.PLAN.exists() else ""
        self._write(effects.PLAN, old + prompt.rstrip() + "\n")

    def _edit(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        self._write(Path(name), text.replace("\\n", "\n") + "\n")

    def _append(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        arguments = {"file_path": name, "text": text}

        def append() -> tuple[str, int]:
            with Path(name).open("a") as file:
                file.write(text.replace("\\n", "\n") + "\n")
            return f"added to {name}", 0

        self._call("Edit", "edit", arguments, append)

    def _write(self, path: Path, content: str) -> None:
        def write() -> tuple[str, int]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            return f"wrote {path}", 0

        self._call("Write", "edit", {"file_path": str(path), "content": content}, write)

    def _run(self, tool: str, command: str) -> None:
        self._call(tool, "command", {"command": command}, lambda: effects.shell(command), command)

    def _commit(self, text: str) -> None:
        arguments, command = {"message": text}, f"git commit -m {json.dumps(text)}"

        def commit() -> tuple[str, int]:
            return ("it was committed before", 0) if self._is_done_before() else effects.commit(text)

        self._call("Commit", "command", arguments, commit, command)

    def _ask(self, question: str) -> None:
        answer = self._host.ask("question", text=question)
        self._write(ANSWER, f"{answer.get('text', '')}\n" if answer.get("allow") else "There was no answer.\n")

    def _tool(self, rest: str) -> None:
        name, _, given = rest.partition(" ")
        arguments: dict[str, object] = {"arguments": given}
        with contextlib.suppress(ValueError):
            loaded = json.loads(given)
            arguments = loaded if isinstance(loaded, dict) else arguments
        command = given if name == "Bash" else None
        self._call(name, "command" if command else "other", arguments, lambda: (f"{name} was used", 0), command)

    def _tokens(self, rest: str) -> None:
        given = [float(part) for part in rest.split()]
        for name, more in zip(("input_tokens", "output_tokens", "usd"), given, strict=False):
            self._totals[name] = round(self._totals.get(name, 0) + more, 9)
        self._keep(doing=None)
        self._host.tell("usage", **self._totals)

    def _sleep(self, rest: str) -> None:
        def sleep() -> tuple[str, int]:
            time.sleep(float(rest))
            return f"slept {rest} s", 0

        self._call("Sleep", "other", {"seconds": rest}, sleep)

    def _print(self, rest: str) -> None:
        left = int(rest)
        while left > 0:
            piece = min(left, _PIECE)
            sys.stdout.write("x" * (piece - 1) + "\n")
            left -= piece
        sys.stdout.flush()

    def _noise(self, rest: str) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe\x80" * (int(rest) // 3) + b"\xc3" * (int(rest) % 3) + b"\n")
        sys.stdout.buffer.flush()

    def _fail(self, text: str) -> None:
        raise Failed(text or "the prompt said so")

    def _crash(self, _rest: str) -> None:
        sys.stderr.write("the mock agent crashes, as its prompt says\n")
        sys.stderr.flush()
        os._exit(70)

    def _loop(self, rest: str) -> None:
        """`diff N`: two states in turn, N times each. `fail N COMMAND`: a command N times."""
        what, number, command = [*rest.split(" ", 2), "", ""][:3]
        for _ in range(min(int(number), _REPEAT_LIMIT)):
            if what == "diff":
                self._write(LOOP, "one way\n")
                self._write(LOOP, "the other way\n")
            else:
                self._run("Bash", command or "false")

    def _repeat(self, rest: str) -> None:
        number, _, directive = rest.partition(" ")
        if directive.partition(" ")[0] in self._words:
            self._todo.first([directive], min(int(number), _REPEAT_LIMIT))

    def _browse(self, url: str) -> None:
        self._call("WebFetch", "other", {"url": url}, lambda: effects.fetch(url))

    def _once(self, rest: str) -> None:
        """`NAME TEXT`: an effect elsewhere that is had once: a PUT to the folder `ONCE_URL`, if nothing is there."""
        name, _, text = rest.partition(" ")
        url = f"{os.environ.get('ONCE_URL', '').rstrip('/')}/{name}"
        self._call("Once", "other", {"url": url, "text": text}, lambda: effects.put_once(url, text))

    # Tool calls.

    def _call(
        self,
        tool: str,
        kind: str,
        arguments: Mapping[str, object],
        act: Callable[[], tuple[str, int]],
        command: str | None = None,
    ) -> None:
        """One step: told, permitted, done, told."""
        self._calls += 1
        call = f"call-{self._calls}"
        about = {"tool": tool, "kind": kind, "arguments": arguments, "command": command}
        self._host.tell("tool_start", call=call, **about)
        answer = self._host.ask("permission", **about)
        if answer.get("allow"):
            output, code = _attempt(act)
        else:
            output, code = f"refused: {answer.get('text') or 'a person said no'}", 1
        told = {"exit_code": code} if kind == "command" and answer.get("allow") else {}
        self._host.tell("tool_end", call=call, output=output, is_error=code != 0, **told)


def _attempt(act: Callable[[], tuple[str, int]]) -> tuple[str, int]:
    try:
        return act()
    except (OSError, ValueError) as exc:
        return f"{type(exc).__name__}: {exc}", 1


def main() -> int:
    host = Host()
    try:
        Agent(host).work()
    except Failed as exc:
        host.tell("result", is_error=True, text=str(exc))
        return 1
    except KeyboardInterrupt:
        host.tell("result", is_error=True, text="interrupted")
        return 130
    except (ValueError, OSError, EOFError) as exc:
        host.tell("result", is_error=True, text=f"{type(exc).__name__}: {exc}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

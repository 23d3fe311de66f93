"""The mock agent's program: reads a prompt, does what its lines say with real files and commands, and tells of it.

It speaks JSON lines: what to do comes in on standard input (`begin`, `answer`, `instruct`), what it does goes out on
standard output. A line of the prompt that begins with a known word is a directive; everything else is its plan.
It imports nothing of the guest's and runs with the rights of whoever it works for.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PLAN = Path("AGENT_TASK.md")
ANSWER = Path("ANSWER.md")
LOOP = Path("LOOP.md")
_OUTPUT_LIMIT = 2 << 20
_PAGE_LIMIT = 64 << 10
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


class Agent:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._calls = 0
        self._todo: deque[str] = deque()
        self._totals: dict[str, float] = {"input_tokens": 0, "output_tokens": 0}
        self._memory = Path()
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
            "repeat": self._repeat,
        }

    def work(self) -> None:
        """All of it: the plan, the directives, what is said meanwhile, and the result."""
        begin = self._host.next("begin")
        self._remember(begin.get("session"))
        prompt = str(begin["prompt"])
        self._todo += self._directives(prompt)
        if begin.get("session") is None or not self._todo:
            self._plan(prompt)
        while self._todo or self._instructed():
            word, _, rest = self._todo.popleft().partition(" ")
            self._words[word](rest.strip())
            self._instructed()
        self._host.tell("result", is_error=False, text="Done as the prompt said.")

    def _directives(self, text: str) -> list[str]:
        lines = (line.strip() for line in text.splitlines())
        return [line for line in lines if line.partition(" ")[0] in self._words]

    def _instructed(self) -> bool:
        """Put what was said meanwhile before everything else."""
        for line in reversed(self._host.take("instruct")):
            text = str(line["text"])
            self._todo.extendleft(reversed(self._directives(text) or [f"say Heard: {text}"]))
        return bool(self._todo)

    def _remember(self, session: str | None) -> None:
        """Totals go on when a session is resumed, as those of other agents do."""
        name = session or f"mock-{uuid.uuid4().hex[:16]}"
        self._memory = Path.home() / ".warren-mock" / f"{Path(name).name}.json"
        with contextlib.suppress(OSError, ValueError):
            self._totals = json.loads(self._memory.read_text())
        self._host.tell("session", session=name)

    # Directives.

    def _plan(self, prompt: str) -> None:
        old = PLAN.read_text() + "\n" if PLAN.exists() else ""
        self._write(PLAN, old + prompt.rstrip() + "\n")
        self._commit("Plan of the task")

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
        self._call(tool, "command", {"command": command}, lambda: _shell(command), command)

    def _commit(self, text: str) -> None:
        arguments, command = {"message": text}, f"git commit -m {json.dumps(text)}"
        self._call("Commit", "command", arguments, lambda: _commit(text), command)

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
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        self._memory.write_text(json.dumps(self._totals))
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
            self._todo.extendleft([directive] * min(int(number), _REPEAT_LIMIT))

    def _browse(self, url: str) -> None:
        self._call("WebFetch", "other", {"url": url}, lambda: _fetch(url))

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


def _shell(command: str) -> tuple[str, int]:
    """Run `command`; what it leaves in the background is not waited for."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    kept = bytearray()
    with subprocess.Popen(["bash", "-c", command], **streams) as process:  # type: ignore[call-overload]
        is_over = False
        while not is_over or select.select([process.stdout], [], [], 0)[0]:
            is_over = process.poll() is not None
            if select.select([process.stdout], [], [], 0.05)[0]:
                piece = process.stdout.read1(1 << 16)
                kept += piece[: max(_OUTPUT_LIMIT - len(kept), 0)]
                if not piece:
                    break
    return kept.decode(errors="replace"), int(process.returncode)


def _commit(text: str) -> tuple[str, int]:
    script = (
        "git rev-parse --git-dir >/dev/null 2>&1 || git init -q -b main\n"
        "git config user.email >/dev/null || export GIT_AUTHOR_EMAIL=mock@warren.invalid GIT_AUTHOR_NAME=Mock "
        "GIT_COMMITTER_EMAIL=mock@warren.invalid GIT_COMMITTER_NAME=Mock\n"
        'git add -A && git commit -q --allow-empty -F - <<< "$WARREN_MESSAGE" && git log -1 --format=%h'
    )
    os.environ["WARREN_MESSAGE"] = text
    return _shell(script)


def _fetch(url: str) -> tuple[str, int]:
    if not url.startswith(("http://", "https://")):
        return f"{url} is no web address", 1
    try:
        with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310 - checked above
            return page.read(_PAGE_LIMIT).decode(errors="replace"), 0
    except urllib.error.HTTPError as exc:
        return f"{exc.code} {exc.reason}", 1


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

"""What the scripted models have real agents do: find out that a test fails, mend the code, test it, commit it.

Both do the same, each with the tools of its own agent.
"""

from collections.abc import Sequence

from tests.models.script import Call, Turn, Usage

WORKSPACE = "/workspace/repo"
CLAUDE_MODEL, CODEX_MODEL = "claude-sonnet-4-5", "gpt-5.5"
# Dollars for a million tokens of that model, as its agent knows them.
CLAUDE_PRICES = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}
BROKEN = "def add(a, b):\n    return a - b\n"
MENDED = "def add(a, b):\n    return a + b\n"
TEST = """import unittest

from calc import add


class Adds(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(2, 3), 5)
"""
FILES = {"calc.py": BROKEN, "test_calc.py": TEST, ".gitignore": "__pycache__/\n"}
NOTES = "add subtracts\n"
RUN_TESTS = "python3 -m unittest -q"
COMMIT = "git add -A && git commit -q -m 'Mend add' && git log -1 --format=%s"
PATCH = """*** Begin Patch
*** Update File: calc.py
@@
-    return a - b
+    return a + b
*** End Patch
"""
SAID = "add adds now, and its test passes."
REFUSED = "this account may not do that"


def claude() -> Sequence[Turn]:
    calls = [
        Call("Write", {"file_path": f"{WORKSPACE}/NOTES.md", "content": NOTES}),
        Call("Bash", {"command": RUN_TESTS, "description": "Run the tests"}),
        Call("Read", {"file_path": f"{WORKSPACE}/calc.py"}),
        Call("Edit", {"file_path": f"{WORKSPACE}/calc.py", "old_string": "a - b", "new_string": "a + b"}),
        Call("Bash", {"command": RUN_TESTS, "description": "Run the tests again"}),
        Call("Bash", {"command": COMMIT, "description": "Commit"}),
    ]
    return [*_turns(calls), _last(len(calls))]


def codex() -> Sequence[Turn]:
    write = f"printf '{NOTES.strip()}\\n' > NOTES.md"
    calls = [
        Call("exec_command", {"cmd": write}),
        Call("exec_command", {"cmd": RUN_TESTS}),
        Call("apply_patch", PATCH),
        Call("exec_command", {"cmd": RUN_TESTS}),
        Call("exec_command", {"cmd": COMMIT}),
    ]
    return [*_turns(calls), _last(len(calls))]


def refusal() -> Turn:
    return Turn(REFUSED, status=400)


def _turns(calls: Sequence[Call]) -> list[Turn]:
    """One call each, and no two cost the same."""
    return [Turn(f"Step {number}.", [call], usage=_usage(number)) for number, call in enumerate(calls, 1)]


def _last(calls: int) -> Turn:
    return Turn(SAID, usage=_usage(calls + 1))


def _usage(number: int) -> Usage:
    return Usage(1000 + number, 50 + number, cache_read_tokens=200 * number, cache_write_tokens=0)

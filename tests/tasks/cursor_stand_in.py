#!/usr/bin/env python3
"""Stands in for Cursor's CLI in tests: does a little work, and tells of it in the words of its documentation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SESSION = {"session_id": "cursor-session"}
COMMIT = "git add -A && git commit -q -m 'Mend add' && git log -1 --format=%s"
SAID = "add adds now, and its test passes."


def tell(kind: str, subtype: str | None = None, **fields: Any) -> None:
    line = {"type": kind} | ({} if subtype is None else {"subtype": subtype}) | fields | SESSION
    print(json.dumps(line), flush=True)


def call(number: int, name: str, args: dict[str, Any], success: dict[str, Any]) -> None:
    of = {"call_id": f"call-{number}"}
    tell("tool_call", "started", **of, tool_call={name: {"args": args}})
    tell("tool_call", "completed", **of, tool_call={name: {"args": args, "result": {"success": success}}})


def main() -> int:
    options, prompt = sys.argv[1:-2], sys.argv[-1]
    if sys.argv[-2] != "--" or "stream-json" not in options or "--force" not in options:
        print(f"not as documented: {sys.argv[1:]}", file=sys.stderr)
        return 2
    tell("system", "init", apiKeySource="env", cwd=str(Path.cwd()), model="Stand-in", permissionMode="default")
    tell("user", message={"role": "user", "content": [{"type": "text", "text": prompt}]})
    code = Path("calc.py")
    content = code.read_text()
    call(1, "readToolCall", {"path": str(code)}, {"content": content, "totalLines": 2, "totalChars": len(content)})
    code.write_text(content.replace("a - b", "a + b"))
    call(2, "writeToolCall", {"path": str(code)}, {"path": str(code), "linesCreated": 2, "fileSize": len(content)})
    done = subprocess.run(COMMIT, shell=True, capture_output=True, text=True, check=True)
    call(3, "shellToolCall", {"command": COMMIT}, {"stdout": done.stdout, "exitCode": 0})
    tell("assistant", message={"role": "assistant", "content": [{"type": "text", "text": SAID}]})
    usage = {"inputTokens": 1234, "outputTokens": 56, "cacheReadTokens": 0, "cacheWriteTokens": 0}
    tell("result", "success", is_error=False, duration_ms=1, duration_api_ms=1, result=SAID, usage=usage)
    return 0


if __name__ == "__main__":
    sys.exit(main())

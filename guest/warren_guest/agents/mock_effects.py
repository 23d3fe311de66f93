"""What the mock agent does to the world: commands, commits, requests. It imports nothing of the guest's."""

import contextlib
import os
import select
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PLAN = Path("AGENT_TASK.md")
PLANNING = ".plan"
_OUTPUT_LIMIT = 2 << 20
_PAGE_LIMIT = 64 << 10
_ONCE_TRIES = 5


def shell(command: str) -> tuple[str, int]:
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


def commit(text: str) -> tuple[str, int]:
    script = (
        "git rev-parse --git-dir >/dev/null 2>&1 || git init -q -b main\n"
        "git config user.email >/dev/null || export GIT_AUTHOR_EMAIL=mock@warren.invalid GIT_AUTHOR_NAME=Mock "
        "GIT_COMMITTER_EMAIL=mock@warren.invalid GIT_COMMITTER_NAME=Mock\n"
        'git add -A && git commit -q --allow-empty -F - <<< "$WARREN_MESSAGE" && git log -1 --format=%h'
    )
    os.environ["WARREN_MESSAGE"] = text
    return shell(script)


def before(directive: str) -> dict[str, object]:
    """What tells later whether the directive was done."""
    word, _, rest = directive.partition(" ")
    if word == "commit":
        return {"head": head()}
    if word in ("append", PLANNING):
        path = PLAN if word == PLANNING else Path(rest.strip().partition(" ")[0])
        return {"sizes": {str(path): path.stat().st_size if path.is_file() else None}}
    return {}


def cut(path: Path, size: int | None) -> None:
    """Undo what was added."""
    with contextlib.suppress(OSError):
        path.unlink() if size is None else os.truncate(path, size)


def head() -> str:
    """Where the repository's branch is. No program is started for it: it is asked for with every commit."""
    with contextlib.suppress(OSError):
        said = Path(".git/HEAD").read_text().strip()
        name = said.removeprefix("ref: ")
        if said == name:
            return said
        with contextlib.suppress(OSError):
            return Path(".git", name).read_text().strip()
        packed = Path(".git/packed-refs").read_text().splitlines()
        return next((line.partition(" ")[0] for line in packed if line.endswith(f" {name}")), "")
    return ""


def put_once(url: str, text: str) -> tuple[str, int]:
    """Whoever comes second finds it there, which is as good: also if it was us, and the answer was lost."""
    if not url.startswith(("http://", "https://")):
        return f"{url}: ONCE_URL is no web address", 1
    for tried in range(_ONCE_TRIES):
        asked = urllib.request.Request(url, text.encode(), {"If-None-Match": "*"}, method="PUT")  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 - checked above
                return f"{answer.status}: made", 0
        except urllib.error.HTTPError as exc:
            if exc.code == 412:
                return "412: it was there", 0
            said = f"{exc.code} {exc.reason}"
        except OSError as exc:
            said = f"{type(exc).__name__}: {exc}"
        time.sleep(tried + 1)
    return said, 1


def fetch(url: str) -> tuple[str, int]:
    if not url.startswith(("http://", "https://")):
        return f"{url} is no web address", 1
    try:
        with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310 - checked above
            return page.read(_PAGE_LIMIT).decode(errors="replace"), 0
    except urllib.error.HTTPError as exc:
        return f"{exc.code} {exc.reason}", 1

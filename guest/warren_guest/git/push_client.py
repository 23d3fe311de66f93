"""What an agent's `git push` becomes: a program that asks the machine's first process, and waits for the verdict.

It runs as whoever pushes and has no rights of its own. What it says of the push is only asked for: what is pushed, and
whether it may be, is decided elsewhere, on the commits themselves.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from warren_guest.git.words import Words, is_local, parse

_REPLY_LIMIT = 1 << 16
_HEADS = "refs/heads/"


class Refused(Exception):
    """The push will not be; the text says why."""


class Client:
    """One push."""

    def __init__(self, policy: dict[str, Any], words: Words) -> None:
        self._real = str(policy["real"])
        self._socket = str(policy["socket"])
        self._url = policy.get("url")
        self._words = words

    def git(self, *arguments: str) -> str | None:
        """What git says, or None if it fails."""
        argv = [self._real, *self._words.context, *arguments]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None

    def remote(self) -> str:
        """The remote that git would push to."""
        branch = self.git("symbolic-ref", "--short", "--quiet", "HEAD")
        asked = [f"branch.{branch}.pushRemote"] if branch else []
        asked += ["remote.pushDefault", *([f"branch.{branch}.remote"] if branch else [])]
        found = (self.git("config", "--get", key) for key in asked)
        return self._words.remote or next(filter(None, found), "origin")

    def address(self, remote: str) -> str:
        return self.git("remote", "get-url", "--push", "--", remote) or remote

    def run(self) -> str:
        """Ask, and tell what was done. Raises `Refused`."""
        remote = self.remote()
        url = self.address(remote)
        if is_local(url):
            raise_real(self._real)
        if self._words.problem is not None:
            raise Refused(self._words.problem[1])
        if self._url is not None and _plain(url) != _plain(str(self._url)):
            raise Refused(f"only {self._url} can be pushed to, not {remote}")
        source, branch, commit = self.what()
        path = self.git("rev-parse", "--show-toplevel") or str(Path.cwd())
        if self._words.is_dry:
            return f"would ask to push {commit[:12]} to {branch}"
        text = self.ask({"path": path, "branch": branch, "commit": commit})
        self.note(remote, source, branch, commit)
        return text or f"pushed {commit[:12]} to {branch}"

    def what(self) -> tuple[str, str, str]:
        """`(source, branch on the server, commit)`."""
        spec = self._words.refspecs[0] if self._words.refspecs else ""
        source, _, target = spec.partition(":")
        source = source or "HEAD"
        if source.startswith("-"):
            raise Refused(f"{source} is not the name of a commit")
        commit = self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{source}^{{commit}}")
        if commit is None:
            raise Refused(f"there is no commit {source}")
        name = target or self.git("rev-parse", "--symbolic-full-name", source) or source
        if name in ("HEAD", "@") or (name.startswith("refs/") and not name.startswith(_HEADS)):
            raise Refused(f"{name} is not a branch; push one, as in: git push origin HEAD:refs/heads/NAME")
        return source, name.removeprefix(_HEADS), commit

    def ask(self, request: dict[str, str]) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(self._socket)
                line.sendall(json.dumps(request).encode() + b"\n")
                reply = line.makefile("rb").readline(_REPLY_LIMIT)
            said = json.loads(reply)
        except (OSError, ValueError) as exc:
            raise Refused(f"nobody answered whether it may be: {exc}") from exc
        if said.get("approved") is not True:
            raise Refused(str(said.get("text") or "no reason was given"))
        return str(said.get("text") or "")

    def note(self, remote: str, source: str, branch: str, commit: str) -> None:
        """What git itself notes after a push."""
        if self.git("config", "--get", f"remote.{remote}.url") is None:
            return
        self.git("update-ref", f"refs/remotes/{remote}/{branch}", commit)
        local = self.git("rev-parse", "--symbolic-full-name", source) or ""
        if self._words.sets_upstream and local.startswith(_HEADS):
            self.git("config", f"branch.{local.removeprefix(_HEADS)}.remote", remote)
            self.git("config", f"branch.{local.removeprefix(_HEADS)}.merge", _HEADS + branch)


def _plain(url: str) -> str:
    return url.rstrip("/").removesuffix(".git")


def raise_real(real: str) -> NoReturn:
    """Become the real git, with the same words."""
    os.execv(real if "/" in real else f"/usr/bin/{real}", ["git", *sys.argv[2:]])  # noqa: S606


def main() -> int:
    policy = json.loads(Path(sys.argv[1]).read_text())
    words = parse(sys.argv[2:])
    if words.is_help:
        raise_real(str(policy["real"]))
    try:
        text = Client(policy, words).run()
    except Refused as exc:
        sys.stderr.write(f"git push: refused: {exc}\n")
        return 1
    sys.stderr.write(f"git push: {text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

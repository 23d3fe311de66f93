"""A real git server for tests: smart HTTP by `git http-backend`, with basic authentication and a record of every push.

    with serve(folder, users={"bot": "secret"}) as server:
        server.make("project", {"README.md": "hello\\n"})
        server.url("project")      # http://127.0.0.1:PORT/project.git
        server.pushes()            # what arrived, as its hook was told

It listens where it is told to, so machines can reach it too. `on_request` is called in the thread of each request
before it is answered, and may wait: a test that breaks something off in the middle holds it there.
"""

import base64
import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

_HOOK = """#!/bin/sh
while read old new ref; do echo "{name} $old $new $ref" >> "{log}"; done
"""
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", "2026-01-02T03:04:05Z"))
}
_PIECE = 1 << 16


@dataclass(frozen=True)
class Push:
    """One ref that a push moved, as the server's hook was told."""

    repository: str
    old: str
    new: str
    ref: str


@dataclass(frozen=True)
class Asked:
    """One request: what for, and the user it was made as (None: nobody)."""

    method: str
    path: str
    user: str | None


def git(*arguments: str | Path, cwd: Path | None = None, stdin: bytes | None = None) -> str:
    """Run git as a test does: without anybody's configuration. Returns what it said."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **_AUTHOR}
    argv = ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *map(str, arguments)]
    done = subprocess.run(argv, cwd=cwd, env=env, input=stdin, capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"{argv} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="surrogateescape").strip()


class GitServer:
    """The server and its repositories, `folder/<name>.git`."""

    def __init__(self, folder: Path, users: Mapping[str, str], address: str, port: int) -> None:
        self.folder = folder
        self.users = dict(users)
        self.on_request: Callable[[Asked], None] = lambda _asked: None
        self.redirects: dict[str, str] = {}
        self.asked: list[Asked] = []
        self._log = folder / "pushes.log"
        self._http = ThreadingHTTPServer((address, port), _handler_of(self))
        self._http.daemon_threads = True
        self.address, self.port = address, int(self._http.server_address[1])

    def url(self, name: str, host: str | None = None) -> str:
        return f"http://{host or self.address}:{self.port}/{name}.git"

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.git"

    def make(self, name: str, files: Mapping[str, str | bytes] | None = None, *, branch: str = "main") -> str | None:
        """A repository with one commit of `files`, or an empty one. Returns the commit's hash."""
        path = self.path(name)
        git("init", "--quiet", "--bare", "--template=", f"--initial-branch={branch}", path)
        git("config", "http.receivepack", "true", cwd=path)
        hook = path / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(_HOOK.format(name=name, log=self._log))
        hook.chmod(0o755)
        return None if files is None else self.commit(name, files, branch=branch)

    def commit(
        self, name: str, files: Mapping[str, str | bytes], *, branch: str = "main", start: str | None = None
    ) -> str:
        """Add a commit with `files` to a branch, beginning at `start` if the branch is new. Returns its hash."""
        with tempfile.TemporaryDirectory() as work:
            tree = Path(work)
            git("clone", "--quiet", "--no-checkout", self.path(name), tree)
            if branch in git("branch", "--list", "--remotes", "--format=%(refname:lstrip=3)", cwd=tree).split():
                git("checkout", "--quiet", "-B", branch, f"origin/{branch}", cwd=tree)
            elif start is not None:
                git("checkout", "--quiet", "-b", branch, start, cwd=tree)
            else:
                git("checkout", "--quiet", "--orphan", branch, cwd=tree)
            for file, content in files.items():
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                (tree / file).write_bytes(content if isinstance(content, bytes) else content.encode())
            return self.publish(name, tree, branch)

    def publish(self, name: str, tree: Path, branch: str) -> str:
        """Commit all that is in the work tree `tree` and take it over, as if it had always been there."""
        git("add", "--all", "--force", cwd=tree)
        git("commit", "--quiet", "--message", f"Change {branch}", cwd=tree)
        git("fetch", "--quiet", tree, f"+HEAD:refs/heads/{branch}", cwd=self.path(name))
        return git("rev-parse", "HEAD", cwd=tree)

    def head(self, name: str, ref: str = "refs/heads/main") -> str | None:
        """The hash that `ref` has on the server, or None."""
        found = git("for-each-ref", "--format=%(objectname)", ref, cwd=self.path(name))
        return found or None

    def pushes(self) -> list[Push]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Push(*line.split(" ", 3)) for line in lines]

    def start(self) -> None:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextlib.contextmanager
def serve(
    folder: Path, *, users: Mapping[str, str] | None = None, address: str = "127.0.0.1", port: int = 0
) -> Iterator[GitServer]:
    """A server during the block. With `users` (name → password) nothing is answered without one of them."""
    server = GitServer(folder, users or {}, address, port)
    server.start()
    try:
        yield server
    finally:
        server.close()


def _handler_of(server: GitServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        gits = server

    return Handler


class _Handler(BaseHTTPRequestHandler):
    """One connection. A request becomes one run of git's own CGI program."""

    gits: GitServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        user = self._user()
        asked = Asked(self.command, path, user)
        self.gits.asked.append(asked)
        with contextlib.suppress(ConnectionError), self._body() as body:
            self.gits.on_request(asked)
            moved = next((to for start, to in self.gits.redirects.items() if path.startswith(start)), None)
            if moved is not None:
                target = path + (f"?{query}" if query else "")
                start = next(each for each in self.gits.redirects if path.startswith(each))
                self._refuse(302, {"Location": moved + target[len(start) :]})
            elif self.gits.users and user is None:
                self._refuse(401, {"WWW-Authenticate": 'Basic realm="git"'})
            else:
                self._run(path, query, user, body)

    def _user(self) -> str | None:
        """Who asks, if the password is right."""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        name, _, password = base64.b64decode(value).decode().partition(":")
        return name if self.gits.users.get(name) == password else None

    def _refuse(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self) -> IO[bytes]:
        """The whole body in a file: git sends large packs in chunks, and a CGI program wants to know the length."""
        body = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked closes it
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body.write(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            body.write(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        body.seek(0)
        return body

    def _run(self, path: str, query: str, user: str | None, body: IO[bytes]) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROJECT_ROOT": str(self.gits.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(os.fstat(body.fileno()).st_size),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": self.client_address[0],
            **({"REMOTE_USER": user} if user else {}),
        }
        with subprocess.Popen(["git", "http-backend"], env=env, stdin=body, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            self._pass_on(program.stdout)

    def _pass_on(self, output: IO[bytes]) -> None:
        """What a CGI program says, as an answer in chunks."""
        headers = []
        status = 200
        while line := output.readline().strip():
            name, _, value = line.decode().partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := output.read(_PIECE):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

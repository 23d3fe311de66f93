"""An agent's own `git push`: the wrapper, what it asks, and who answers."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from warren_guest.accounts import Accounts
from warren_guest.git import rails, words, wrapper
from warren_guest.git.asked import Author
from warren_guest.git.guard import Guard, Verdict, write_author
from warren_guest.git.places import Places

from tests.gitserver import GitServer, git

REAL = "/usr/bin/git"
AUTHOR = Author("Warren", "agent@example.org")


@dataclass
class Host:
    """Whoever decides."""

    verdict: Verdict = field(default_factory=lambda: Verdict(True, "pushed by the host"))
    asked: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0

    async def ask(self, kind: str, facts: Mapping[str, object]) -> Verdict:
        self.asked.append((kind, facts))
        try:
            await self.going.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return self.verdict


@dataclass
class Desk:
    """A work tree with a wrapper in front of git."""

    guard: Guard
    host: Host
    wrapper: Path
    repo: Path
    url: str

    async def git(self, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        argv = [str(self.wrapper), *arguments]
        own = {"HOME": str(self.repo.parent), "PATH": os.environ["PATH"], **(env or {})}
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=self.repo, env=own, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode or 0, output.decode()

    async def enforce(self, *protected: str) -> None:
        await self.guard.enforce(rails.Policy(self.url, protected, AUTHOR))


@pytest.fixture
async def desk(tmp_path: Path, server: GitServer) -> AsyncIterator[Desk]:
    server.make("p", {"a": "1\n"})
    repo = tmp_path / "repo"
    git("clone", "--quiet", server.url("p"), repo)
    git("checkout", "--quiet", "-b", "work", cwd=repo)
    git("config", "user.name", "Warren", cwd=repo)
    git("config", "user.email", "agent@example.org", cwd=repo)
    host = Host()
    host.going.set()
    runtime = str(tmp_path / "run")
    guard = Guard(Places(runtime=runtime), Accounts(_me()))
    guard.ask = host.ask
    assert wrapper.install(str(tmp_path / "git"), REAL, runtime)
    yield Desk(guard, host, tmp_path / "git", repo, server.url("p"))
    await guard.close()


def _me() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


async def test_everything_but_a_push_is_gits_own(desk: Desk) -> None:
    await desk.enforce("main")
    (desk.repo / "push").write_text("x")
    assert await desk.git("add", "push") == (0, "")
    code, _ = await desk.git("-c", "core.editor=push", "-C", str(desk.repo), "commit", "-q", "-m", "push")
    assert code == 0
    assert (await desk.git("log", "--format=%s", "-1"))[1] == "push\n"
    assert (await desk.git("nonsense"))[0] == 1
    assert (await desk.git("--version"))[1].startswith("git version")
    assert desk.host.asked == []


async def test_without_a_policy_a_push_is_gits_own_too(desk: Desk, server: GitServer) -> None:
    code, said = await desk.git("push", "origin", "work")
    assert code == 0, said
    assert server.head("p", "refs/heads/work") is not None
    assert desk.host.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["push"],
        ["push", "origin", "work"],
        ["push", "-u", "origin", "HEAD"],
        ["push", "--set-upstream", "origin", "HEAD:refs/heads/work"],
        ["push", "origin", "refs/heads/work:work"],
        ["-c", "a.b=push", "--no-pager", "push", "--quiet"],
    ],
)
async def test_a_push_is_asked_for_and_the_hosts_verdict_is_told(
    desk: Desk, server: GitServer, arguments: list[str]
) -> None:
    await desk.enforce("main")
    commit = git("rev-parse", "HEAD", cwd=desk.repo)
    code, said = await desk.git(*arguments)
    assert (code, said) == (0, "git push: pushed by the host\n")
    expected = {"path": str(desk.repo), "branch": "work", "commit": commit, "url": desk.url}
    assert desk.host.asked == [("git.push_requested", expected)]
    assert server.pushes() == [], "the wrapper itself pushes nothing"
    assert git("rev-parse", "refs/remotes/origin/work", cwd=desk.repo) == commit
    if "-u" in arguments or "--set-upstream" in arguments:
        assert git("config", "branch.work.merge", cwd=desk.repo) == "refs/heads/work"


async def test_a_push_that_the_host_rejects_fails_and_says_why(desk: Desk) -> None:
    await desk.enforce()
    desk.host.verdict = Verdict(False, "a person said no")
    code, said = await desk.git("push")
    assert (code, said) == (1, "git push: refused: a person said no\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-f"], "rewrite history"),
        (["--force"], "rewrite history"),
        (["--forc"], "rewrite history"),
        (["--force-with-lease=work"], "rewrite history"),
        (["--force-if-includes", "--force-with-lease"], "rewrite history"),
        (["-qf", "origin", "work"], "rewrite history"),
        (["-uf", "origin", "work"], "rewrite history"),
        (["origin", "+work"], "rewrite history"),
        (["origin", "+work:work"], "rewrite history"),
        (["--mirror"], "rewrite history"),
        (["--prune", "origin"], "rewrite history"),
        (["--delete", "origin", "work"], "delete"),
        (["-d", "origin", "work"], "delete"),
        (["origin", ":work"], "delete"),
        (["--all"], "one branch"),
        (["--tags"], "one branch"),
        (["origin", "work", "main"], "one branch"),
        (["origin", "tag", "v1"], "one branch"),
        (["origin", "refs/heads/*:refs/heads/*"], "one branch"),
        (["--receive-pack=id", "origin"], "not possible"),
        (["origin", "main"], "main is protected"),
        (["origin", "HEAD:main"], "main is protected"),
        (["origin", "work:refs/heads/release/1/2"], "release/1/2 is protected"),
        (["origin", "HEAD:refs/tags/v1"], "not a branch"),
        (["origin", "nothing"], "no commit nothing"),
        (["http://example.org/other.git", "work"], "can be pushed to"),
        (["ssh://git@example.org/p.git", "work"], "can be pushed to"),
        (["git@example.org:p.git", "work"], "can be pushed to"),
    ],
)
async def test_a_push_against_the_rails_is_refused_at_once(
    desk: Desk, server: GitServer, arguments: list[str], why: str
) -> None:
    await desk.enforce("main", "release/*")
    code, said = await desk.git("push", *arguments)
    assert code == 1
    assert said.startswith("git push: refused: ")
    assert why in said
    assert desk.host.asked == []
    assert server.pushes() == []


async def test_a_push_to_a_folder_of_the_machine_is_gits_own(desk: Desk, tmp_path: Path) -> None:
    await desk.enforce("main", "work")
    git("init", "--quiet", "--bare", tmp_path / "local.git")
    code, said = await desk.git("push", "--force", str(tmp_path / "local.git"), "work")
    assert code == 0, said
    assert git("rev-parse", "work", cwd=tmp_path / "local.git") == git("rev-parse", "HEAD", cwd=desk.repo)


async def test_a_push_waits_for_the_verdict_and_who_leaves_ends_the_question(desk: Desk) -> None:
    await desk.enforce()
    desk.host.going.clear()
    waiting = asyncio.create_task(desk.git("push"))
    async with asyncio.timeout(20):
        while not desk.host.asked:
            await asyncio.sleep(0.01)
    assert not waiting.done()
    desk.host.going.set()
    assert (await waiting)[0] == 0
    desk.host.going.clear()
    argv = [str(desk.wrapper), "push"]
    process = await asyncio.create_subprocess_exec(*argv, cwd=desk.repo, env={"PATH": os.environ["PATH"]})
    async with asyncio.timeout(20):
        while len(desk.host.asked) < 2:
            await asyncio.sleep(0.01)
        process.kill()
        await process.wait()
        while not desk.host.left:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"[]\n", b"{" * 1000 + b"\n", b"x" * 100_000, b'{"path": "/", "branch": "-x", "commit": "y"}\n'],
)
async def test_what_is_no_request_is_refused(desk: Desk, tmp_path: Path, line: bytes) -> None:
    await desk.enforce()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "run" / "push.sock"))
    writer.write(line)
    writer.write_eof()
    async with asyncio.timeout(20):
        said = json.loads(await reader.readline())
    assert said["approved"] is False
    writer.close()
    assert desk.host.asked == []


async def test_the_rails_cannot_be_lied_to(desk: Desk, tmp_path: Path) -> None:
    """Whoever speaks to the socket without the wrapper gets no further than with it."""
    await desk.enforce("main")
    for branch in ("main", "refs/heads/main", "x:y", "HEAD"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "run" / "push.sock"))
        writer.write(json.dumps({"path": "/x", "branch": branch, "commit": "1" * 40}).encode() + b"\n")
        async with asyncio.timeout(20):
            assert json.loads(await reader.readline())["approved"] is False
        writer.close()
    assert desk.host.asked == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can be somebody else")
async def test_only_who_works_in_the_sandbox_is_heard(desk: Desk, tmp_path: Path) -> None:
    await desk.enforce()
    for path in (*tmp_path.parents, tmp_path):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    script = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        'r=b\'{"path":"/x","branch":"b","commit":"%s"}\\n\' % (b"1"*40); s.sendall(r); print(s.makefile().readline())'
    )
    argv = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]
    process = await asyncio.create_subprocess_exec(
        *argv, str(tmp_path / "run" / "push.sock"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert json.loads(output) == {"approved": False, "text": "this account cannot push from here"}


async def test_a_guard_without_a_host_refuses(desk: Desk) -> None:
    from warren_guest.git.guard import nobody

    desk.guard.ask = nobody
    await desk.enforce()
    code, said = await desk.git("push")
    assert code == 1
    assert "no task runs here" in said


def test_an_image_whose_git_is_in_its_place_is_left_alone(tmp_path: Path) -> None:
    assert wrapper.install(str(tmp_path / "git"), str(tmp_path / "nothing"), "/run/x") is False
    assert list(tmp_path.iterdir()) == []


def test_the_author_is_in_the_system_wide_configuration_beside_what_was_there(tmp_path: Path) -> None:
    config = tmp_path / "gitconfig"
    config.write_text("[core]\n\tabbrev = 12")
    write_author(str(config), 'A "B" \\ C', "c@example.org")
    write_author(str(config), 'D "E" \\ F', "f@example.org")
    assert git("config", "--file", config, "--includes", "user.name") == 'D "E" \\ F'
    assert git("config", "--file", config, "--includes", "user.email") == "f@example.org"
    assert git("config", "--file", config, "core.abbrev") == "12"
    assert config.read_text().count("[include]") == 1


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("/a/b", True),
        ("../x.git", True),
        ("file:///x", True),
        ("./a:b", True),
        ("host:path", False),
        ("git@host:path", False),
        ("http://x/y", False),
        ("ext::sh -c id", False),
    ],
)
def test_an_address_is_local_as_git_reads_it(url: str, local: bool) -> None:
    assert words.is_local(url) is local

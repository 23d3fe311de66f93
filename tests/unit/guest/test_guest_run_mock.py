"""The mock agent from end to end: a real guest runs the real program, and every directive does what it says."""

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.guest.client import Client
from tests.unit.guest.run_client import RunClient


@pytest.fixture
def host(fresh_guest: Client) -> RunClient:
    return RunClient(fresh_guest)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout


async def test_a_prompt_without_directives_becomes_a_plan_that_is_committed(host: RunClient) -> None:
    ended = await host.whole("Please make the tests pass.\nAnd be quick.")
    assert (ended["outcome"], ended["exit_code"], ended["output_tail"]) == ("success", 0, None)
    workspace = host.client.workspace
    assert (workspace / "AGENT_TASK.md").read_text() == "Please make the tests pass.\nAnd be quick.\n"
    assert git(workspace, "log", "--format=%s") == "Plan of the task\n"
    kinds = [event["event"] for event in host.seen]
    assert kinds[0] == "agent.started"
    assert kinds[-1] == "agent.ended"
    assert kinds.count("agent.session") == 1
    assert host.tools() == [("Write", False), ("Commit", False)]


async def test_a_repository_that_the_workspace_lies_in_is_left_alone(host: RunClient) -> None:
    """As that of a developer whose hosts keep their files in it."""
    around = host.client.workspace.parent
    git(around, "init", "-q", "-b", "main")
    await host.whole("Write it down.")
    assert git(around, "rev-list", "--all") == ""
    assert git(host.client.workspace, "log", "--format=%s") == "Plan of the task\n"


async def test_each_directive_is_a_step_that_is_really_done(host: RunClient) -> None:
    prompt = """
    think about it
    say hello
    edit sub/a.txt one\\ntwo
    append sub/a.txt three
    run cat sub/a.txt; exit 3
    commit The work
    tool Look {"at": "it"}
    sleep 0
    """
    ended = await host.whole(prompt)
    assert ended["outcome"] == "success", ended
    assert (host.client.workspace / "sub/a.txt").read_text() == "one\ntwo\nthree\n"
    assert git(host.client.workspace, "log", "--format=%s").splitlines() == ["The work", "Plan of the task"]
    steps = [("Write", False), ("Commit", False), ("Write", False), ("Edit", False), ("Bash", True)]
    assert host.tools() == [*steps, ("Commit", False), ("Look", False), ("Sleep", False)]
    (ran,) = host.told("agent.tool", phase="end", tool="Bash")
    facts = (ran["kind"], ran["command"], ran["exit_code"], ran["output"], ran["output_bytes"])
    assert facts == ("command", "cat sub/a.txt; exit 3", 3, "one\ntwo\nthree\n", 14)
    assert [event["text"] for event in host.told("agent.thought")] == ["about it"]
    assert [event["text"] for event in host.told("agent.message")] == ["hello"]
    assert host.told("agent.tool", phase="start", tool="Look")[0]["arguments"] == {"at": "it"}


async def test_a_question_waits_for_its_answer(host: RunClient) -> None:
    await host.started("ask Which colour?")
    asked = await host.until("approval.requested")
    assert (asked["kind"], asked["text"]) == ("question", "Which colour?")
    assert (await host.client.call("GET", "/run")).json["waiting"] == [asked["id"]]
    assert (await host.say("answer", asked["id"], "blue")).status == 200
    assert (await host.ended())["outcome"] == "success"
    assert (host.client.workspace / "ANSWER.md").read_text() == "blue\n"
    assert [event["kind"] for event in host.told("approval.answered")] == ["answer"]


async def test_tools_and_commands_of_the_rules_need_a_persons_word(host: RunClient) -> None:
    rules = {"tools": ["Look"], "commands": ["rm -rf *"]}
    await host.started("run touch kept\nrun rm -rf kept\ntool Look at it\nrun true", approvals=rules)
    command = await host.until("approval.requested")
    assert (command["kind"], command["tool"], command["text"]) == ("command", "Bash", "rm -rf kept")
    assert (await host.say("reject", command["id"], "not that")).status == 200
    tool = await host.until("approval.requested")
    assert (tool["kind"], tool["tool"]) == ("tool", "Look")
    assert (await host.say("approve", tool["id"])).status == 200
    assert (await host.ended())["outcome"] == "success"
    assert (host.client.workspace / "kept").exists()
    assert host.tools()[2:] == [("Bash", False), ("Bash", True), ("Look", False), ("Bash", False)]
    refused = [event for event in host.told("agent.tool", phase="end", tool="Bash") if event["is_error"]]
    assert refused[0]["output"] == "refused: not that"


async def test_tokens_are_told_as_totals_also_after_the_session_is_resumed(host: RunClient, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    await host.whole("tokens 100 20 0.5\ntokens 1 2 0.25", env=env)
    first = host.told("agent.usage")
    assert [(each["input_tokens"], each["output_tokens"], each["usd"]) for each in first] == [
        (100, 20, 0.5),
        (101, 22, 0.75),
    ]
    session = host.told("agent.session")[0]["session"]
    await host.whole("tokens 10 10 0.05", run=2, session=session, env=env)
    last = host.told("agent.usage")[-1]
    assert (last["input_tokens"], last["output_tokens"], last["usd"]) == (111, 32, 0.8)
    await host.whole("tokens 1000 1000", run=3, env=env)
    last = host.told("agent.usage")[-1]
    assert (last["input_tokens"], last["output_tokens"], last["usd"]) == (1111, 1032, 0.8)


async def test_a_failure_and_a_crash_are_told_apart(host: RunClient) -> None:
    failed = await host.whole("fail no luck")
    assert (failed["outcome"], failed["error"], failed["output_tail"]) == ("failure", "no luck", None)
    crashed = await host.whole("crash", run=2)
    assert (crashed["outcome"], crashed["exit_code"]) == ("failure", 70)
    assert crashed["error"] == "the agent ended without a result"
    assert "crashes, as its prompt says" in crashed["output_tail"]
    assert [event["stream"] for event in host.told("agent.log")] == ["stderr"]


async def test_output_that_is_no_word_of_the_agent_is_told_as_its_log(host: RunClient) -> None:
    ended = await host.whole("print 20000\nnoise 300")
    assert ended["outcome"] == "success"
    logged = "".join(event["text"] for event in host.told("agent.log"))
    assert logged.count("x") == 20000 - 3  # three lines
    assert "�" in logged


async def test_loops_do_the_same_again_and_again(host: RunClient) -> None:
    await host.whole("loop diff 3\nloop fail 2 exit 4\nrepeat 2 append b.txt more")
    hashes = [event["hash"] for event in host.told("file.diff")]
    assert sorted(hashes.count(each) for each in set(hashes[-8:-2])) == [3, 3]
    failed = host.told("agent.tool", phase="end", exit_code=4)
    assert [event["command"] for event in failed] == ["exit 4", "exit 4"]
    assert (host.client.workspace / "b.txt").read_text() == "more\nmore\n"


async def test_an_instruction_is_read_at_the_next_step(host: RunClient) -> None:
    await host.started("ask Ready?\nsay the end")
    asked = await host.until("approval.requested")
    assert (await host.say("instruct", "in-1", "edit c.txt instructed")).status == 200
    assert (await host.say("instruct", "in-1", "edit c.txt instructed")).status == 200
    assert (await host.say("answer", asked["id"], "yes")).status == 200
    await host.ended()
    assert (host.client.workspace / "c.txt").read_text() == "instructed\n"
    written = [event["arguments"].get("file_path") for event in host.told("agent.tool", phase="start")]
    assert written.count("c.txt") == 1


async def test_a_push_is_a_git_push_of_the_branch(host: RunClient, tmp_path: Path) -> None:
    origin = tmp_path / "origin.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(origin)], check=True)
    await host.whole(f"run git remote add origin {origin}\npush")
    assert git(origin, "log", "--format=%s", "main") == "Plan of the task\n"


async def test_a_later_run_compares_with_what_the_task_began_with(host: RunClient, tmp_path: Path) -> None:
    await host.whole("edit a.txt one\ncommit One")
    first = host.told("file.diff")[-1]
    assert (first["files"], first["insertions"]) == (2, 3)
    await host.whole("edit b.txt two\ncommit Two", run=2, session="mock-1", env={"HOME": str(tmp_path)})
    assert (host.told("file.diff")[-1]["files"], host.told("file.diff")[-1]["insertions"]) == (3, 4)
    other = tmp_path / "elsewhere"
    other.mkdir()
    await host.whole("tokens 5 5\nedit c.txt three", run=3, cwd=str(other), env={"HOME": str(tmp_path)})
    assert host.told("file.diff")[-1]["files"] == 2
    assert host.told("agent.usage")[-1]["input_tokens"] == 5


async def test_changes_of_the_workspace_are_told_once_each(host: RunClient) -> None:
    workspace = host.client.workspace
    git(workspace, "init", "-q", "-b", "main")
    (workspace / ".gitignore").write_text("ignored\n")
    git(workspace, "add", ".")
    git(workspace, "-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "base")
    await host.whole("edit a.txt one\\ntwo\nrun true\nedit ignored x\nrun rm a.txt")
    told = [(each["files"], each["insertions"], each["deletions"]) for each in host.told("file.diff")]
    # The plan, a.txt with two lines, and a.txt gone again.
    assert told == [(1, 4, 0), (2, 6, 0), (1, 4, 0)]
    hashes = [each["hash"] for each in host.told("file.diff")]
    assert hashes[0] == hashes[2] != hashes[1]
    assert os.listdir(workspace / ".git").count("index.lock") == 0


class _Once(BaseHTTPRequestHandler):
    """Takes what is not there yet; of the first that it takes nobody hears."""

    made: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_new = self.headers["If-None-Match"] == "*" and self.path not in self.made
        self.made.setdefault(self.path, body)
        if is_new and len(self.made) == 1:
            self.connection.close()
            return
        self.send_response(201 if is_new else 412)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def test_an_effect_elsewhere_is_had_once_whether_its_answer_is_heard_or_not(host: RunClient) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Once)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        env = {"ONCE_URL": f"http://127.0.0.1:{server.server_address[1]}/effects/"}
        ended = await host.whole("once a first\nonce a second\nonce b third", env=env)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert ended["outcome"] == "success"
    assert _Once.made == {"/effects/a": b"first", "/effects/b": b"third"}
    said = [event["output"][:3] for event in host.told("agent.tool", phase="end", tool="Once")]
    assert said == ["412", "412", "201"]

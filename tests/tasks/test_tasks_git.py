"""Repositories: cloned and pushed through the machine's proxy, with credentials that nobody else gets to see."""

from collections.abc import Iterator

import pytest

from tests.gitserver import GitServer
from tests.tasks import leaks
from tests.tasks.archive import opened
from tests.tasks.client import Caller, Task, told
from tests.tasks.places import git_server
from tests.tasks.stage import Stage
from tests.vm.client import until

USER, PASSWORD = "bot", "correct/horse+battery"
WITH_PASSWORD = "https://bot:correct%2Fhorse%2Bbattery@private-git.example.com"
GIT = "https://open-git.example.com"
FILES = {"README.md": "A project.\n", "src/main.py": "print('hello')\n"}


@pytest.fixture(scope="module")
def gits(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    with git_server(stage.places, tmp_path_factory.mktemp("git"), "open-git.example.com") as server:
        server.make("project", FILES)
        yield server


@pytest.fixture(scope="module")
def private(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    folder, users = tmp_path_factory.mktemp("git"), {USER: PASSWORD}
    with git_server(stage.places, folder, "private-git.example.com", users) as server:
        server.make("project", FILES)
        yield server


def test_a_repository_is_cloned_and_the_work_is_on_a_branch_of_its_own(alice: Caller, gits: GitServer) -> None:
    task = alice.task("run python3 src/main.py\nedit src/more.py more\ncommit Add more", repo=f"{GIT}/project.git")
    view = task.ended()
    base = gits.head("project")
    assert view["result"]["base"] == base
    assert view["branch"] == f"warren/{task.id}"
    assert "hello" in [step["output"].strip() for step in task.steps()]
    with opened(task) as archive:
        assert archive.git("rev-parse", "--abbrev-ref", "HEAD") == view["branch"]
        assert archive.git("merge-base", "HEAD", str(base)) == base
        assert archive.subjects()[-1] == "Add more"
        assert view["result"]["head"] == archive.git("rev-parse", "HEAD")
        assert archive.git("remote", "get-url", "origin") == f"{GIT}/project.git"
    assert gits.pushes() == []


def test_a_ref_and_a_depth_are_kept_to(alice: Caller, gits: GitServer) -> None:
    gits.make("deep", {"a": "1"})
    gits.commit("deep", {"a": "2"})
    wanted = gits.commit("deep", {"a": "3"}, branch="feature")
    task = alice.task("run cat a; git rev-list --count HEAD", repo=f"{GIT}/deep.git", ref="feature", depth=1)
    view = task.ended()
    assert view["result"]["base"] == wanted
    assert task.steps()[-1]["output"].startswith("3")


@pytest.mark.parametrize(
    ("repo", "ref"),
    [
        (f"{GIT}/nothing.git", None),
        (f"{GIT}/project.git", "no-such-branch"),
        ("https://nowhere.example.com/a.git", None),
    ],
)
def test_a_repository_that_cannot_be_cloned_fails_the_task_and_says_why(
    alice: Caller, gits: GitServer, repo: str, ref: str | None
) -> None:
    task = alice.task("say never", repo=repo, ref=ref)
    view = task.ended("failed")
    assert view["reason"]["code"] == "clone"
    assert view["reason"]["message"]
    assert "agent.started" not in task.kinds()


def test_a_private_address_is_no_repository(alice: Caller) -> None:
    for repo in ("http://10.0.0.5/a.git", "https://169.254.169.254/a.git", "http://127.0.0.1:7070/a.git"):
        reply = alice.ask_task(prompt="say never", repo=repo)
        assert reply.status == 400, reply
        assert "repo" in reply.json["error"]["message"]


def test_a_name_that_leads_to_a_private_address_is_not_cloned_from(stage: Stage, alice: Caller) -> None:
    mark = stage.internet.web.mark()
    view = alice.task("say never", repo="https://private.example.com/git/sample.git").ended("failed")
    assert view["reason"]["code"] == "clone"
    assert [hit for hit in stage.internet.web.since(mark) if hit.address == "10.0.0.5"] == []


def test_a_password_in_a_repositorys_address_is_seen_by_the_repository_alone(
    stage: Stage, alice: Caller, private: GitServer
) -> None:
    look = "run env; cat .git/config ~/.gitconfig ~/.git-credentials; ps auxe; git config -l; git remote -v"
    prompt = f"{look}\nask Everything seen?\nedit new.txt new\ncommit Add new"
    task = alice.task(prompt, repo=f"{WITH_PASSWORD}/project.git", push=True)
    forms = leaks.forms(PASSWORD, USER)
    asked = task.question("question")
    assert leaks.found(stage, task, forms) == []
    assert task.say("answer", asked["id"], "yes").status == 200
    view = task.ended()
    assert view["repo"] == "https://private-git.example.com/project.git"
    assert leaks.found(stage, task, forms) == []
    with opened(task) as archive:
        for path in archive.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert not any(form.encode() in path.read_bytes() for form in forms), path
    assert {asked.user for asked in private.asked if asked.method == "POST"} == {USER}
    assert private.head("project", f"refs/heads/{view['branch']}") == view["result"]["head"]


def test_work_is_pushed_to_its_branch_and_never_to_a_protected_one(alice: Caller, gits: GitServer) -> None:
    gits.make("pushed", FILES)
    base = gits.head("pushed")
    task = alice.task("edit a.txt a\ncommit Add a", repo=f"{GIT}/pushed.git", push=True, branch="agent/a")
    view = task.ended()
    assert gits.head("pushed", "refs/heads/agent/a") == view["result"]["head"]
    assert view["result"]["pushed"]
    assert "git.pushed" in task.kinds()
    refused = alice.task("edit a.txt a\ncommit Add a", repo=f"{GIT}/pushed.git", push=True, branch="main")
    until(lambda: refused.view["state"] in ("completed", "failed"), limit_s=300)
    assert "git.refused" in refused.kinds()
    assert gits.head("pushed") == base


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_the_agents_own_push_waits_for_a_word(alice: Caller, gits: GitServer, answer: str) -> None:
    name = f"asked-{answer}"
    gits.make(name, FILES)
    prompt = "edit a.txt a\ncommit Add a\npush origin HEAD:agent/a"
    task = alice.task(prompt, repo=f"{GIT}/{name}.git", approvals={"push": True})
    asked = task.question("push")
    assert gits.head(name, "refs/heads/agent/a") is None
    assert task.say(answer, asked["id"]).status == 200
    view = task.ended()
    assert task.steps()[-1]["is_error"] == (answer == "reject")
    wanted = view["result"]["head"] if answer == "approve" else None
    assert gits.head(name, "refs/heads/agent/a") == wanted


def test_the_agent_cannot_push_by_force_nor_to_a_protected_branch(alice: Caller, gits: GitServer) -> None:
    gits.make("rails", FILES)
    base = gits.head("rails")
    pushes = ["push origin HEAD:main", "push --force origin HEAD:agent/a", "push origin +HEAD:agent/a"]
    prompt = "\n".join(["edit a.txt a", "commit Add a", *pushes])
    task = alice.task(prompt, repo=f"{GIT}/rails.git", loop={"same_failure": 0})
    task.ended()
    assert [step["is_error"] for step in task.steps()[-3:]] == [True, True, True]
    assert gits.head("rails") == base
    assert gits.head("rails", "refs/heads/agent/a") is None


def test_a_job_is_the_same_task_in_another_shape(alice: Caller, gits: GitServer) -> None:
    asked = {"repoUrl": f"{GIT}/project.git", "taskDesc": "edit a.txt a", "agent": "mock"}
    made = alice.post("/api/v1/jobs", **asked)
    assert made.status == 202, made
    task = Task(alice, made.json["jobId"])
    with alice.open("GET", f"/api/v1/jobs/{task.id}/stream", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status == 200
        assert list(told(answer)) == task.events()
    job = alice.call("GET", f"/api/v1/jobs/{task.id}").json
    assert (job["status"], job["taskDesc"], job["repoUrl"]) == ("completed", asked["taskDesc"], asked["repoUrl"])
    assert job["result"] == task.view["result"]

"""Tasks through real gateways to real hosts: whichever gateway is asked, and on whichever host a task is."""

import http.client
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contract.ids import home_of
from contract.keys import Pools, Scope
from contract.task_states import FINAL
from tests.gateway.cluster import EVERYTHING, LIMIT_S, ROOT, Cluster, Reply, ask, open_cluster, operate, wait_for

TASKS = "/api/v1/tasks"
JOBS = "/api/v1/jobs"
HELLO = {"agent": "mock", "prompt": "Say hello.\nedit HELLO.md hello"}
LONG = {"agent": "mock", "prompt": "Wait.\nsleep 600"}
FINAL_EVENTS = ("task.completed", "task.failed", "task.stopped")


@pytest.fixture
def red(pair: Cluster) -> Iterator[str]:
    yield from owner(pair, "red")


@pytest.fixture
def blue(pair: Cluster) -> Iterator[str]:
    yield from owner(pair, "blue")


@pytest.fixture
def one_slot() -> Iterator[Cluster]:
    """A host with room for one machine."""
    with open_cluster(1, 1, POOLD_SLOTS="1", POOLD_POOL="host=0-1") as cluster:
        yield cluster


def owner(pair: Cluster, name: str, **fields: object) -> Iterator[str]:
    """A key that all gateways know, of a new owner: tasks are there for long. After the test none of them runs."""
    secret = pair.key(f"{name}-{secrets.token_hex(4)}", **fields)
    yield secret
    port = pair.gateways[0].port
    for row in ask(port, "GET", f"{TASKS}?limit=1000", key=secret).json.get("tasks", []):
        if row["state"] not in FINAL:
            ask(port, "POST", f"{TASKS}/{row['id']}/stop", key=secret)
            ended(pair, secret, row["id"])


def create(pair: Cluster, key: str, body: object = None, gateway: int = 0, **headers: str) -> Reply:
    reply = ask(pair.gateways[gateway].port, "POST", TASKS, body or HELLO, key=key, **headers)
    assert reply.status == 202, reply
    return reply


def ended(pair: Cluster, key: str, task: str, gateway: int = 0) -> dict[str, object]:
    """The task, when it is over."""
    port = pair.gateways[gateway].port
    found: dict[str, object] = {}

    def is_over() -> bool:
        found.update(ask(port, "GET", f"{TASKS}/{task}", key=key).json)
        return found["state"] in FINAL

    wait_for(is_over, f"the end of {task}", lambda: str(found) + "".join(each.told() for each in pair.hosts.values()))
    return found


def in_state(pair: Cluster, key: str, task: str, *states: str) -> None:
    port = pair.gateways[0].port
    wait_for(lambda: ask(port, "GET", f"{TASKS}/{task}", key=key).json["state"] in states, f"{task} is one of {states}")


def events(port: int, path: str, key: str, **headers: str) -> list[tuple[int, str]]:
    """Numbers and kinds of a stream, to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}", "Accept": "text/event-stream", **told})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    found, number = [], 0
    for line in reply:
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"event: "):
            found.append((number, line[7:].decode().strip()))
    connection.close()
    return found


def test_a_task_does_its_work_and_is_the_same_through_every_gateway(pair: Cluster, red: str) -> None:
    made = [create(pair, red, gateway=number % 2) for number in range(3)]
    for number, each in enumerate(made):
        assert each.headers["location"] == f"{TASKS}/{each.json['id']}"
        task = ended(pair, red, each.json["id"], gateway=1 - number % 2)
        assert task["state"] == "completed", (task["reason"], task["phase"])
        diff = ask(pair.gateways[number % 2].port, "GET", f"{TASKS}/{each.json['id']}/diff", key=red)
        assert b"HELLO.md" in diff.body
        steps = ask(pair.gateways[1].port, "GET", f"{TASKS}/{each.json['id']}/steps", key=red).json["steps"]
        assert steps


def test_the_same_create_through_two_gateways_is_one_task(pair: Cluster, red: str) -> None:
    first = create(pair, red, LONG, 0, Idempotency_Key="once")
    second = create(pair, red, LONG, 1, Idempotency_Key="once")
    assert first.json["id"] == second.json["id"]
    assert second.headers["idempotent-replayed"] == "true"
    other = ask(pair.gateways[1].port, "POST", TASKS, HELLO, key=red, Idempotency_Key="once")
    assert (other.status, other.code) == (422, "key_reused")
    assert len(ask(pair.gateways[0].port, "GET", TASKS, key=red).json["tasks"]) == 1


def test_the_same_creates_at_once_through_two_gateways_are_one_task(pair: Cluster, red: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: create(pair, red, LONG, number % 2, Idempotency_Key="at-once"), range(8)))
    assert len({each.json["id"] for each in made}) == 1
    assert len(ask(pair.gateways[0].port, "GET", TASKS, key=red).json["tasks"]) == 1


def test_a_task_waits_for_room_and_begins_when_there_is_some(one_slot: Cluster) -> None:
    (gateway,), (host,) = one_slot.gateways, one_slot.hosts.values()
    key = one_slot.key("red")
    first = create(one_slot, key, LONG).json["id"]
    in_state(one_slot, key, first, "running")
    second = create(one_slot, key, LONG, Idempotency_Key="second").json["id"]
    third = create(one_slot, key, HELLO).json["id"]
    assert ask(gateway.port, "POST", "/v1/sandboxes", {}, key=key).status == 503  # which does not wait
    assert ask(gateway.port, "POST", f"{TASKS}/{second}/stop", key=key).json["state"] == "stopped"
    # What never had a machine has given its room back, and its key leads to it all the same.
    said = operate(host, "POST", "/v1/sandboxes/states", {"ids": [home_of(each) for each in (second, third)]})
    assert said["states"] == {home_of(second): "stopped", home_of(third): "running"}
    assert create(one_slot, key, LONG, Idempotency_Key="second").json["id"] == second
    assert ask(gateway.port, "GET", f"{TASKS}/{third}", key=key).json["state"] == "queued"
    ask(gateway.port, "POST", f"{TASKS}/{first}/stop", key=key)
    assert ended(one_slot, key, third)["state"] == "completed"


def test_lists_are_over_all_hosts_and_come_in_pages(pair: Cluster, red: str, blue: str) -> None:
    made = [create(pair, red, gateway=number % 2).json["id"] for number in range(5)]
    create(pair, blue)
    port, found, before = pair.gateways[1].port, [], ""
    while True:
        page = ask(port, "GET", f"{TASKS}?limit=2{before}", key=red).json
        assert page["incomplete"] == []
        found += [row["id"] for row in page["tasks"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == made[::-1]
    jobs = ask(port, "GET", f"{JOBS}?limit=1000", key=red).json["jobs"]
    assert [row["jobId"] for row in jobs] == found
    for task in made:
        ended(pair, red, task)
    done = ask(port, "GET", f"{TASKS}?state=completed&agent=mock", key=red).json["tasks"]
    assert [row["id"] for row in done] == found
    assert ask(port, "GET", f"{TASKS}?agent=claude", key=red).json["tasks"] == []


def test_anothers_task_does_not_exist(pair: Cluster, red: str, blue: str) -> None:
    task = create(pair, red, LONG).json["id"]
    for method, rest in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/steps"),
        ("GET", "/diff"),
        ("GET", "/artifacts"),
        ("GET", "/archive"),
        ("POST", "/stop"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/retry"),
    ):
        reply = ask(pair.gateways[0].port, method, f"{TASKS}/{task}{rest}", key=blue)
        assert (method, rest, reply.status, reply.code) == (method, rest, 404, "not_found")
    body = {"kind": "instruct", "text": "stop"}
    assert ask(pair.gateways[0].port, "POST", f"{TASKS}/{task}/input", body, key=blue).status == 404
    assert ask(pair.gateways[0].port, "POST", TASKS, {**HELLO, "retry_of": task}, key=blue).status == 404
    assert ask(pair.gateways[0].port, "GET", f"{JOBS}/{task}", key=blue).status == 404
    assert ask(pair.gateways[0].port, "GET", f"{TASKS}/{task}", key=red).json["state"] not in FINAL


def test_a_key_without_the_scope_has_no_tasks(pair: Cluster) -> None:
    key = pair.key("green-tasks", scopes=(Scope.SANDBOXES,))
    for method, path in (("GET", TASKS), ("POST", TASKS), ("GET", f"{TASKS}/tk-aaaaaaaaaaaaaaaa"), ("POST", JOBS)):
        reply = ask(pair.gateways[0].port, method, path, key=key)
        assert (reply.status, reply.code, reply.json["error"]["scope"]) == (403, "forbidden", "tasks")


def test_only_an_admin_sees_everybodys(pair: Cluster, red: str) -> None:
    made, port = create(pair, red).json, pair.gateways[0].port
    admin = pair.key("boss-tasks", scopes=EVERYTHING)
    assert ask(port, "GET", f"{TASKS}?owner=*", key=red).status == 403
    everybodys = ask(port, "GET", f"{TASKS}?owner=*&limit=1000", key=admin).json["tasks"]
    assert made["id"] in [row["id"] for row in everybodys]
    theirs = ask(port, "GET", f"{TASKS}?owner={made['owner']}", key=admin).json["tasks"]
    assert [row["id"] for row in theirs] == [made["id"]]


@pytest.mark.parametrize("path", [f"{TASKS}/{{}}/events", f"{JOBS}/{{}}/stream"])
def test_a_stream_goes_on_behind_its_last_event_through_another_gateway(pair: Cluster, red: str, path: str) -> None:
    where = path.format(create(pair, red).json["id"])
    all_of_it = events(pair.gateways[0].port, where, red)
    assert [number for number, _ in all_of_it] == list(range(1, len(all_of_it) + 1))
    assert all_of_it[0][1] == "task.queued"
    assert all_of_it[-1][1] == "task.completed"
    for last in (1, len(all_of_it) // 2, len(all_of_it) - 1):
        rest = events(pair.gateways[1].port, where, red, Last_Event_ID=str(last))
        assert rest == all_of_it[last:]


def test_a_stream_of_one_that_reads_slowly_is_whole(pair: Cluster, red: str) -> None:
    lines = "\n".join(f"say {number} {'x' * 2000}" for number in range(100))
    task = create(pair, red, {"agent": "mock", "prompt": f"Talk.\n{lines}"}).json["id"]
    with socket.create_connection(("127.0.0.1", pair.gateways[0].port), LIMIT_S) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            f"GET {JOBS}/{task}/stream HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {red}\r\n\r\n".encode(),
        )
        ended(pair, red, task)
        said = b""
        while not said.endswith(b"\r\n0\r\n\r\n"):
            piece = slow.recv(2048)
            assert piece, said[-500:]
            said += piece
            time.sleep(0.001)
    quick = events(pair.gateways[1].port, f"{TASKS}/{task}/events", red)
    assert said.count(b"event: ") == len(quick)
    assert any(f"event: {kind}".encode() in said for kind in FINAL_EVENTS)


def test_a_stopped_task_stays_stopped_and_gives_its_room_back(pair: Cluster) -> None:
    shape = ask(pair.gateways[0].port, "GET", "/v1/hosts", key=pair.key("boss-tasks", scopes=EVERYTHING)).json["hosts"]
    usual = next(image for image in shape[0]["images"] if image["image"] == shape[0]["default_image"])
    pools = Pools(vcpus=usual["vcpus"], memory_mb=usual["memory_mb"], disk_mb=usual["disk_mb"])
    port = pair.gateways[1].port
    for key in owner(pair, "small", pools=pools):
        first = create(pair, key, LONG).json["id"]
        full = ask(pair.gateways[1].port, "POST", TASKS, HELLO, key=key)
        assert (full.status, full.code) == (429, "pool_exhausted")
        assert ask(port, "POST", f"{TASKS}/{first}/stop", key=key).status == 200
        assert ended(pair, key, first)["state"] == "stopped"
        assert ask(port, "POST", f"{TASKS}/{first}/stop", key=key).json["state"] == "stopped"
        wait_for(lambda key=key: ask(port, "POST", TASKS, HELLO, key=key).status == 202, "room for another")


def test_a_question_is_answered_through_the_other_gateway(pair: Cluster, red: str) -> None:
    task = create(pair, red, {"agent": "mock", "prompt": "Ask.\nask Which colour?"}).json["id"]
    port = pair.gateways[1].port
    waiting: list[dict[str, object]] = []

    def is_asked() -> bool:
        waiting[:] = ask(port, "GET", f"{TASKS}/{task}", key=red).json["waiting"]
        return bool(waiting)

    wait_for(is_asked, "the question", lambda: str(ask(port, "GET", f"{TASKS}/{task}/events", key=red).json))
    wrong = ask(port, "POST", f"{TASKS}/{task}/input", {"kind": "answer", "id": "zz-99", "text": "x"}, key=red)
    assert (wrong.status, wrong.code) == (409, "not_waiting")
    body = {"kind": "answer", "id": waiting[0]["id"], "text": "green"}
    assert ask(port, "POST", f"{TASKS}/{task}/input", body, key=red).status == 200
    assert ended(pair, red, task)["state"] == "completed"
    assert b"green" in ask(port, "GET", f"{TASKS}/{task}/diff", key=red).body


def test_a_retry_does_the_same_again_on_the_same_host(pair: Cluster, red: str) -> None:
    first = create(pair, red, {**HELLO, "env": {"COLOUR": "green"}, "metadata": {"n": "1"}}).json["id"]
    ended(pair, red, first)
    again = ask(pair.gateways[1].port, "POST", f"{TASKS}/{first}/retry", {"metadata": {"n": "2"}}, key=red)
    assert (again.status, again.json["retry_of"], again.json["metadata"]) == (202, first, {"n": "2"})
    assert ended(pair, red, again.json["id"])["state"] == "completed"
    homes = [home(pair, each) for each in (first, again.json["id"])]
    assert homes[0] == homes[1]


def home(pair: Cluster, task: str) -> str:
    """The host that has the task, by what its operator sees there."""
    for name, host in pair.hosts.items():
        if task in [row["id"] for row in operate(host, "GET", "/v1/tasks?limit=1000")["tasks"]]:
            return name
    raise AssertionError(f"no host has {task}")


def test_a_job_is_its_task(pair: Cluster, red: str) -> None:
    body = {"repoUrl": "http://127.0.0.1:9/none.git", "taskDesc": "Say hello.", "agent": "mock", "branch": "agent/x"}
    made = ask(pair.gateways[0].port, "POST", JOBS, body, key=red)
    job = made.json
    assert (made.status, made.headers["location"]) == (202, f"{JOBS}/{job['jobId']}")
    assert (job["repoUrl"], job["taskDesc"], job["branch"]) == (body["repoUrl"], "Say hello.", "agent/x")
    task = ended(pair, red, job["jobId"])
    seen = ask(pair.gateways[1].port, "GET", f"{JOBS}/{job['jobId']}", key=red).json
    assert seen["status"] == task["state"] == "failed"  # there is nothing to clone
    assert seen["reason"]["code"] == "clone"
    assert events(pair.gateways[1].port, job["events"], red)[-1][1] == "task.failed"


def test_a_job_that_is_stopped_is_a_task_that_was(pair: Cluster, red: str) -> None:
    task = create(pair, red, LONG).json["id"]
    stopped = ask(pair.gateways[1].port, "POST", f"{JOBS}/{task}/stop", key=red)
    assert stopped.status == 200
    assert ended(pair, red, task)["state"] == "stopped"
    assert ask(pair.gateways[0].port, "GET", f"{JOBS}/{task}", key=red).json["status"] == "stopped"


def test_the_sandbox_of_a_task_can_be_looked_into(pair: Cluster, red: str) -> None:
    task = create(pair, red, LONG).json["id"]
    in_state(pair, red, task, "running")
    sandbox = ask(pair.gateways[1].port, "GET", f"{TASKS}/{task}", key=red).json["sandbox"]
    assert sandbox == home_of(task)
    ran = ask(pair.gateways[1].port, "POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": "echo seen"}, key=red)
    assert ran.json["stdout"] == "seen\n"


def test_what_the_document_says_of_tasks_can_be_typed(pair: Cluster, red: str, tmp_path: Path) -> None:
    section = (ROOT / "docs" / "API.md").read_text().partition("\n## Tasks\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    url = f"http://127.0.0.1:{pair.gateways[0].port}"
    typed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        env={**os.environ, "WARREN_URL": url, "WARREN_API_KEY": red},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr
    assert '"error":{' not in typed.stdout
    assert typed.stdout.count("event: task.completed") == 2
    assert "+++ b/HELLO.md" in typed.stdout
    assert (tmp_path / "workspace.tar.zst").read_bytes()[:4] == b"\x28\xb5\x2f\xfd"

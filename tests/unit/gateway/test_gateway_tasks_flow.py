"""Tasks through a whole gateway: created once, listed from everywhere, followed from any event on, tried again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from contract.ids import home_of
from contract.keys import Key, Scope
from contract.tickets import Access
from tests.unit.gateway.task_hosts import EVENTS, Place, task_place

MOCK = {"agent": "mock", "prompt": "hello"}
TASKS = "/api/v1/tasks"
JOBS = "/api/v1/jobs"
JOB = {"repoUrl": "https://git.example.com/a.git", "taskDesc": "Mend it."}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with task_place(tmp_path) as found:
        yield found


async def test_a_create_is_accepted_with_the_address_of_its_task(place: Place) -> None:
    made = await place.ask("POST", TASKS, MOCK)
    assert (made.status_code, made.headers["location"]) == (202, f"{TASKS}/{made.json()['id']}")
    assert place.reserved == {home_of(made.json()["id"])} == place.made
    seen = await place.ask("GET", made.headers["location"])
    assert (seen.status_code, seen.json()["id"]) == (200, made.json()["id"])
    host = place.host_of(made.json()["id"])
    assert all(place.red not in str(headers) for _, _, headers in host.heads)


async def test_the_same_create_again_is_the_same_task(place: Place) -> None:
    first, second = [await place.ask("POST", TASKS, MOCK, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert first.json() == second.json()
    assert (first.headers.get("idempotent-replayed"), second.headers["idempotent-replayed"]) == (None, "true")
    other = await place.ask("POST", TASKS, {**MOCK, "prompt": "x"}, **{"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "key_reused")
    assert len(place.made) == 1
    theirs = await place.ask("POST", TASKS, MOCK, key=place.blue, **{"Idempotency-Key": "k"})
    assert theirs.json()["id"] != first.json()["id"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"agent": "mock"}, 400, "prompt"),
        ({**MOCK, "agent": "clippy"}, 400, "agent"),
        ({**MOCK, "colour": "red"}, 400, "colour"),
        ({**MOCK, "image": "nothing"}, 400, "image"),
        ({**MOCK, "caps": {"usd": -1}}, 400, "caps.usd"),
        ({**MOCK, "push": True}, 400, "push"),
        ({**MOCK, "retry_of": "tk-aaaaaaaaaaaaaaaa"}, 404, None),
    ],
)
async def test_a_create_that_makes_no_sense_is_refused_by_its_field(
    place: Place, body: object, status: int, field: str | None
) -> None:
    told = await place.ask("POST", TASKS, body)
    assert (told.status_code, told.json()["error"].get("field")) == (status, field)
    assert place.reserved == set()


async def test_a_long_prompt_arrives_whole_and_one_that_is_too_long_is_refused(place: Place) -> None:
    longest = "\x01" * (1 << 20)  # six bytes each, as JSON
    made = await place.ask("POST", TASKS, {**MOCK, "prompt": longest})
    assert made.status_code == 202
    assert place.host_of(made.json()["id"]).asked[made.json()["id"]]["prompt"] == longest
    again = await place.ask("POST", f"{made.headers['location']}/retry")
    assert again.status_code == 202
    assert place.host_of(again.json()["id"]).asked[again.json()["id"]]["prompt"] == longest
    assert (await place.ask("POST", TASKS, {**MOCK, "prompt": longest + "x"})).json()["error"]["field"] == "prompt"
    assert (await place.ask("POST", TASKS, b" " * ((8 << 20) + 1))).status_code == 413


async def test_lists_are_over_all_hosts_in_pages_and_name_who_did_not_answer(place: Place) -> None:
    made = [(await place.ask("POST", TASKS, MOCK)).json()["id"] for _ in range(12)]
    assert all(host.tasks for host in place.hosts.values())
    await place.ask("POST", TASKS, MOCK, key=place.blue)
    found: list[str] = []
    before = ""
    while True:
        page = (await place.ask("GET", f"{TASKS}?limit=5{before}")).json()
        assert page["incomplete"] == []
        found += [row["id"] for row in page["tasks"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == made[::-1]
    jobs = (await place.ask("GET", f"{JOBS}?limit=5")).json()
    assert [row["jobId"] for row in jobs["jobs"]] == found[:5]
    for query in ("limit=0", "state=odd", "agent=clippy", "colour=red"):
        assert (await place.ask("GET", f"{TASKS}?{query}")).json()["error"]["code"] == "bad_field"
    assert (await place.ask("GET", f"{TASKS}?owner=blue")).status_code == 403


async def test_anothers_task_does_not_exist(place: Place) -> None:
    task = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    for method, path in (
        ("GET", f"{TASKS}/{task}"),
        ("POST", f"{TASKS}/{task}/stop"),
        ("POST", f"{TASKS}/{task}/retry"),
        ("GET", f"{JOBS}/{task}"),
        ("POST", f"{JOBS}/{task}/stop"),
        ("GET", f"{JOBS}/{task}/stream"),
    ):
        told = await place.ask(method, path, key=place.blue)
        assert (path, told.status_code, told.json()["error"]["code"]) == (path, 404, "not_found")
    told = await place.ask("POST", TASKS, {**MOCK, "retry_of": task}, key=place.blue)
    assert told.status_code == 404
    assert place.host_of(task).tasks[task]["state"] == "queued"
    assert len(place.made) == 1


async def test_a_task_that_never_was_is_not_found_anywhere(place: Place) -> None:
    for path in (f"{TASKS}/tk-aaaaaaaaaaaaaaaa", f"{JOBS}/tk-aaaaaaaaaaaaaaaa", f"{TASKS}/sb-aaaaaaaaaaaaaaaa"):
        told = await place.ask("GET", path)
        assert (told.status_code, told.json()["error"]["code"]) == (404, "not_found")
        assert "no task" in told.json()["error"]["message"]


async def test_a_key_for_sandboxes_alone_has_no_tasks(tmp_path: Path) -> None:
    async with task_place(tmp_path, red=Key("0" * 64, "red", scopes=(Scope.SANDBOXES,))) as place:
        for method, path in (
            ("POST", TASKS),
            ("GET", TASKS),
            ("GET", f"{TASKS}/tk-aaaaaaaaaaaaaaaa"),
            ("GET", f"{TASKS}/tk-aaaaaaaaaaaaaaaa"),
            ("POST", JOBS),
            ("GET", f"{JOBS}/tk-aaaaaaaaaaaaaaaa/stream"),
        ):
            told = await place.ask(method, path)
            assert (told.status_code, told.json()["error"]["scope"]) == (403, "tasks")


async def test_a_key_for_tasks_alone_has_no_sandboxes(tmp_path: Path) -> None:
    async with task_place(tmp_path, red=Key("0" * 64, "red", scopes=(Scope.TASKS,))) as place:
        assert (await place.ask("POST", TASKS, MOCK)).status_code == 202
        for path in ("/v1/sandboxes", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa"):
            assert (await place.ask("GET", path)).status_code == 403


async def test_a_gateway_that_starts_anew_finds_tasks_again(place: Place) -> None:
    tasks = [(await place.ask("POST", TASKS, MOCK)).json()["id"] for _ in range(6)]
    for task in tasks:
        place.services.hosts.forget(task)
    for task in tasks:
        assert (await place.ask("GET", f"{TASKS}/{task}")).json()["id"] == task


async def numbers(place: Place, path: str, count: int, **headers: str) -> list[int]:
    """The ids of the first events of a stream; then we leave."""
    found: list[int] = []
    asked = place.client.stream(
        "GET", f"http://127.0.0.1:{place.port}{path}", headers={"Authorization": f"Bearer {place.red}", **headers}
    )
    async with asked as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                found.append(int(line[4:]))
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("path", [f"{TASKS}/{{}}/events", f"{JOBS}/{{}}/stream"])
async def test_a_stream_goes_on_behind_the_last_event(place: Place, path: str) -> None:
    where = path.format((await place.ask("POST", TASKS, MOCK)).json()["id"])
    sse = {"Accept": "text/event-stream"}
    assert await numbers(place, where, 3, **sse) == [1, 2, 3]
    assert await numbers(place, where, 3, **sse, **{"Last-Event-ID": "3"}) == [4, 5, 6]
    assert await numbers(place, f"{where}?after=7", 2, **sse) == [8, 9]


async def test_a_slow_reader_slows_its_stream_down_and_loses_nothing(place: Place) -> None:
    task = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    host = place.host_of(task)
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port, limit=1 << 16)
    writer.write(f"GET {JOBS}/{task}/stream HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {place.red}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    sent = -1
    while sent != host.sent:  # until nobody sends any more
        sent = host.sent
        await asyncio.sleep(0.5)
    assert 0 < sent < EVENTS
    found: list[int] = []
    while not found or found[-1] < EVENTS:
        line = await reader.readline()
        assert line
        if line.startswith(b"id: "):
            found.append(int(line[4:]))
    assert found == list(range(1, EVENTS + 1))
    writer.close()


async def test_a_retry_is_made_where_the_first_is_with_what_was_asked_for(place: Place) -> None:
    for number in range(4):
        body = {**MOCK, "env": {"A": "1"}, "metadata": {"n": str(number)}, "caps": {"steps": 7}}
        first = (await place.ask("POST", TASKS, body)).json()["id"]
        again = await place.ask("POST", f"{TASKS}/{first}/retry", {"prompt": "better"})
        assert again.status_code == 202
        host, second = place.host_of(first), again.json()["id"]
        assert second != first
        assert host is place.host_of(second)
        assert host.asked[second] == {**host.asked[first], "prompt": "better", "retry_of": first}
        asked = [ticket for path, ticket, _ in host.heads if path == f"/v1/tasks/{first}/request"]
        assert [(ticket.access, ticket.sandbox) for ticket in asked] == [(Access.WRITE, first)]


async def test_a_retry_with_a_key_is_made_once(place: Place) -> None:
    first, other = [(await place.ask("POST", TASKS, MOCK)).json()["id"] for _ in range(2)]
    key = {"Idempotency-Key": "k"}
    seconds = [await place.ask("POST", f"{TASKS}/{first}/retry", **key) for _ in range(2)]
    assert seconds[0].json()["id"] == seconds[1].json()["id"]
    told = await place.ask("POST", f"{TASKS}/{other}/retry", **key)
    assert (told.status_code, told.json()["error"]["code"]) == (422, "key_reused")
    assert len(place.made) == 3


@pytest.mark.parametrize(
    "body", [b"[]", b"no", {"retry_of": "tk-aaaaaaaaaaaaaaaa"}, {"colour": 1}, {"caps": {"steps": 0}}]
)
async def test_a_retry_that_makes_no_sense_is_refused(place: Place, body: object) -> None:
    first = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    assert (await place.ask("POST", f"{TASKS}/{first}/retry", body)).status_code == 400
    assert len(place.made) == 1


async def test_a_retry_whose_host_takes_none_says_that_secrets_must_be_given_again(place: Place) -> None:
    first = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    place.host_of(first).refuses = "draining"
    told = await place.ask("POST", f"{TASKS}/{first}/retry")
    assert told.status_code == 503
    assert "create a task with its secrets" in told.json()["error"]["message"]
    assert place.reserved == {home_of(first)}


async def test_a_retry_whose_host_is_dead_says_that_secrets_must_be_given_again(place: Place) -> None:
    first = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    for _ in range(10):
        place.services.hosts.failed(place.host_of(first).name)
    told = await place.ask("POST", f"{TASKS}/{first}/retry")
    assert (told.status_code, told.json()["error"]["code"]) == (503, "host_unreachable")
    assert "create a task with its secrets" in told.json()["error"]["message"]


async def test_a_job_is_a_task_with_another_face(tmp_path: Path) -> None:
    async with task_place(tmp_path, GATEWAY_JOBS_AGENT="codex") as place:
        made = await place.ask("POST", JOBS, JOB, **{"Idempotency-Key": "k"})
        told = made.json()
        assert (made.status_code, made.headers["location"]) == (202, f"{JOBS}/{told['jobId']}")
        assert (told["status"], told["agent"], told["taskDesc"]) == ("queued", "codex", JOB["taskDesc"])
        assert place.host_of(told["jobId"]).tasks[told["jobId"]]["image"] == "agent"
        assert (await place.ask("POST", JOBS, JOB, **{"Idempotency-Key": "k"})).json() == told
        assert (await place.ask("GET", made.headers["location"])).json() == told
        assert (await place.ask("GET", told["task"])).json()["id"] == told["jobId"]
        stopped = await place.ask("POST", f"{JOBS}/{told['jobId']}/stop")
        assert stopped.json()["status"] == "stopped"
        assert orjson.loads(stopped.content)["jobId"] == told["jobId"]


async def test_every_refusal_of_a_task_has_its_operation_in_the_metrics(place: Place) -> None:
    for method, path in (
        ("GET", f"{TASKS}/tk-aaaaaaaaaaaaaaaa"),
        ("POST", TASKS),
        ("PUT", f"{TASKS}/tk-aaaaaaaaaaaaaaaa"),
    ):
        await place.ask(method, path, {})
    text = (await place.ask("GET", "/metrics", key=place.red)).status_code
    assert text == 403
    said = place.services.metrics.render({}).decode()
    assert 'requests_total{operation="get_task",status="404"} 1' in said
    assert 'requests_total{operation="create_task",status="400"} 1' in said


async def test_a_host_of_a_former_version_has_no_tasks_to_list(place: Place) -> None:
    task = (await place.ask("POST", TASKS, MOCK)).json()["id"]
    old = next(host for host in place.hosts.values() if not host.tasks)
    old.is_old = True
    page = (await place.ask("GET", TASKS)).json()
    assert ([row["id"] for row in page["tasks"]], page["incomplete"]) == ([task], [])

"""While a lost host is being carried on, nobody can say that an id never was: 503 with `Retry-After`, and no 404."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.task_hosts import Place, task_place

TASK = "tk-aaaaaaaaaaaaaaaa"
WAYS = [
    ("GET", f"/api/v1/tasks/{TASK}"),
    ("POST", f"/api/v1/tasks/{TASK}/stop"),
    ("GET", f"/api/v1/tasks/{TASK}/events"),
    ("GET", f"/api/v1/jobs/{TASK}"),
    ("GET", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa"),
]


@pytest.fixture(params=[1, 2, 3])
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with task_place(tmp_path, hosts=request.param) as place:
        yield place


@pytest.mark.parametrize(("method", "path"), WAYS)
async def test_what_nobody_has_may_be_with_a_lost_host_until_that_is_carried_on(
    place: Place, method: str, path: str
) -> None:
    last = list(place.hosts.values())[-1]
    last.is_unsettled = True  # one is enough: the others may not have seen it yet
    for _ in range(2):
        told = await place.ask(method, path)
        assert (told.status_code, told.json()["error"]["code"]) == (503, "host_unreachable")
        assert int(told.headers["retry-after"]) >= 1
    last.is_unsettled = False
    told = await place.ask(method, path)
    assert (told.status_code, told.json()["error"]["code"]) == (404, "not_found")


async def test_what_somebody_has_is_answered_meanwhile(place: Place) -> None:
    made = await place.ask("POST", "/api/v1/tasks", {"agent": "mock", "prompt": "run true"})
    for host in place.hosts.values():
        host.is_unsettled = True
    place.services.hosts.forget(made.json()["id"])
    assert (await place.ask("GET", made.headers["location"])).status_code == 200

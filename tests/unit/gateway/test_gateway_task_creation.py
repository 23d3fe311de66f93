"""Tasks are placed and reserved for by their sandbox, wait where there is no room, and are tried again in one place."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from contract import ring
from contract.errors import BadField, CapacityError, NotFound, PoolExhausted
from contract.hosts import Host
from contract.ids import home_of, task_of
from contract.keys import Key
from contract.models import Shape
from contract.ring import Room
from contract.tickets import Access
from gateway.background import Background
from gateway.creation import REPLAYED, SANDBOX, TASK, Creation, Wish, repeat_of
from gateway.errors import HostSaid, HostUnreachable
from gateway.hosts import Answer
from gateway.placement import Taken, offers
from gateway.quotas import Repeat, Reserved

PYTHON = Shape("python", 1, 512, 4096)
AGENT = Shape("agent", 2, 2048, 8192)
KEY = Key("0" * 64, "red", created_ms=1)
MOCK = {"agent": "mock", "prompt": "hello"}


def host(name: str, *, free: int = 8, draining: bool = False, images: tuple[Shape, ...] = (PYTHON, AGENT)) -> Host:
    return Host(
        name,
        "http://127.0.0.1:1",
        slots=Room(8, free),
        memory_mb=Room(16_384, 16_384 if free else 0),
        vcpus=8,
        max_memory_mb=16_384,
        max_disk_mb=65_536,
        images=images,
        default_image="python",
        draining=draining,
    )


class FakeHosts:
    """Hosts by their records. Each answers a create with what `answers` has for it."""

    def __init__(self, *records: Host, answers: dict[str, Answer] | None = None) -> None:
        self.known = {each.name: each for each in records}
        self.answers = answers or {}
        self.asked: list[tuple[str, str, str, str | None, Any]] = []
        self.places: dict[str, str] = {}

    def records(self) -> list[Host]:
        return list(self.known.values())

    def weights(self) -> dict[str, float]:
        return {name: record.weight for name, record in self.known.items()}

    def offers(self, wanted: Any, without: Sequence[str] = ()) -> Any:
        alive = {name: record for name, record in self.known.items() if name not in without}
        return offers(wanted, alive, {name: Taken() for name in alive})

    def place(self, made: str, name: str, _shape: Shape | None = None) -> None:
        self.places[made] = name

    def forget(self, made: str) -> None:
        self.places.pop(made, None)

    async def find(self, made: str) -> str:
        if made not in self.places:
            raise NotFound("no")
        return self.places[made]

    async def ask(
        self, name: str, method: str, target: str, _access: Access, _owner: str, made: str | None = None, **more: Any
    ) -> Answer:
        self.asked.append((name, method, target, made, more.get("value")))
        answer = self.answers.get(name, Answer(202, {"id": made, "state": "queued"}, []))
        if answer.status == 0:
            raise HostUnreachable("no", sent=answer.value)
        return answer


class FakeQuotas:
    def __init__(self, repeated: str | None = None, *, full: bool = False) -> None:
        self.repeated = repeated
        self.full = full
        self.reserved: list[tuple[str, Shape]] = []
        self.released: list[str] = []

    async def reserve(self, _key: Key, sandbox: str, shape: Shape, _repeat: Repeat | None) -> Reserved:
        if self.full:
            raise PoolExhausted("the pools of red are full")
        self.reserved.append((sandbox, shape))
        return Reserved(self.repeated or sandbox, self.repeated is not None)

    async def release(self, _owner: str, ids: list[str], **_more: bool) -> None:
        self.released += ids


NUMBERS = itertools.count()


def creation(hosts: FakeHosts, quotas: FakeQuotas | None = None) -> Creation:
    return Creation(hosts, quotas or FakeQuotas(), Background(), entropy=lambda count: next(NUMBERS).to_bytes(count))  # type: ignore[arg-type]


def wish_of(maker: Creation, body: dict[str, Any], repeat: Repeat | None = None) -> Wish:
    return maker.task_wish(KEY, orjson.dumps(body), "rq-1", repeat)


async def test_a_task_has_the_home_and_the_reservation_of_its_sandbox() -> None:
    hosts, quotas = FakeHosts(host("a"), host("b"), host("c")), FakeQuotas()
    maker = creation(hosts, quotas)
    made = await maker.create(wish_of(maker, MOCK))
    [(sandbox, shape)] = quotas.reserved
    assert (made.id, shape) == (task_of(sandbox), PYTHON)
    [(name, method, target, ticket_for, value)] = hosts.asked
    assert name == ring.owner(home_of(made.id), hosts.weights())
    assert (method, target, ticket_for) == ("POST", "/v1/tasks", made.id)
    assert value == MOCK | vars(PYTHON)
    assert hosts.places == {made.id: name}


@pytest.mark.parametrize("agent", ["claude", "codex", "cursor"])
async def test_an_agent_that_is_a_program_gets_the_image_that_has_it(agent: str) -> None:
    hosts, quotas = FakeHosts(host("a")), FakeQuotas()
    maker = creation(hosts, quotas)
    await maker.create(wish_of(maker, {"agent": agent, "prompt": "x"}))
    assert quotas.reserved[0][1] == AGENT
    await maker.create(wish_of(maker, {"agent": agent, "prompt": "x", "image": "python", "memory_mb": 1024}))
    assert quotas.reserved[1][1] == replace(PYTHON, memory_mb=1024)


async def test_on_computers_as_they_are_every_agent_is_what_is_there() -> None:
    here = Shape("host", 1, 512, 4096)
    quotas = FakeQuotas()
    maker = creation(FakeHosts(replace(host("a", images=(here,)), default_image="host")), quotas)
    await maker.create(wish_of(maker, {"agent": "claude", "prompt": "x"}))
    assert quotas.reserved[0][1] == here


async def test_a_task_is_accepted_where_there_is_no_room_now() -> None:
    hosts = FakeHosts(host("a", free=0), host("b", free=0))
    maker = creation(hosts)
    made = await maker.create(wish_of(maker, MOCK))
    assert made.answer.status == 202


async def test_a_sandbox_is_not_accepted_where_there_is_no_room_now() -> None:
    maker = creation(FakeHosts(host("a", free=0)))
    with pytest.raises(CapacityError):
        await maker.create(maker.wish(KEY, b"", "rq-1", None))


async def test_a_task_waits_on_no_host_that_drains_and_goes_first_where_there_is_room() -> None:
    for number in range(20):
        hosts = FakeHosts(host("a", free=0), host("b"), host("c", free=0, draining=True))
        hosts.known |= {f"d{number}": host(f"d{number}", free=0)}
        maker = creation(hosts)
        await maker.create(wish_of(maker, MOCK))
        assert hosts.asked[0][0] == "b"
    hosts = FakeHosts(host("a", free=0), host("c", free=0, draining=True))
    for _ in range(20):
        maker = creation(hosts)
        await maker.create(wish_of(maker, MOCK))
    assert {asked[0] for asked in hosts.asked} == {"a"}


async def test_a_task_waits_only_on_a_host_that_has_its_image() -> None:
    hosts = FakeHosts(host("a", free=0, images=(PYTHON,)), host("b", free=0))
    for _ in range(10):
        maker = creation(hosts)
        await maker.create(wish_of(maker, {"agent": "claude", "prompt": "x"}))
    assert {asked[0] for asked in hosts.asked} == {"b"}
    maker = creation(FakeHosts(host("a", images=(PYTHON,))))
    with pytest.raises(BadField, match="image"):
        await maker.create(wish_of(maker, {"agent": "claude", "prompt": "x"}))


async def test_a_host_whose_queue_is_full_sends_the_task_to_another() -> None:
    full = Answer(503, {"error": {"code": "no_capacity", "message": "the queue is full"}}, [])
    hosts, quotas = FakeHosts(host("a", free=0), host("b", free=0), answers={"a": full}), FakeQuotas()
    for _ in range(10):
        maker = creation(hosts, quotas)
        await maker.create(wish_of(maker, MOCK))
    assert {asked[0] for asked in hosts.asked} == {"a", "b"}
    assert len(quotas.reserved) - len(quotas.released) == 10
    everywhere = creation(FakeHosts(host("a"), host("b"), answers={"a": full, "b": full}))
    with pytest.raises(HostSaid, match="queue is full"):
        await everywhere.create(wish_of(everywhere, MOCK))


async def test_a_host_of_a_former_version_sends_the_task_to_another() -> None:
    old = Answer(404, {"error": {"code": "no_such_route", "message": "there is nothing under this path"}}, [])
    hosts, quotas = FakeHosts(host("a"), host("b", free=0), answers={"a": old}), FakeQuotas()
    maker = creation(hosts, quotas)
    made = await maker.create(wish_of(maker, MOCK))
    assert hosts.places == {made.id: "b"}
    assert [asked[0] for asked in hosts.asked] == ["a", "b"]


async def test_an_owner_with_nothing_left_is_told_so() -> None:
    maker = creation(FakeHosts(host("a", free=0)), FakeQuotas(full=True))
    with pytest.raises(PoolExhausted):
        await maker.create(wish_of(maker, MOCK))


async def test_a_repeat_asks_for_the_task_of_the_first() -> None:
    first = "sb-aaaaaaaaaaaaaaaa"
    hosts = FakeHosts(host("a"), answers={"a": Answer(202, {"id": task_of(first)}, [(REPLAYED, b"true")])})
    hosts.places[task_of(first)] = "a"
    maker = creation(hosts, FakeQuotas(first))
    made = await maker.create(wish_of(maker, MOCK, Repeat("k", "a")))
    assert made.id == task_of(first)
    assert hosts.asked[0][3] == task_of(first)


async def test_a_retry_goes_to_the_host_of_the_first_and_nowhere_else() -> None:
    hosts = FakeHosts(*(host(name) for name in "abcdef"))
    for name in "abcdef":
        maker = creation(hosts)
        wish = wish_of(maker, MOCK | {"retry_of": "tk-aaaaaaaaaaaaaaaa"})
        assert wish.retry_of == "tk-aaaaaaaaaaaaaaaa"
        made = await maker.create(wish.only_on(name))
        assert hosts.places[made.id] == name == ring.owner(home_of(made.id), hosts.weights())


@pytest.mark.parametrize("kind", ["gone", "draining", "refuses"])
async def test_a_retry_whose_host_takes_no_task_says_where_the_secrets_are(kind: str) -> None:
    busy = Answer(503, {"error": {"code": "draining", "message": "it drains"}}, [])
    here = [] if kind == "gone" else [host("a", free=0, draining=kind == "draining")]
    hosts = FakeHosts(host("b"), *here, answers={"a": busy})
    maker = creation(hosts)
    wish = wish_of(maker, MOCK | {"retry_of": "tk-aaaaaaaaaaaaaaaa"}).only_on("a")
    with pytest.raises(
        CapacityError, match=r"host a, .* secrets of tk-aaaaaaaaaaaaaaaa.*create a task with its secrets"
    ):
        await maker.create(wish)
    assert all(asked[0] != "b" for asked in hosts.asked)


async def test_a_create_whose_answer_was_lost_is_learned_of() -> None:
    class Lossy(FakeHosts):
        async def ask(self, *args: Any, **more: Any) -> Answer:
            answer = await super().ask(*args, **more)
            if args[1] == "POST":
                raise HostUnreachable("the answer was lost")
            return Answer(200, {"id": args[5], "state": "planning"}, answer.headers)

    hosts = Lossy(host("a"))
    maker = creation(hosts)
    made = await maker.create(wish_of(maker, MOCK))
    assert (made.answer.status, made.answer.value["state"]) == (202, "planning")
    assert [asked[1:3] for asked in hosts.asked] == [("POST", "/v1/tasks"), ("GET", f"/v1/tasks/{made.id}")]


async def test_a_task_that_nobody_heard_of_is_stopped_and_keeps_its_room_until_its_machine_is_gone() -> None:
    hosts, quotas = FakeHosts(host("a"), answers={"a": Answer(200, {}, [])}), FakeQuotas()
    maker = creation(hosts, quotas)
    hosts.places |= {"tk-aaaaaaaaaaaaaaaa": "a", "sb-bbbbbbbbbbbbbbbb": "a"}
    await asyncio.wait_for(maker.undo(TASK, "red", "tk-aaaaaaaaaaaaaaaa"), 5)
    await asyncio.wait_for(maker.undo(SANDBOX, "red", "sb-bbbbbbbbbbbbbbbb"), 5)
    assert [asked[1:3] for asked in hosts.asked] == [
        ("POST", "/v1/tasks/tk-aaaaaaaaaaaaaaaa/stop"),
        ("DELETE", "/v1/sandboxes/sb-bbbbbbbbbbbbbbbb?discard=1"),
    ]
    assert quotas.released == ["sb-bbbbbbbbbbbbbbbb"]


def test_one_key_is_one_request_whatever_was_asked_with_it() -> None:
    bodies = [("", b"{}"), ("retry tk-a ", b"{}"), ("retry tk-b ", b"{}"), ("job ", b"{}")]
    repeats = [repeat_of("red", "k", body, about) for about, body in bodies]
    assert len({each.key for each in repeats if each}) == 1
    assert len({each.asked for each in repeats if each}) == len(bodies)

"""Creates that are repeated and refused: whose room and whose key are given back."""

import asyncio
from typing import Any

import pytest

from contract.keys import Key
from contract.models import CreateSandbox, Shape, ShapeLimits
from contract.network import Mode, Network
from gateway.creation import REPLAYED, Creation, Place, Wish
from gateway.errors import HostSaid, HostUnreachable
from gateway.hosts import Answer
from gateway.quotas import Repeat, Reserved

ONE = "sb-aaaaaaaaaaaaaaaa"
SHAPE = Shape("python", 1, 512, 4096)
LIMITS = ShapeLimits(8, 8192, 8192)
KEPT = [(REPLAYED, b"true")]


class FakeHosts:
    """One host that says `answer` to every create."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.forgotten: list[str] = []
        self.asked: list[dict[str, object]] = []

    def offers(self, *_args: object, **_more: object) -> dict[str, Any]:
        return {}

    def place(self, *_args: object) -> None:
        pass

    def forget(self, sandbox: str) -> None:
        self.forgotten.append(sandbox)

    async def find(self, _sandbox: str) -> str:
        return "host-0"

    async def ask(self, *_args: object, **more: object) -> Answer:
        self.asked.append(more)
        if self.answer.status == 0:
            raise HostUnreachable("no", sent=False)
        return self.answer


class FakeQuotas:
    def __init__(self, repeated: bool) -> None:
        self.repeated = repeated
        self.released: list[str] = []

    async def reserve(self, *_args: object) -> Reserved:
        return Reserved(ONE, self.repeated)

    async def release(self, _owner: str, ids: list[str], *, forget: bool) -> None:
        assert forget
        self.released += ids


class Here(Creation):
    """Every id is placed on the one host."""

    def _placed(self, *_args: object) -> tuple[Place, Shape]:
        return Place(ONE, "host-0", SHAPE), SHAPE


def refused(status: int, code: str, headers: list[tuple[bytes, bytes]]) -> Answer:
    return Answer(status, {"error": {"code": code, "message": "no"}}, headers)


async def released(answer: Answer, *, repeated: bool) -> list[str]:
    """What is given back after a create to which a host gave this answer."""
    hosts, quotas = FakeHosts(answer), FakeQuotas(repeated)
    creation = Here(hosts, quotas, None, entropy=bytes)  # type: ignore[arg-type]
    wish = Wish(Key("0" * 64, "red", created_ms=1), CreateSandbox.parse(b"", LIMITS), b"", "rq-1", Repeat("k", "a"))
    with pytest.raises((HostSaid, HostUnreachable)):
        await asyncio.wait_for(creation.create(wish), 5)
    assert set(hosts.forgotten) == set(quotas.released)
    return quotas.released


@pytest.mark.parametrize(("status", "code"), [(400, "bad_field"), (401, "bad_ticket"), (503, "not_ready"), (0, "")])
async def test_a_repeat_that_is_refused_leaves_the_room_and_the_key_of_the_first(status: int, code: str) -> None:
    assert await released(refused(status, code, []), repeated=True) == []


async def test_a_repeat_that_hears_the_refusal_of_the_first_gives_back_what_was_reserved() -> None:
    assert await released(refused(400, "bad_field", KEPT), repeated=True) == [ONE]


async def test_a_first_that_is_refused_gives_back_what_it_reserved() -> None:
    assert await released(refused(400, "bad_field", []), repeated=False) == [ONE]


@pytest.mark.parametrize("network", [None, Network(Mode.REGISTRIES)])
async def test_a_create_carries_the_network_of_its_key(network: Network | None) -> None:
    hosts = FakeHosts(Answer(201, {"id": ONE}, []))
    creation = Here(hosts, FakeQuotas(repeated=False), None, entropy=bytes)  # type: ignore[arg-type]
    key = Key("0" * 64, "red", created_ms=1, network=network)
    await creation.create(Wish(key, CreateSandbox.parse(b"", LIMITS), b"", "rq-1", None))
    assert [asked["network"] for asked in hosts.asked] == [network]

"""When a host lives, and which may take a sandbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import BadField, CapacityError
from contract.hosts import Host
from contract.models import CreateSandbox, Shape, ShapeLimits
from contract.ring import Room
from gateway.liveness import MAX_FAILURES, SILENT_S, Health, Pulse, health
from gateway.placement import ANY_SIZE, Taken, default_image, limits, no_room, offers, room_for

PYTHON = Shape("python", 1, 512, 4096)
NODE = Shape("node", 2, 1024, 4096)


def host(name: str = "a", **fields: object) -> Host:
    usual: dict[str, object] = {
        "slots": Room(10, 10),
        "memory_mb": Room(10_000, 10_000),
        "vcpus": 4,
        "max_memory_mb": 8192,
        "max_disk_mb": 20_480,
        "images": (PYTHON, NODE),
        "default_image": "python",
    }
    return Host(name, "http://127.0.0.1:7070", **{**usual, **fields})  # type: ignore[arg-type]


def wanted(body: bytes = b"{}") -> CreateSandbox:
    return CreateSandbox.parse(body, ANY_SIZE)


def test_the_first_beat_that_is_seen_says_nothing() -> None:
    pulse = Pulse()
    pulse.saw_beat(7, 0.0)
    assert not pulse.is_alive(0.0)
    pulse.saw_beat(7, 1.0)
    assert not pulse.is_alive(1.0)
    pulse.saw_beat(8, 2.0)
    assert pulse.is_alive(2.0)


@given(st.floats(0, 100, allow_nan=False))
def test_a_host_is_dead_after_so_long_without_a_sign(later_s: float) -> None:
    pulse = Pulse()
    pulse.answered_probe(0.0)
    assert pulse.is_alive(later_s) == (later_s < SILENT_S)


@given(st.lists(st.sampled_from(["failed", "answered", "beat", "probe"]), max_size=30))
def test_three_failures_in_a_row_are_death_until_a_probe(events: list[str]) -> None:
    pulse, in_a_row, is_dead, beat = Pulse(), 0, False, 0
    pulse.answered_probe(0.0)
    for event in events:
        match event:
            case "failed":
                pulse.failed()
                in_a_row += 1
                is_dead = is_dead or in_a_row >= MAX_FAILURES
            case "answered":
                pulse.answered()
                in_a_row = 0
            case "beat":
                beat += 1
                pulse.saw_beat(beat, 0.0)
            case "probe":
                pulse.answered_probe(0.0)
                in_a_row, is_dead = 0, False
        assert pulse.is_alive(0.0) is not is_dead


def test_a_draining_host_lives_and_takes_nothing() -> None:
    pulse = Pulse()
    pulse.answered_probe(0.0)
    drained = host(draining=True)
    assert health(drained, pulse, 0.0) is Health.DRAINING
    assert health(host(), pulse, 0.0) is Health.ALIVE
    assert health(host(), Pulse(), 0.0) is Health.DEAD
    assert room_for(drained, PYTHON, Taken()).left == 0


def test_sizes_that_are_not_asked_for_are_the_images() -> None:
    offer = offers(wanted(b'{"memory_mb": 2048}'), {"a": host()}, {})["a"]
    assert offer.shape == Shape("python", 1, 2048, 4096)


@pytest.mark.parametrize(
    "body", [b'{"image": "rust"}', b'{"vcpus": 5}', b'{"memory_mb": 16384}', b'{"disk_mb": 40960}']
)
def test_a_host_without_the_image_or_too_small_offers_nothing(body: bytes) -> None:
    assert offers(wanted(body), {"a": host()}, {}) == {}


@given(st.integers(0, 30))
def test_what_was_placed_counts_until_the_next_record(placed: int) -> None:
    taken = Taken()
    for _ in range(placed):
        taken = taken.add(PYTHON)
    room = room_for(host(), PYTHON, taken)
    assert (room.left > 0) == (placed < 10)


def test_memory_that_is_left_but_too_little_is_no_room() -> None:
    assert room_for(host(memory_mb=Room(10_000, 256)), PYTHON, Taken()).left == 0


def test_the_usual_image_is_that_of_most_hosts() -> None:
    assert default_image([host(), host(default_image="node"), host(default_image="node")]) == "node"
    assert default_image([host(), host(default_image="node")]) == "node", "the first by name, where they are as many"
    assert default_image([]) == ""


def test_the_limits_are_those_of_the_largest_host() -> None:
    assert limits([host(), host(vcpus=8, max_memory_mb=128)]) == ShapeLimits(8, 8192, 20_480)
    assert limits([]) == ANY_SIZE


def test_an_image_that_no_host_has_is_the_callers_mistake() -> None:
    assert isinstance(no_room(wanted(b'{"image": "rust"}'), [host()]), BadField)
    assert isinstance(no_room(wanted(b'{"image": "python"}'), [host()]), CapacityError)
    assert isinstance(no_room(wanted(b'{"image": "rust"}'), []), CapacityError), "no host was heard of yet"
